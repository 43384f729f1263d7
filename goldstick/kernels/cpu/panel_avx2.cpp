// Many tokens: the codes of 16 rows are spread out once, two columns to a 32-bit lane and a row to each lane, and
// multiplied by pairs of activations, six tokens at a time. Lanes are rows, so nothing is added across lanes.
#include "linear.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#define GOLDSTICK_AVX2 __attribute__((target("avx2")))
#define GOLDSTICK_UNROLL _Pragma("GCC unroll 8")  // whole: sums in an array stay in registers only then

namespace goldstick {
namespace {

constexpr std::int64_t kAhead = 128;  // bytes of a row between what is read and what is called for
constexpr std::int64_t kTile = 6;  // 12 sums, 2 vectors of codes, one of activations and one product: 16 registers

struct Panel {
    alignas(64) std::int16_t codes[kChunk * kRows];  // [pairs of columns][16 rows][2]
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

template <Shape shape>
GOLDSTICK_AVX2 void unpack(const Columns& columns, const Chunk& chunk, const RowBlock& block, Panel& panel) {
    constexpr int width = shape == Shape::kBytes ? 8 : 4, shifts = shape == Shape::kBytes ? 2 : 4;
    constexpr int lanes_in = shape == Shape::kHalfNibbles ? 4 : 8;
    const __m256i mask = _mm256_set1_epi32(shape == Shape::kBytes ? 0x00ff00ff : 0x000f000f);
    std::int16_t* out = panel.codes;
    std::uint8_t copies[8 * kBlockBytes];
    for (std::int64_t at = 0; at < chunk.padded / columns.step(); ++at, out += shifts * lanes_in * kRows * 2) {
        const std::int64_t from = chunk.begin * columns.bits / 8 + at * columns.block_bytes();
        for (std::int64_t half = 0; half < kRows; half += 8) {
            const std::uint8_t* rows[8];
            for (int r = 0; r < 8; ++r) {
                rows[r] = block.rows[half + r] + from;
                _mm_prefetch(reinterpret_cast<const char*>(rows[r] + kAhead), _MM_HINT_T0);
                if (at >= chunk.whole) {
                    copy_block(columns, chunk, block.rows[half + r], at, copies + r * kBlockBytes);
                    rows[r] = copies + r * kBlockBytes;
                }
            }
            __m256i lanes[8];
            shape == Shape::kHalfNibbles ? load_half_lanes(rows, lanes) : load_lanes(rows, lanes);
            GOLDSTICK_UNROLL
            for (int d = 0; d < lanes_in; ++d) {
                GOLDSTICK_UNROLL
                for (int j = 0; j < shifts; ++j) {
                    const __m256i pair = _mm256_and_si256(_mm256_srli_epi32(lanes[d], j * width), mask);
                    std::int16_t* to = out + ((j * lanes_in + d) * kRows + half) * 2;
                    _mm256_store_si256(reinterpret_cast<__m256i*>(to), pair);
                }
            }
        }
    }
}

// Six tokens or fewer, and one chunk of the columns.
struct Tile {
    const std::int16_t* codes;   // of the panel
    const std::int16_t* q;       // [tokens, chunk.padded]
    const float* scale;          // [tokens], of the activations
    const std::int32_t* sum;     // [tokens]
    const float* weight_scale;   // [kRows]
    const float* zero;           // [kRows], or null
    std::int32_t middle;         // where zero is null
    std::int32_t* products;      // [tokens][kRows]: of a span's chunks before this one
    float* sums;                 // [tokens][kRows]: of the spans before this one
};

// What the products of a span come to, added to the sums of one token and eight rows.
GOLDSTICK_AVX2 inline void close(__m256i product, __m256 weight_scale, const float* zero, std::int32_t middle,
                                 std::int32_t sum, float scale, float* sums) {
    __m256 centred;
    if (zero) {
        const __m256 shift = _mm256_mul_ps(_mm256_loadu_ps(zero), _mm256_set1_ps(static_cast<float>(sum)));
        centred = _mm256_sub_ps(_mm256_cvtepi32_ps(product), shift);
    } else {
        centred = _mm256_cvtepi32_ps(_mm256_sub_epi32(product, _mm256_set1_epi32(middle * sum)));
    }
    const __m256 added = _mm256_mul_ps(centred, _mm256_mul_ps(weight_scale, _mm256_set1_ps(scale)));
    _mm256_storeu_ps(sums, _mm256_add_ps(_mm256_loadu_ps(sums), added));
}

template <int tokens>
GOLDSTICK_AVX2 void multiply(const Tile& tile, const Chunk& chunk) {
    const std::int64_t padded = chunk.padded;
    auto* products = reinterpret_cast<__m256i*>(tile.products);
    __m256i low[tokens], high[tokens];
    GOLDSTICK_UNROLL
    for (int t = 0; t < tokens; ++t) {
        low[t] = chunk.opens ? _mm256_setzero_si256() : _mm256_loadu_si256(products + 2 * t);
        high[t] = chunk.opens ? _mm256_setzero_si256() : _mm256_loadu_si256(products + 2 * t + 1);
    }
    const auto* codes = reinterpret_cast<const __m256i*>(tile.codes);
    const std::int16_t* q = tile.q;
    for (std::int64_t i = 0; i < padded; i += 2, codes += 2, q += 2) {
        const __m256i first = _mm256_load_si256(codes), second = _mm256_load_si256(codes + 1);
        GOLDSTICK_UNROLL
        for (int t = 0; t < tokens; ++t) {
            std::int32_t pair;
            std::memcpy(&pair, q + t * padded, sizeof pair);
            const __m256i both = _mm256_set1_epi32(pair);
            low[t] = _mm256_add_epi32(low[t], _mm256_madd_epi16(first, both));
            high[t] = _mm256_add_epi32(high[t], _mm256_madd_epi16(second, both));
            asm volatile("" : "+x"(low[t]), "+x"(high[t]));  // one token after the other: there are 16 registers
        }
    }
    if (!chunk.closes) {
        GOLDSTICK_UNROLL
        for (int t = 0; t < tokens; ++t) {
            _mm256_storeu_si256(products + 2 * t, low[t]);
            _mm256_storeu_si256(products + 2 * t + 1, high[t]);
        }
        return;
    }
    const __m256 low_scale = _mm256_loadu_ps(tile.weight_scale), high_scale = _mm256_loadu_ps(tile.weight_scale + 8);
    const float *zero = tile.zero, *high_zero = zero ? zero + 8 : nullptr, *scale = tile.scale;
    const std::int32_t middle = tile.middle, *sum = tile.sum;
    float* sums = tile.sums;
    GOLDSTICK_UNROLL
    for (int t = 0; t < tokens; ++t, sums += kRows) {
        close(low[t], low_scale, zero, middle, sum[t], scale[t], sums);
        close(high[t], high_scale, high_zero, middle, sum[t], scale[t], sums + 8);
    }
}

using Multiply = void(const Tile&, const Chunk&);
constexpr Multiply* kMultiply[kTile + 1] = {nullptr,     multiply<1>, multiply<2>, multiply<3>,
                                            multiply<4>, multiply<5>, multiply<6>};

}  // namespace

void block_panel_avx2(const Columns& columns, const RowBlock& block, const Activations& activations,
                      std::int64_t begin, std::int64_t end, float* sums) {
    std::fill_n(sums, (end - begin) * kRows, 0.0f);
    Panel panel;
    std::int32_t products[kTokens * kRows];
    const auto spread = columns.shape == Shape::kNibbles       ? unpack<Shape::kNibbles>
                        : columns.shape == Shape::kHalfNibbles ? unpack<Shape::kHalfNibbles>
                                                               : unpack<Shape::kBytes>;
    std::int64_t part = begin;
    for (const Chunk& chunk : columns.chunks) {
        spread(columns, chunk, block, panel);
        const float* zero = block.zero ? block.zero + chunk.group * kRows : nullptr;
        for (std::int64_t token = begin; token < end; token += kTile) {
            const std::int64_t at = (token - begin) * kRows, own = part + token - begin;
            kMultiply[std::min(kTile, end - token)](
                {panel.codes, activations.of(chunk, token), activations.scale + own, activations.sum + own,
                 block.scale + chunk.group * kRows, zero, columns.middle(), products + at, sums + at},
                chunk);
        }
        part += activations.tokens;
    }
}

}  // namespace goldstick

#else

namespace goldstick {

void block_panel_avx2(const Columns& columns, const RowBlock& block, const Activations& activations,
                      std::int64_t begin, std::int64_t end, float* sums) {
    block_scalar(columns, block, activations, begin, end, sums);
}

}  // namespace goldstick

#endif
