// A Hadamard transform of a head's channels.
#pragma once

#include <cstdint>

#include "base/inline.hpp"
#include "linear/hadamard.hpp"

namespace goldstick {

// x·H/√n in blocks of n channels, in place: the sums of linear/hadamard.hpp.
GOLDSTICK_INLINE void turn(float* x, std::int64_t numbers, std::int64_t n) {
    for (std::int64_t half = 1; half < n; half *= 2) {
        for (std::int64_t begin = 0; begin < numbers; begin += 2 * half) {
            for (std::int64_t i = begin; i < begin + half; ++i) {
                const float first = x[i], second = x[i + half];
                x[i] = first + second;
                x[i + half] = first - second;
            }
        }
    }
    const float factor = hadamard_factor(n);
    for (std::int64_t i = 0; i < numbers; ++i) x[i] *= factor;
}

}  // namespace goldstick
