// Codes of 16 rows, spread out side by side: lane r of a vector belongs to row r of eight.
#pragma once

#include "base/inline.hpp"
#include "linear/codes_avx2.hpp"
#include "linear/linear.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace goldstick {
namespace {

struct Panel {
    alignas(64) std::int32_t codes[kChunk * kRows / 2];  // [step][kRows], each two columns of 16 bits or four of 8
};

// Eight rows of eight lanes: lane d of row r becomes lane r of vector d.
GOLDSTICK_AVX2 inline void transpose(__m256i v[8]) {
    __m256i a[8], b[8];
    GOLDSTICK_UNROLL
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
    GOLDSTICK_UNROLL
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    GOLDSTICK_UNROLL
    for (int i = 0; i < 4; ++i) {
        v[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        v[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}

// Eight rows of one block, lanes side by side: lane r of vector d is lane d of row r.
GOLDSTICK_AVX2 inline void load_lanes(const std::uint8_t* const rows[8], __m256i lanes[8]) {
    GOLDSTICK_UNROLL
    for (int r = 0; r < 8; ++r) {
        lanes[r] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[r]));
    }
    transpose(lanes);
}

// The same for blocks of 16 bytes.
GOLDSTICK_AVX2 inline void load_half_lanes(const std::uint8_t* const rows[8], __m256i lanes[4]) {
    __m256i v[4];
    GOLDSTICK_UNROLL
    for (int r = 0; r < 4; ++r) {
        const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r]));
        const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r + 4]));
        v[r] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    const __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpackhi_epi32(v[0], v[1]);
    const __m256i c = _mm256_unpacklo_epi32(v[2], v[3]), d = _mm256_unpackhi_epi32(v[2], v[3]);
    lanes[0] = _mm256_unpacklo_epi64(a, c);
    lanes[1] = _mm256_unpackhi_epi64(a, c);
    lanes[2] = _mm256_unpacklo_epi64(b, d);
    lanes[3] = _mm256_unpackhi_epi64(b, d);
}

// The same for blocks of 8 bytes.
GOLDSTICK_AVX2 inline void load_quarter_lanes(const std::uint8_t* const rows[8], __m256i lanes[2]) {
    __m256 v[2];
    GOLDSTICK_UNROLL
    for (int i = 0; i < 2; ++i) {
        __m128i pairs[2];
        GOLDSTICK_UNROLL
        for (int k = 0; k < 2; ++k) {
            const std::uint8_t* const* const pair = rows + 2 * i + 4 * k;
            pairs[k] = _mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(pair[0])),
                                          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(pair[1])));
        }
        v[i] = _mm256_castsi256_ps(_mm256_set_m128i(pairs[1], pairs[0]));
    }
    lanes[0] = _mm256_castps_si256(_mm256_shuffle_ps(v[0], v[1], 0x88));
    lanes[1] = _mm256_castps_si256(_mm256_shuffle_ps(v[0], v[1], 0xdd));
}

// A chunk of the block's rows, which has been called for while the chunk before it was multiplied. Eight rows first, then
// the others: rows are often some 4096 bytes long, so that the same columns of more than eight drive each other out of
// the first-level cache before a line is used up.
template <Shape shape, bool in_bytes, bool table>
GOLDSTICK_AVX2 void unpack(const Columns& columns, const Chunk& chunk, const RowBlock& block, Panel& panel) {
    using C = Codes<shape, in_bytes, table>;
    constexpr int count = lanes_of(shape);
    const C codes(columns);
    std::uint8_t copies[8 * kBlockBytes];
    const std::int64_t blocks = chunk.padded / columns.block_codes();
    for (std::int64_t half = 0; half < 2; ++half) {
        const std::uint8_t* const* from = block.rows + half * 8;
        std::int64_t offset = chunk.begin * columns.bits / 8;
        __m256i* out = reinterpret_cast<__m256i*>(panel.codes) + half;
        for (std::int64_t at = 0; at < blocks;
             ++at, offset += columns.block_bytes(), out += 2 * C::shifts * count) {
            const std::uint8_t* rows[8];
            for (int r = 0; r < 8; ++r) {
                rows[r] = from[r] + offset;
                if (at >= chunk.whole) {
                    copy_block(columns, chunk, from[r], at, copies + r * kBlockBytes);
                    rows[r] = copies + r * kBlockBytes;
                }
            }
            __m256i lanes[8];
            count == 2   ? load_quarter_lanes(rows, lanes)
            : count == 4 ? load_half_lanes(rows, lanes)
                         : load_lanes(rows, lanes);
            GOLDSTICK_UNROLL
            for (int d = 0; d < count; ++d) {
                const auto words = codes.words(lanes[d]);
                GOLDSTICK_UNROLL
                for (int j = 0; j < C::shifts; ++j) {
                    _mm256_store_si256(out + 2 * (j * count + d), C::shifted(words, j));
                }
            }
        }
    }
}

// The same of rows that lie side by side already.
template <Shape shape, bool in_bytes, bool table>
GOLDSTICK_AVX2 void unpack_words(const Columns& columns, const Chunk& chunk, const RowBlock& block, Panel& panel) {
    using C = Codes<shape, in_bytes, table>;
    constexpr int count = lanes_of(shape);
    const C codes(columns);
    const std::uint32_t* from = columns.words_from(chunk, block);
    auto* out = reinterpret_cast<__m256i*>(panel.codes);
    for (std::int64_t at = 0; at < chunk.padded; at += columns.block_codes(), out += 2 * C::shifts * count) {
        GOLDSTICK_UNROLL
        for (int d = 0; d < count; ++d) {
            const auto low = codes.words(word_of<shape>(from, d)), high = codes.words(word_of<shape>(from + 8, d));
            GOLDSTICK_UNROLL
            for (int j = 0; j < C::shifts; ++j) {
                _mm256_store_si256(out + 2 * (j * count + d), C::shifted(low, j));
                _mm256_store_si256(out + 2 * (j * count + d) + 1, C::shifted(high, j));
            }
        }
        from += words_of(shape) * kRows;
    }
}

using Unpack = void(const Columns&, const Chunk&, const RowBlock&, Panel&);

template <bool in_bytes>
Unpack* unpack_for(const Columns& columns, bool interleaved) {
    if (interleaved) {
        return for_shape<true>(columns, [](auto shape, auto table) -> Unpack* {
            return unpack_words<decltype(shape)::value, in_bytes, decltype(table)::value>;
        });
    }
    return for_shape(columns, [](auto shape, auto table) -> Unpack* {
        return unpack<decltype(shape)::value, in_bytes, decltype(table)::value>;
    });
}

}  // namespace
}  // namespace goldstick

#endif
