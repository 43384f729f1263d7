// finished() of eight channels at once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/inline.hpp"
#include "convolution/convolution.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace goldstick {
namespace {

class WideFinish {
public:
    // Of the channels from `first` on.
    GOLDSTICK_AVX2 WideFinish(const Finish& finish, std::int64_t first)
        : by_(_mm256_loadu_ps(finish.by + first)), shift_(_mm256_loadu_ps(finish.shift + first)),
          least_(_mm256_set1_ps(finish.least)), most_(_mm256_set1_ps(finish.most)) {}

    GOLDSTICK_AVX2 GOLDSTICK_INLINE __m256 operator()(__m256 sums) const {
        const __m256 y = _mm256_add_ps(_mm256_mul_ps(sums, by_), shift_);
        return _mm256_min_ps(most_, _mm256_max_ps(least_, y));  // what is no number, given last, stays
    }

private:
    __m256 by_, shift_, least_, most_;
};

// Fewer than eight.
GOLDSTICK_AVX2 inline void store_some(float* y, __m256 values, std::int64_t count) {
    alignas(32) float few[8];
    _mm256_store_ps(few, values);
    std::copy_n(few, count, y);
}

}  // namespace
}  // namespace goldstick

#endif
