// Keys and values of one token, rounded into a cache: the arithmetic of nn/kv_cache.py and kernels/kv_nibbles.py, to the
// bit.
#pragma once

#include <cstdint>

#include "decode/attention.hpp"

namespace goldstick {

// Write x [batch, kv_heads, channels] behind `filled` tokens, as codes of the cache's kind.
template <typename T>
void write_codes(const T* x, const Cached& cached, std::int64_t batch, std::int64_t kv_heads, std::int64_t channels,
                 std::int64_t filled, std::int64_t turned, bool use_avx2);

}  // namespace goldstick
