// What the products of a span come to, with AVX2: eight results at a time, rows of one token or of several.
#pragma once

#include "base/inline.hpp"
#include "linear/linear.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace goldstick {
namespace {

// What products are multiplied with, of some rows of a group.
struct Steps8 {
    __m256 scale, zero;
    bool zeros, minimums;  // whether there are zeros, and whether they are such
};

// Eight scales, of the rows from `row` on.
GOLDSTICK_AVX2 inline __m256 product_of(const std::int8_t* whole, const float* unit) {
    const __m256i numbers = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(whole)));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(numbers), _mm256_loadu_ps(unit));
}

GOLDSTICK_AVX2 inline Steps8 steps_of(const RowBlock& block, const Chunk& chunk, std::int64_t row) {
    const std::int64_t group = chunk.group * kRows + row, unit = chunk.superblock * kRows + row;
    if (block.whole_scale) {
        return {product_of(block.whole_scale + group, block.unit + unit),
                block.minimums ? product_of(block.whole_zero + group, block.zero_unit + unit) : _mm256_setzero_ps(),
                block.minimums, block.minimums};
    }
    return {_mm256_loadu_ps(block.scale + group), block.zero ? _mm256_loadu_ps(block.zero + group) : _mm256_setzero_ps(),
            block.zero != nullptr, block.minimums};
}

// What the products of a span add to results.
GOLDSTICK_AVX2 inline __m256 closed(__m256i product, const Steps8& steps, __m256i shift, __m256 scale) {
    if (!steps.zeros) {
        const __m256 centred = _mm256_cvtepi32_ps(_mm256_add_epi32(product, shift));
        return _mm256_mul_ps(centred, _mm256_mul_ps(steps.scale, scale));
    }
    const __m256 of_zeros = _mm256_mul_ps(steps.zero, _mm256_cvtepi32_ps(shift)), found = _mm256_cvtepi32_ps(product);
    if (steps.minimums) {
        return _mm256_mul_ps(_mm256_sub_ps(_mm256_mul_ps(found, steps.scale), of_zeros), scale);
    }
    return _mm256_mul_ps(_mm256_sub_ps(found, of_zeros), _mm256_mul_ps(steps.scale, scale));
}

}  // namespace
}  // namespace goldstick

#endif
