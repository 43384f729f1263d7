// Small matrices turned over: what images and kernels differ in is whether channels or pixels are neighbours.
#pragma once

#include <algorithm>
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

// Four pixels of three bytes each, or two of three words, without the gaps behind them.
GOLDSTICK_AVX2 inline __m128i without_gaps(__m128i pixels, std::uint8_t) {
    return _mm_shuffle_epi8(pixels, _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
}
GOLDSTICK_AVX2 inline __m128i without_gaps(__m128i pixels, std::int16_t) {
    return _mm_shuffle_epi8(pixels, _mm_setr_epi8(0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, -1, -1, -1, -1));
}

// Three rows or four into each other: [column][row], as many columns as fill vectors. Returns how many that were.
template <int rows, typename Value>
GOLDSTICK_AVX2 inline std::int64_t interleave(const Value* from, std::int64_t from_stride, std::int64_t columns,
                                              Value* to) {
    constexpr std::int64_t together = 16 / sizeof(Value), beyond = 4 - rows ? 2 : 0;  // what a store writes too much
    std::int64_t column = 0;
    for (; column + together + beyond <= columns; column += together) {
        __m128i a[4] = {}, b[4];
        for (int i = 0; i < rows; ++i) {
            a[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * from_stride + column));
        }
        for (int i = 0; i < 2; ++i) {
            const __m128i one = a[2 * i], other = a[2 * i + 1];
            b[2 * i] = sizeof(Value) == 1 ? _mm_unpacklo_epi8(one, other) : _mm_unpacklo_epi16(one, other);
            b[2 * i + 1] = sizeof(Value) == 1 ? _mm_unpackhi_epi8(one, other) : _mm_unpackhi_epi16(one, other);
        }
        for (int i = 0; i < 4; ++i) {
            const __m128i one = b[i / 2], other = b[2 + i / 2];
            const __m128i low = sizeof(Value) == 1 ? _mm_unpacklo_epi16(one, other) : _mm_unpacklo_epi32(one, other);
            const __m128i high = sizeof(Value) == 1 ? _mm_unpackhi_epi16(one, other) : _mm_unpackhi_epi32(one, other);
            const __m128i pixels = i % 2 ? high : low;
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to), rows == 4 ? pixels : without_gaps(pixels, Value{}));
            to += rows * together / 4;
        }
    }
    return column;
}

// The same by blocks of eight by eight; the last ones go over what is done where that fills them. `to` lies apart.
template <typename Value>
GOLDSTICK_AVX2 inline void transpose_avx2(const Value* from, std::int64_t from_stride, std::int64_t rows,
                                          std::int64_t columns, Value* to, std::int64_t to_stride) {
    if constexpr (sizeof(Value) < 4) {
        if (rows == to_stride && (rows == 3 || rows == 4)) {
            auto* const interleaved = rows == 3 ? interleave<3, Value> : interleave<4, Value>;
            const std::int64_t done = interleaved(from, from_stride, columns, to);
            from += done, columns -= done, to += rows * done;
        }
    }
    if (rows < 8 || columns < 8) {
        return transpose_scalar(from, from_stride, rows, columns, to, to_stride);
    }
    for (std::int64_t next = 0; next < rows; next += 8) {
        const std::int64_t row = std::min(next, rows - 8);
        for (std::int64_t following = 0; following < columns; following += 8) {
            const std::int64_t column = std::min(following, columns - 8);
            transpose_eight(from + row * from_stride + column, from_stride, to + column * to_stride + row, to_stride);
        }
    }
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
