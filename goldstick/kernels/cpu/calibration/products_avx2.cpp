// One instruction multiplies eight channels' pairs of tokens and adds each pair. Three rows by 24 columns stay in nine
// registers for as many tokens as 32 bits hold.
#include "base/inline.hpp"
#include "calibration/products.hpp"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>

namespace goldstick {
namespace {

constexpr int kRows = 3;
constexpr int kVectors = 3;
constexpr int kColumns = 8 * kVectors;
static_assert(kPanel % kRows == 0 && kPanel % kColumns == 0);

GOLDSTICK_AVX2 inline void add_wide(std::int64_t* sums, __m256i narrow) {
    const __m256i low = _mm256_cvtepi32_epi64(_mm256_castsi256_si128(narrow));
    const __m256i high = _mm256_cvtepi32_epi64(_mm256_extracti128_si256(narrow, 1));
    __m256i* at = reinterpret_cast<__m256i*>(sums);
    _mm256_storeu_si256(at, _mm256_add_epi64(_mm256_loadu_si256(at), low));
    _mm256_storeu_si256(at + 1, _mm256_add_epi64(_mm256_loadu_si256(at + 1), high));
}

// kRows rows of a tile from `row` on, and kColumns of its columns from `column` on.
GOLDSTICK_AVX2 void add_part(const std::int16_t* left, const std::int16_t* right, std::int64_t pairs, int row, int column,
                             Tile& tile) {
    const std::int32_t* lefts = reinterpret_cast<const std::int32_t*>(left) + row;  // a pair is 32 bits
    const std::int32_t* rights = reinterpret_cast<const std::int32_t*>(right) + column;
    __m256i sums[kRows][kVectors];
    GOLDSTICK_UNROLL
    for (int i = 0; i < kRows; ++i) {
        GOLDSTICK_UNROLL
        for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm256_setzero_si256();
    }
    for (std::int64_t pair = 0; pair < pairs; ++pair, lefts += kPanel, rights += kPanel) {
        __m256i columns[kVectors];
        GOLDSTICK_UNROLL
        for (int v = 0; v < kVectors; ++v) columns[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rights) + v);
        GOLDSTICK_UNROLL
        for (int i = 0; i < kRows; ++i) {
            const __m256i value = _mm256_set1_epi32(lefts[i]);
            GOLDSTICK_UNROLL
            for (int v = 0; v < kVectors; ++v) {
                sums[i][v] = _mm256_add_epi32(sums[i][v], _mm256_madd_epi16(value, columns[v]));
                __asm__ volatile("" : "+x"(sums[i][v]));  // in this order: all products first would not fit
            }
        }
    }
    GOLDSTICK_UNROLL
    for (int i = 0; i < kRows; ++i) {
        GOLDSTICK_UNROLL
        for (int v = 0; v < kVectors; ++v) add_wide(tile[row + i] + column + 8 * v, sums[i][v]);
    }
}

}  // namespace

GOLDSTICK_AVX2 void add_tile_avx2(const std::int16_t* left, const std::int16_t* right, std::int64_t pairs,
                                  std::int64_t together, Tile& tile) {
    for (std::int64_t done = 0; done < pairs; done += together) {
        const std::int64_t count = std::min(together, pairs - done);
        const std::int64_t at = done * 2 * kPanel;
        for (int column = 0; column < kPanel; column += kColumns) {
            for (int row = 0; row < kPanel; row += kRows) add_part(left + at, right + at, count, row, column, tile);
        }
    }
}

}  // namespace goldstick

#else

namespace goldstick {

void add_tile_avx2(const std::int16_t* left, const std::int16_t* right, std::int64_t pairs, std::int64_t together,
                   Tile& tile) {
    add_tile_scalar(left, right, pairs, together, tile);
}

}  // namespace goldstick

#endif
