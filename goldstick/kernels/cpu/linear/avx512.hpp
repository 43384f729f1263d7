// Sixteen rows in one vector, with AVX-512 VNNI.
#pragma once

#include <cstdint>
#include <utility>

#include "base/inline.hpp"
#include "linear/linear.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#define GOLDSTICK_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

namespace goldstick {
namespace {

// The codes in 32-bit words as integers: as Codes of codes_avx2.hpp.
template <Shape shape, bool in_bytes, bool table>
struct WideCodes {
    static constexpr int width = in_nibbles(shape) ? 4 : 8;
    static constexpr int shifts = 32 / width / (in_bytes ? 4 : 2);

    struct Words {
        __m512i even, odd;  // without a table the words themselves, and nothing
    };

    GOLDSTICK_AVX512 explicit WideCodes(const Columns& columns) {
        if constexpr (table) {
            const auto* const from = reinterpret_cast<const __m128i*>(columns.coding.entries);
            entries = _mm512_maskz_broadcast_i32x4(0xffff, _mm_load_si128(from));
        } else {
            entries = _mm512_setzero_si512();
        }
    }

    GOLDSTICK_AVX512 GOLDSTICK_INLINE Words words(__m512i packed) const {
        if constexpr (table) {
            const __m512i nibbles = _mm512_set1_epi8(15);
            return {_mm512_shuffle_epi8(entries, _mm512_and_si512(packed, nibbles)),
                    _mm512_shuffle_epi8(entries, _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibbles))};
        } else {
            return {packed, packed};
        }
    }

    GOLDSTICK_AVX512 GOLDSTICK_INLINE static __m512i shifted(const Words& words, int j) {
        if constexpr (table) {
            const __m512i bytes = j % 2 ? words.odd : words.even;
            return in_bytes ? bytes
                   : j < 2  ? _mm512_and_si512(bytes, _mm512_set1_epi16(255))
                            : _mm512_srli_epi16(bytes, 8);
        } else if constexpr (shifts == 1) {
            return words.even;
        } else {
            const __m512i mask = in_bytes ? _mm512_set1_epi8((1 << width) - 1) : _mm512_set1_epi16((1 << width) - 1);
            return _mm512_and_si512(j == 0 ? words.even : _mm512_srli_epi32(words.even, j * width), mask);
        }
    }

    __m512i entries;
};

// Add the products of each row's codes and one token's activations: two columns of 16 bits, or four of 8.
template <bool in_bytes>
GOLDSTICK_AVX512 inline __m512i add_products(__m512i sum, __m512i codes, std::int32_t q) {
    const __m512i values = _mm512_set1_epi32(q);
    return in_bytes ? _mm512_dpbusd_epi32(sum, codes, values) : _mm512_dpwssd_epi32(sum, codes, values);
}

// Whether sums begin with the token's shift, which is then known: their span is one chunk, of a weight without zeros.
inline bool begins_shifted(const Chunk& chunk, bool zeros) { return chunk.opens && chunk.closes && !zeros; }

// What products are multiplied with, of a group of 16 rows.
struct Steps {
    __m512 scale, zero;
    bool zeros, minimums;  // whether there are zeros, and whether they are such
};

GOLDSTICK_AVX512 inline Steps steps_of(const float* scale, const float* zero, bool minimums) {
    return {_mm512_loadu_ps(scale), zero ? _mm512_loadu_ps(zero) : _mm512_setzero_ps(), zero != nullptr, minimums};
}

GOLDSTICK_AVX512 inline __m512 product_of(const std::int8_t* whole, const float* unit) {
    const __m512i numbers = _mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(whole)));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(numbers), _mm512_loadu_ps(unit));
}

GOLDSTICK_AVX512 inline Steps steps_of(const RowBlock& block, const Chunk& chunk) {
    const std::int64_t group = chunk.group * kRows, unit = chunk.superblock * kRows;
    if (!block.whole_scale) {
        return steps_of(block.scale + group, block.zero ? block.zero + group : nullptr, block.minimums);
    }
    return {product_of(block.whole_scale + group, block.unit + unit),
            block.minimums ? product_of(block.whole_zero + group, block.zero_unit + unit) : _mm512_setzero_ps(),
            block.minimums, block.minimums};
}

// What the products of a span add to a result.
GOLDSTICK_AVX512 inline __m512 closed(__m512i product, bool shifted, const Steps& steps, std::int32_t shift, float scale) {
    const __m512 all = _mm512_set1_ps(scale);
    if (!steps.zeros) {
        const __m512i centred = shifted ? product : _mm512_add_epi32(product, _mm512_set1_epi32(shift));
        return _mm512_mul_ps(_mm512_cvtepi32_ps(centred), _mm512_mul_ps(steps.scale, all));
    }
    const __m512 of_zeros = _mm512_mul_ps(steps.zero, _mm512_set1_ps(static_cast<float>(shift)));
    const __m512 found = _mm512_cvtepi32_ps(product);
    if (steps.minimums) {
        return _mm512_mul_ps(_mm512_sub_ps(_mm512_mul_ps(found, steps.scale), of_zeros), all);
    }
    return _mm512_mul_ps(_mm512_sub_ps(found, of_zeros), _mm512_mul_ps(steps.scale, all));
}

// Bits of each byte, moved up.
GOLDSTICK_AVX512 GOLDSTICK_INLINE __m512i bits_of_bytes(__m512i words, const Part& part, int up) {
    const auto by = static_cast<unsigned>(part.shift > up ? part.shift - up : up - part.shift);
    const __m512i moved = part.shift > up ? _mm512_srli_epi32(words, by) : _mm512_slli_epi32(words, by);
    return _mm512_and_si512(moved, _mm512_set1_epi8(static_cast<char>(part.mask << up)));
}

// Word `d` of a block that is prepacked, put together where it is split.
template <Shape shape>
GOLDSTICK_AVX512 GOLDSTICK_INLINE __m512i word_of(const std::uint32_t* block, int d) {
    if constexpr (is_split(shape)) {
        const Part low = low_bits(shape, d), high = high_bits(shape, d);
        const __m512i codes = bits_of_bytes(_mm512_load_si512(block + low.word * kRows), low, 0);
        if constexpr (shape == Shape::kPairs) return codes;
        return _mm512_or_si512(codes, bits_of_bytes(_mm512_load_si512(block + high.word * kRows), high, 4));
    } else {
        return _mm512_load_si512(block + d * kRows);
    }
}

}  // namespace
}  // namespace goldstick

#endif
