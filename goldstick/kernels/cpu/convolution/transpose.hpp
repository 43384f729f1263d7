// Small matrices turned over: what images and kernels differ in is whether channels or pixels are neighbours.
#pragma once

#include <cstdint>

#include "base/inline.hpp"
#include "linear/linear.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace goldstick {
namespace {

// Element [row][column] of `from` to [column][row] of `to`, one by one.
template <typename Value>
inline void transpose_scalar(const Value* from, std::int64_t from_stride, std::int64_t rows, std::int64_t columns,
                             Value* to, std::int64_t to_stride) {
    for (std::int64_t column = 0; column < columns; ++column) {
        for (std::int64_t row = 0; row < rows; ++row) {
            to[column * to_stride + row] = from[row * from_stride + column];
        }
    }
}

#if defined(__x86_64__)

GOLDSTICK_AVX2 inline __m128i eight_codes(const std::int16_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

GOLDSTICK_AVX2 inline void transpose_eight(const std::int16_t* from, std::int64_t from_stride, std::int16_t* to,
                                           std::int64_t to_stride) {
    __m128i a[8], b[8];
    for (int i = 0; i < 8; ++i) a[i] = eight_codes(from + i * from_stride);
    for (int i = 0; i < 4; ++i) {
        b[2 * i] = _mm_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
        for (int half = 0; half < 2; ++half) {
            a[4 * i + 2 * half] = _mm_unpacklo_epi32(b[4 * i + half], b[4 * i + 2 + half]);
            a[4 * i + 2 * half + 1] = _mm_unpackhi_epi32(b[4 * i + half], b[4 * i + 2 + half]);
        }
    }
    for (int i = 0; i < 4; ++i) {
        auto* const first = reinterpret_cast<__m128i*>(to + 2 * i * to_stride);
        auto* const second = reinterpret_cast<__m128i*>(to + (2 * i + 1) * to_stride);
        _mm_storeu_si128(first, _mm_unpacklo_epi64(a[i], a[4 + i]));
        _mm_storeu_si128(second, _mm_unpackhi_epi64(a[i], a[4 + i]));
    }
}

GOLDSTICK_AVX2 inline __m128i eight_bytes(const std::uint8_t* from) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
}

GOLDSTICK_AVX2 inline void transpose_eight(const std::uint8_t* from, std::int64_t from_stride, std::uint8_t* to,
                                           std::int64_t to_stride) {
    __m128i a[4], b[4];
    for (int i = 0; i < 4; ++i) {
        a[i] = _mm_unpacklo_epi8(eight_bytes(from + 2 * i * from_stride), eight_bytes(from + (2 * i + 1) * from_stride));
    }
    for (int i = 0; i < 2; ++i) {
        b[2 * i] = _mm_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
        const __m128i first = _mm_unpacklo_epi32(b[i], b[2 + i]), second = _mm_unpackhi_epi32(b[i], b[2 + i]);
        const __m128i columns[] = {first, _mm_srli_si128(first, 8), second, _mm_srli_si128(second, 8)};
        for (int j = 0; j < 4; ++j) {
            _mm_storel_epi64(reinterpret_cast<__m128i*>(to + (4 * i + j) * to_stride), columns[j]);
        }
    }
}

GOLDSTICK_AVX2 inline void transpose_eight(const float* from, std::int64_t from_stride, float* to,
                                           std::int64_t to_stride) {
    __m256 a[8], b[8];
    for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(from + i * from_stride);
    for (int i = 0; i < 4; ++i) {
        b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
        for (int half = 0; half < 2; ++half) {
            const __m256 low = b[4 * i + half], high = b[4 * i + 2 + half];
            a[4 * i + 2 * half] = _mm256_shuffle_ps(low, high, 0x44);
            a[4 * i + 2 * half + 1] = _mm256_shuffle_ps(low, high, 0xee);
        }
    }
    for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(to + i * to_stride, _mm256_permute2f128_ps(a[i], a[4 + i], 0x20));
        _mm256_storeu_ps(to + (4 + i) * to_stride, _mm256_permute2f128_ps(a[i], a[4 + i], 0x31));
    }
}

// The same by blocks of eight by eight.
template <typename Value>
GOLDSTICK_AVX2 inline void transpose_avx2(const Value* from, std::int64_t from_stride, std::int64_t rows,
                                          std::int64_t columns, Value* to, std::int64_t to_stride) {
    const std::int64_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
    for (std::int64_t row = 0; row < whole_rows; row += 8) {
        for (std::int64_t column = 0; column < whole_columns; column += 8) {
            transpose_eight(from + row * from_stride + column, from_stride, to + column * to_stride + row, to_stride);
        }
    }
    transpose_scalar(from + whole_columns, from_stride, whole_rows, columns - whole_columns,
                     to + whole_columns * to_stride, to_stride);
    transpose_scalar(from + whole_rows * from_stride, from_stride, rows - whole_rows, columns, to + whole_rows,
                     to_stride);
}

#endif

template <bool wide, typename Value>
GOLDSTICK_INLINE void turn(const Value* from, std::int64_t from_stride, std::int64_t rows, std::int64_t columns,
                           Value* to, std::int64_t to_stride) {
#if defined(__x86_64__)
    if constexpr (wide) {
        return transpose_avx2(from, from_stride, rows, columns, to, to_stride);
    }
#endif
    transpose_scalar(from, from_stride, rows, columns, to, to_stride);
}

}  // namespace
}  // namespace goldstick
