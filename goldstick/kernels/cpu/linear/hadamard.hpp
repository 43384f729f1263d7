// Hadamard transforms of what layers are given: y = x·H/√n, block by block of n channels.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/isa.hpp"

namespace goldstick {

constexpr std::int64_t kSmallestTransform = 8, kLargestTransform = 1 << 15;

// H is Sylvester's matrix: butterflies of growing distance 1, 2, 4, …: (a, b) → (a + b, a − b) in float32, then a product
// with 1/√n, rounded once to T. Each sum has the same two operands wherever it is made, so any instructions give the same
// bits.
template <typename T>
struct Hadamard {
    const T* x;  // [blocks, size]
    T* y;        // [blocks, size]
    std::int64_t blocks;
    std::int64_t size;  // n, a power of two from kSmallestTransform to kLargestTransform
};

template <typename T>
void hadamard(const Hadamard<T>& call, int threads, Isa isa);

// 1/√n.
inline float hadamard_factor(std::int64_t size) {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(size)));
}

// Some blocks, one after another; `buffer` holds a block of floats on a cache line.
template <typename T>
void hadamard_scalar(const Hadamard<T>& call, float* buffer);
template <typename T>
void hadamard_avx2(const Hadamard<T>& call, float* buffer);
template <typename T>
void hadamard_avx512(const Hadamard<T>& call, float* buffer);  // from 16 channels on

}  // namespace goldstick
