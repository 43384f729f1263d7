// One or two tokens: most of the time is that of reading the weight, so codes are used as they are unpacked. Four rows go
// side by side, and while they are read, the memory after them is called for.
#include "inline.hpp"
#include "linear.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#define GOLDSTICK_UNROLL _Pragma("GCC unroll 8")  // whole: sums in an array stay in registers only then

namespace goldstick {
namespace {

constexpr int kStreams = 4;
constexpr std::int64_t kAhead = 8192;  // bytes between what is read and what is called for, at least

// Four rows' products with `tokens` tokens in `sums` vectors for each token.
//
// A block of 32 bytes fills a vector. Two rows' blocks of 16 bytes share one, and so do their sums.
template <Shape shape>
struct Codes {
    static constexpr bool halves = shape == Shape::kHalfNibbles;
    static constexpr int sums = halves ? 2 : 4, shifts = shape == Shape::kBytes ? 2 : 4;
    static constexpr int width = shape == Shape::kBytes ? 8 : 4;
    static constexpr std::int64_t bytes = halves ? 16 : 32, step = bytes * 8 / width;

    // Block `i` of four that begin `stride` bytes apart, or blocks 2i and 2i + 1.
    GOLDSTICK_AVX2 static __m256i load(const std::uint8_t* from, std::int64_t stride, int i) {
        if constexpr (halves) {
            const auto* low = reinterpret_cast<const __m128i*>(from + 2 * i * stride);
            const auto* high = reinterpret_cast<const __m128i*>(from + (2 * i + 1) * stride);
            return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)), _mm_loadu_si128(high), 1);
        } else {
            return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i * stride));
        }
    }

    // The activations that belong to codes shifted by `j`.
    GOLDSTICK_AVX2 static __m256i activations(const std::int16_t* q, int j) {
        if constexpr (halves) {
            return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q + j * 8)));
        } else {
            return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + j * 16));
        }
    }

    // The four rows' sums.
    GOLDSTICK_AVX2 static __m128i total(const __m256i v[sums]) {
        if constexpr (halves) {  // rows 0 and 2 in the lower half, 1 and 3 in the upper
            const __m256i pairs = _mm256_hadd_epi32(v[0], v[1]);
            const __m256i rows = _mm256_hadd_epi32(pairs, pairs);
            return _mm_unpacklo_epi32(_mm256_castsi256_si128(rows), _mm256_extracti128_si256(rows, 1));
        } else {
            const __m256i pairs = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
            return _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
        }
    }
};

// Add the products of a block of each row, which begin at `bytes` and `stride` bytes apart.
template <Shape shape, int tokens>
GOLDSTICK_AVX2 inline void multiply_block(const std::uint8_t* bytes, std::int64_t stride, const std::int16_t* q,
                                          std::int64_t q_stride, __m256i (&product)[tokens][Codes<shape>::sums]) {
    using C = Codes<shape>;
    const __m256i mask = _mm256_set1_epi16((1 << C::width) - 1);
    GOLDSTICK_UNROLL
    for (int i = 0; i < C::sums; ++i) {
        const __m256i packed = C::load(bytes, stride, i);
        GOLDSTICK_UNROLL
        for (int j = 0; j < C::shifts; ++j) {
            const __m256i shifted = _mm256_srli_epi16(packed, j * C::width);
            const __m256i codes = j == C::shifts - 1 ? shifted : _mm256_and_si256(shifted, mask);
            GOLDSTICK_UNROLL
            for (int t = 0; t < tokens; ++t) {
                const __m256i values = C::activations(q + t * q_stride, j);
                product[t][i] = _mm256_add_epi32(product[t][i], _mm256_madd_epi16(codes, values));
            }
        }
    }
}

// What the products of a span come to, for four rows.
GOLDSTICK_AVX2 inline __m128 close(__m128i dot, const float* weight_scale, const float* zero,
                                   std::int32_t middle, std::int32_t sum, float scale) {
    __m128 centred;
    if (zero) {
        const __m128 shift = _mm_mul_ps(_mm_loadu_ps(zero), _mm_set1_ps(static_cast<float>(sum)));
        centred = _mm_sub_ps(_mm_cvtepi32_ps(dot), shift);
    } else {
        centred = _mm_cvtepi32_ps(_mm_sub_epi32(dot, _mm_set1_epi32(middle * sum)));
    }
    return _mm_mul_ps(centred, _mm_mul_ps(_mm_loadu_ps(weight_scale), _mm_set1_ps(scale)));
}

