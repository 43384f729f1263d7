// What codes of a cache stand for, as numbers in memory: the arithmetic of kernels/kv_numbers.py, to the bit.
#pragma once

#include <cstdint>

#include "decode/attention.hpp"

namespace goldstick {

// Codes of tokens, and where their numbers go.
template <typename T>
struct CacheNumbers {
    Run run;
    const float* scale;  // [kv_heads, channels], or null where tokens have scales
    T* out;              // [batch, kv_heads, tokens, channels]
    std::int64_t batch, kv_heads, tokens, channels;
    std::int64_t turned;  // channels that a Hadamard transform has mixed; 0 for none
};

template <typename T>
void write_numbers(const CacheNumbers<T>& call, int threads, bool use_avx2);

}  // namespace goldstick
