// The transform on vectors of floats. Who includes this defines GOLDSTICK_HERE, the instructions that functions are compiled
// for, and Lanes, kCount floats side by side: load, store, plus, minus, times, and within(), the butterflies of distances
// below kCount. Up to eight vectors stay in registers, so three distances cost one pass over a block.
#include <cstdint>

#include "linear/hadamard.hpp"

namespace goldstick {
namespace {

constexpr int kVectors = 8;

template <int count>
GOLDSTICK_HERE GOLDSTICK_INLINE void mix(Lanes (&v)[count]) {
    for (int half = 1; half < count; half *= 2) {
        for (int k = 0; k < count; ++k) {
            if ((k & half) == 0) {
                const Lanes first = v[k], second = v[k + half];
                v[k] = Lanes::plus(first, second);
                v[k + half] = Lanes::minus(first, second);
            }
        }
    }
}

// The smallest distances of count · kCount neighbouring channels; where these are a whole block, the product as well.
template <int count, bool whole, typename In, typename Out>
GOLDSTICK_HERE GOLDSTICK_INLINE void open(const In* x, Out* y, float factor) {
    Lanes v[count];
    for (int k = 0; k < count; ++k) v[k] = Lanes::load(x + k * Lanes::kCount).within();
    mix(v);
    for (int k = 0; k < count; ++k) (whole ? v[k].times(factor) : v[k]).store(y + k * Lanes::kCount);
}

// Distances half, 2 · half … of a block, log2(count) of them; at last the product as well.
template <int count, bool last, typename Out>
GOLDSTICK_HERE GOLDSTICK_INLINE void pass(const float* buffer, Out* y, std::int64_t size, std::int64_t half,
                                          float factor) {
    for (std::int64_t begin = 0; begin < size; begin += count * half) {
        for (std::int64_t at = begin; at < begin + half; at += Lanes::kCount) {
            Lanes v[count];
            for (int k = 0; k < count; ++k) v[k] = Lanes::load(buffer + at + k * half);
            mix(v);
            for (int k = 0; k < count; ++k) (last ? v[k].times(factor) : v[k]).store(y + at + k * half);
        }
    }
}

template <typename T>
GOLDSTICK_HERE GOLDSTICK_INLINE void transform(const T* x, T* y, float* buffer, std::int64_t size, float factor) {
    switch (size / Lanes::kCount) {
        case 1: return open<1, true>(x, y, factor);
        case 2: return open<2, true>(x, y, factor);
        case 4: return open<4, true>(x, y, factor);
        case 8: return open<8, true>(x, y, factor);
        default: break;
    }
    std::int64_t half = kVectors * Lanes::kCount;
    for (std::int64_t at = 0; at < size; at += half) open<kVectors, false>(x + at, buffer + at, factor);
    int left = 0;  // distances
    while (half << left < size) ++left;
    if (left > 3 && left % 3 == 1) {
        pass<2, false>(buffer, buffer, size, half, factor);
        half *= 2;
    } else if (left > 3 && left % 3 == 2) {
        pass<4, false>(buffer, buffer, size, half, factor);
        half *= 4;
    }
    for (; half * 8 < size; half *= 8) pass<8, false>(buffer, buffer, size, half, factor);
    switch (size / half) {
        case 2: return pass<2, true>(buffer, y, size, half, factor);
        case 4: return pass<4, true>(buffer, y, size, half, factor);
        default: return pass<8, true>(buffer, y, size, half, factor);
    }
}

template <typename T>
GOLDSTICK_HERE void transform_all(const Hadamard<T>& call, float* buffer) {
    const float factor = hadamard_factor(call.size);
    for (std::int64_t at = 0; at < call.blocks * call.size; at += call.size) {
        transform(call.x + at, call.y + at, buffer, call.size, factor);
    }
}

}  // namespace
}  // namespace goldstick
