// Scales and zeros of 16 rows, side by side.
#pragma once

#include <algorithm>
#include <cstdint>
#if defined(__SSE2__)
#include <emmintrin.h>
#include <xmmintrin.h>
#endif

#include "base/floats.hpp"
#include "linear/linear.hpp"

namespace goldstick {
namespace {

#if defined(__SSE2__)
inline __m128 load_four(const float* from) { return _mm_loadu_ps(from); }

inline __m128 load_four(const bfloat16* from) {
    const __m128i halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), halves));
}

inline __m128 load_four(const float16* from) {
    return _mm_setr_ps(to_float(from[0]), to_float(from[1]), to_float(from[2]), to_float(from[3]));
}

// Four rows of four, which are `stride` apart, as columns. Returns how many of `groups` it took, four by four.
template <typename T>
std::int64_t transpose_fours(const T* from, std::int64_t stride, std::int64_t groups, float* to) {
    std::int64_t g = 0;
    for (; g + 4 <= groups; g += 4) {
        __m128 a = load_four(from + g), b = load_four(from + stride + g);
        __m128 c = load_four(from + 2 * stride + g), d = load_four(from + 3 * stride + g);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        _mm_storeu_ps(to + g * kRows, a);
        _mm_storeu_ps(to + (g + 1) * kRows, b);
        _mm_storeu_ps(to + (g + 2) * kRows, c);
        _mm_storeu_ps(to + (g + 3) * kRows, d);
    }
    return g;
}
#else
template <typename T>
std::int64_t transpose_fours(const T*, std::int64_t, std::int64_t, float*) {
    return 0;
}
#endif

// The rows `first` and following of [rows, groups] as float [groups][kRows]. The last row is repeated.
template <typename T>
void gather_rows(const T* from, std::int64_t rows, std::int64_t groups, std::int64_t first, float* to) {
    for (std::int64_t r = 0; r < kRows; r += 4) {
        const std::int64_t row = first + r;
        std::int64_t g = row + 4 <= rows ? transpose_fours(from + row * groups, groups, groups, to + r) : 0;
        for (; g < groups; ++g) {
            for (std::int64_t i = 0; i < 4; ++i) {
                to[g * kRows + r + i] = to_float(from[std::min(row + i, rows - 1) * groups + g]);
            }
        }
    }
}

// Multiply the scales [groups][kRows] of the rows from `first` on (of plane 1, the minimums) by those of their superblocks.
template <typename T>
void multiply_by_units(const LinearCall<T>& call, std::int64_t first, std::int64_t plane, float* scale) {
    const std::int64_t planes = call.zero ? 2 : 1, groups = call.groups / call.superblocks;
    for (std::int64_t s = 0; s < call.superblocks; ++s) {
        float unit[kRows];
        for (std::int64_t r = 0; r < kRows; ++r) {
            const std::int64_t row = std::min(first + r, call.rows - 1);
            unit[r] = call.units[(row * planes + plane) * call.superblocks + s];
        }
        for (std::int64_t i = 0; i < groups; ++i, scale += kRows) {
            for (std::int64_t r = 0; r < kRows; ++r) scale[r] *= unit[r];
        }
    }
}

// Scales and zeros (or minimums) of the rows from `first` on, [groups][kRows], where there are zeros.
template <typename T>
void gather_steps(const LinearCall<T>& call, std::int64_t first, float* scale, float* zero) {
    gather_rows(call.scale, call.rows, call.groups, first, scale);
    if (call.units) {
        multiply_by_units(call, first, 0, scale);
    }
    if (call.zero) {
        gather_rows(call.zero, call.rows, call.groups, first, zero);
        for (std::int64_t i = 0; sizeof(T) == 2 && i < call.groups * kRows; ++i) {
            zero[i] = round_to<T>(zero[i]);
        }
        if (call.units) {
            multiply_by_units(call, first, 1, zero);
        }
    }
}

// Codes, scales and zeros of the rows from `first` on.
template <typename T>
RowBlock gather_block(const LinearCall<T>& call, std::int64_t first, float* scale, float* zero) {
    RowBlock block{};
    for (std::int64_t r = 0; r < kRows; ++r) {
        block.rows[r] = call.packed + std::min(first + r, call.rows - 1) * call.row_bytes;
    }
    gather_steps(call, first, scale, zero);
    block.scale = scale;
    block.zero = call.zero ? zero : nullptr;
    block.minimums = call.units && call.zero;
    return block;
}

}  // namespace
}  // namespace goldstick