// Sums of four rows, for `tokens` tokens from `begin` on.
template <Shape shape, int tokens>
GOLDSTICK_AVX2 void multiply_rows(const Columns& columns, const RowBlock& block, const Activations& activations,
                                  std::int64_t begin, std::int64_t first, float* sums) {
    using C = Codes<shape>;
    const std::uint8_t* const* rows = block.rows + first;
    const std::int64_t stride = columns.row_bytes, all = activations.tokens;
    const bool apart = rows[kStreams - 1] == rows[0] + (kStreams - 1) * stride;
    const std::uint8_t* ahead = rows[0] + std::max(kAhead, kStreams * stride);
    __m256i product[tokens][C::sums]{};
    __m128 total[tokens];
    GOLDSTICK_UNROLL
    for (int t = 0; t < tokens; ++t) {
        total[t] = _mm_setzero_ps();
    }
    const float* scale = activations.scale + begin;
    const std::int32_t* sum = activations.sum + begin;
    for (const Chunk& chunk : columns.chunks) {
        if (chunk.opens) {
            GOLDSTICK_UNROLL
            for (int i = 0; i < tokens * C::sums; ++i) {
                product[i / C::sums][i % C::sums] = _mm256_setzero_si256();
            }
        }
        const auto* q = reinterpret_cast<const std::int16_t*>(activations.of(chunk, begin));
        const std::uint8_t* bytes = rows[0] + chunk.begin * columns.bits / 8;
        const std::int64_t whole = apart ? chunk.whole : 0, padded = chunk.padded;
        for (std::int64_t at = 0; at < whole; ++at, bytes += C::bytes, q += C::step, ahead += kStreams * C::bytes) {
            _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
            if (!C::halves) {
                _mm_prefetch(reinterpret_cast<const char*>(ahead + 64), _MM_HINT_T0);
            }
            multiply_block<shape, tokens>(bytes, stride, q, padded, product);
        }
        for (std::int64_t at = whole; at < padded / C::step; ++at, q += C::step) {
            std::uint8_t copies[kStreams * kBlockBytes];
            for (int r = 0; r < kStreams; ++r) {
                copy_block(columns, chunk, rows[r], at, copies + r * kBlockBytes);
            }
            multiply_block<shape, tokens>(copies, kBlockBytes, q, padded, product);
        }
        if (chunk.closes) {
            const std::int64_t group = chunk.group * kRows + first;
            const float* zero = block.zero ? block.zero + group : nullptr;
            GOLDSTICK_UNROLL
            for (int t = 0; t < tokens; ++t) {
                total[t] = _mm_add_ps(
                    total[t], close(C::total(product[t]), block.scale + group, zero, columns.middle(), sum[t], scale[t]));
            }
        }
        scale += all;
        sum += all;
    }
    GOLDSTICK_UNROLL
    for (int t = 0; t < tokens; ++t) {
        _mm_storeu_ps(sums + t * kRows + first, total[t]);
    }
}

template <Shape shape, int tokens>
void multiply_all(const Columns& columns, const RowBlock& block, const Activations& activations, std::int64_t begin,
                  float* sums) {
    for (std::int64_t first = 0; first < kRows; first += kStreams) {
        multiply_rows<shape, tokens>(columns, block, activations, begin, first, sums);
    }
}

}  // namespace

void block_dot_avx2(const Columns& columns, const RowBlock& block, const Activations& activations, std::int64_t begin,
                    std::int64_t end, float* sums) {
    constexpr auto kNibbles = Shape::kNibbles, kHalfNibbles = Shape::kHalfNibbles, kBytes = Shape::kBytes;
    const auto one = columns.shape == kNibbles       ? multiply_all<kNibbles, 1>
                     : columns.shape == kHalfNibbles ? multiply_all<kHalfNibbles, 1>
                                                     : multiply_all<kBytes, 1>;
    const auto two = columns.shape == kNibbles       ? multiply_all<kNibbles, 2>
                     : columns.shape == kHalfNibbles ? multiply_all<kHalfNibbles, 2>
                                                     : multiply_all<kBytes, 2>;
    for (; begin < end; begin += 2, sums += 2 * kRows) {
        (end - begin > 1 ? two : one)(columns, block, activations, begin, sums);
    }
}

}  // namespace goldstick

#else

namespace goldstick {

void block_dot_avx2(const Columns& columns, const RowBlock& block, const Activations& activations, std::int64_t begin,
                    std::int64_t end, float* sums) {
    block_scalar(columns, block, activations, begin, end, sums);
}

}  // namespace goldstick

#endif
