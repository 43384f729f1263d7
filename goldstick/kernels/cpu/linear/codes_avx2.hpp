// The codes in 32-bit words as integers, for vectors of AVX2.
#pragma once

#include "base/inline.hpp"
#include "linear/linear.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace goldstick {
namespace {

// A shift by `j` codes and a mask leave some of the codes of a word, as 16-bit or 8-bit integers. Those of a table are
// looked up sixteen to a lane while they are bytes, the odd ones and the even.
template <Shape shape, bool in_bytes, bool table>
struct Codes {
    static constexpr int width = in_nibbles(shape) ? 4 : 8;
    static constexpr int shifts = 32 / width / (in_bytes ? 4 : 2);
    static constexpr int mask = in_bytes ? 0x0f0f0f0f : width == 8 ? 0x00ff00ff : 0x000f000f;

    struct Words {
        __m256i even, odd;  // without a table the words themselves, and nothing
    };

    GOLDSTICK_AVX2 explicit Codes(const Columns& columns) {
        if constexpr (table) {
            const auto* const from = reinterpret_cast<const __m128i*>(columns.coding.entries);
            entries = _mm256_broadcastsi128_si256(_mm_load_si128(from));
        } else {
            entries = _mm256_setzero_si256();
        }
    }

    GOLDSTICK_AVX2 GOLDSTICK_INLINE Words words(__m256i packed) const {
        if constexpr (table) {
            const __m256i nibbles = _mm256_set1_epi8(15);
            return {_mm256_shuffle_epi8(entries, _mm256_and_si256(packed, nibbles)),
                    _mm256_shuffle_epi8(entries, _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibbles))};
        } else {
            return {packed, packed};
        }
    }

    GOLDSTICK_AVX2 GOLDSTICK_INLINE static __m256i shifted(const Words& words, int j) {
        if constexpr (table) {
            const __m256i bytes = j % 2 ? words.odd : words.even;
            return in_bytes ? bytes : j < 2 ? _mm256_and_si256(bytes, _mm256_set1_epi16(255)) : _mm256_srli_epi16(bytes, 8);
        } else if constexpr (shifts == 1) {
            return words.even;
        } else {
            const __m256i moved = in_bytes ? _mm256_srli_epi32(words.even, j * width) : _mm256_srli_epi16(words.even, j * width);
            return !in_bytes && j == shifts - 1 ? moved : _mm256_and_si256(moved, _mm256_set1_epi32(mask));
        }
    }

    __m256i entries;
};

// Bits of each byte, moved up.
GOLDSTICK_AVX2 GOLDSTICK_INLINE __m256i bits_of_bytes(__m256i words, const Part& part, int up) {
    const __m256i moved = part.shift > up ? _mm256_srli_epi32(words, part.shift - up) : _mm256_slli_epi32(words, up - part.shift);
    return _mm256_and_si256(moved, _mm256_set1_epi8(static_cast<char>(part.mask << up)));
}

// Word `d` of eight rows of a block that is prepacked, put together where it is split.
template <Shape shape>
GOLDSTICK_AVX2 GOLDSTICK_INLINE __m256i word_of(const std::uint32_t* block, int d) {
    const auto load = [block](int word) GOLDSTICK_AVX2 {
        return _mm256_load_si256(reinterpret_cast<const __m256i*>(block + word * kRows));
    };
    if constexpr (is_split(shape)) {
        const Part low = low_bits(shape, d), high = high_bits(shape, d);
        const __m256i codes = bits_of_bytes(load(low.word), low, 0);
        return shape == Shape::kPairs ? codes : _mm256_or_si256(codes, bits_of_bytes(load(high.word), high, 4));
    } else {
        return load(d);
    }
}

}  // namespace
}  // namespace goldstick

#endif
