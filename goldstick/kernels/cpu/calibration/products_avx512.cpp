// One instruction of VNNI multiplies sixteen channels' pairs of tokens, adds each pair, and adds that to the sums. Four rows
// by 48 columns stay in twelve registers for as many tokens as 32 bits hold: more make a compiler copy them about.
#include "base/inline.hpp"
#include "calibration/products.hpp"

#include <algorithm>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define GOLDSTICK_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))

namespace goldstick {
namespace {

constexpr int kRows = 4;
constexpr int kVectors = kPanel / 16;
static_assert(kPanel % kRows == 0 && kPanel % 16 == 0);

GOLDSTICK_VNNI inline void add_wide(std::int64_t* sums, __m512i narrow) {
    const __m512i low = _mm512_cvtepi32_epi64(_mm512_castsi512_si256(narrow));
    const __m512i high = _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(narrow, 1));
    _mm512_storeu_si512(sums, _mm512_add_epi64(_mm512_loadu_si512(sums), low));
    _mm512_storeu_si512(sums + 8, _mm512_add_epi64(_mm512_loadu_si512(sums + 8), high));
}

// kRows rows of a tile, from `row` on.
GOLDSTICK_VNNI void add_rows(const std::int16_t* left, const std::int16_t* right, std::int64_t pairs, int row,
                             Tile& tile) {
    const std::int32_t* lefts = reinterpret_cast<const std::int32_t*>(left) + row;  // a pair is 32 bits
    const std::int32_t* rights = reinterpret_cast<const std::int32_t*>(right);
    __m512i sums[kRows][kVectors];
    GOLDSTICK_UNROLL
    for (int i = 0; i < kRows; ++i) {
        GOLDSTICK_UNROLL
        for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm512_setzero_si512();
    }
    for (std::int64_t pair = 0; pair < pairs; ++pair, lefts += kPanel, rights += kPanel) {
        __m512i columns[kVectors];
        GOLDSTICK_UNROLL
        for (int v = 0; v < kVectors; ++v) columns[v] = _mm512_loadu_si512(rights + 16 * v);
        GOLDSTICK_UNROLL
        for (int i = 0; i < kRows; ++i) {
            const __m512i value = _mm512_set1_epi32(lefts[i]);
            GOLDSTICK_UNROLL
            for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm512_dpwssd_epi32(sums[i][v], value, columns[v]);
        }
    }
    GOLDSTICK_UNROLL
    for (int i = 0; i < kRows; ++i) {
        GOLDSTICK_UNROLL
        for (int v = 0; v < kVectors; ++v) add_wide(tile[row + i] + 16 * v, sums[i][v]);
    }
}

}  // namespace

GOLDSTICK_VNNI void add_tile_avx512(const std::int16_t* left, const std::int16_t* right, std::int64_t pairs,
                                    std::int64_t together, Tile& tile) {
    for (std::int64_t done = 0; done < pairs; done += together) {
        const std::int64_t count = std::min(together, pairs - done);
        const std::int64_t at = done * 2 * kPanel;
        for (int row = 0; row < kPanel; row += kRows) add_rows(left + at, right + at, count, row, tile);
    }
}

}  // namespace goldstick

#else

namespace goldstick {

void add_tile_avx512(const std::int16_t* left, const std::int16_t* right, std::int64_t pairs, std::int64_t together,
                     Tile& tile) {
    add_tile_scalar(left, right, pairs, together, tile);
}

}  // namespace goldstick

#endif
