// A few tokens and a weight that is prepacked: memory is read from front to back, and codes are used as a shift and
// a mask leave them. A lane is a row, so nothing is added across lanes where a group ends.
#include "base/inline.hpp"
#include "linear/linear.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#define GOLDSTICK_UNROLL _Pragma("GCC unroll 8")  // whole: sums in an array stay in registers only then

namespace goldstick {
namespace {

constexpr std::int64_t kAhead = 1024;  // words between what is read and what is called for

template <Shape shape, int tokens>
struct Sums {
    static constexpr int width = shape == Shape::kBytes ? 8 : 4, shifts = 16 / width;
    static constexpr int lanes = shape == Shape::kHalfNibbles ? 4 : 8;  // words of a block

    __m256i product[tokens][2]{};  // of 16 rows, since the span began
    __m256 total[tokens][2]{};     // of the spans before

    GOLDSTICK_AVX2 void clear_products() {
        GOLDSTICK_UNROLL
        for (int t = 0; t < tokens; ++t) {
            product[t][0] = product[t][1] = _mm256_setzero_si256();
        }
    }

    // Add the products of a word of each row. A token's activations of the codes shifted by `j` lie `lanes` apart.
    GOLDSTICK_AVX2 void multiply(const std::uint32_t* words, const std::int32_t* q, std::int64_t steps) {
        const __m256i mask = _mm256_set1_epi16((1 << width) - 1);
        const __m256i low = _mm256_load_si256(reinterpret_cast<const __m256i*>(words));
        const __m256i high = _mm256_load_si256(reinterpret_cast<const __m256i*>(words + 8));
        GOLDSTICK_UNROLL
        for (int j = 0; j < shifts; ++j) {
            __m256i first = _mm256_srli_epi16(low, j * width), second = _mm256_srli_epi16(high, j * width);
            if (j < shifts - 1) {
                first = _mm256_and_si256(first, mask);
                second = _mm256_and_si256(second, mask);
            }
            GOLDSTICK_UNROLL
            for (int t = 0; t < tokens; ++t) {
                const __m256i values = _mm256_set1_epi32(q[t * steps + j * lanes]);
                product[t][0] = _mm256_add_epi32(product[t][0], _mm256_madd_epi16(first, values));
                product[t][1] = _mm256_add_epi32(product[t][1], _mm256_madd_epi16(second, values));
                asm volatile("" : "+x"(product[t][0]), "+x"(product[t][1]));  // in this order: there are 16 registers
            }
        }
    }

    // Add what the products of a span come to.
    GOLDSTICK_AVX2 void close(const float* weight_scale, const float* zero, const std::int32_t* shift,
                              const float* scale) {
        GOLDSTICK_UNROLL
        for (int half = 0; half < 2; ++half) {
            const __m256 row_scale = _mm256_loadu_ps(weight_scale + half * 8);
            GOLDSTICK_UNROLL
            for (int t = 0; t < tokens; ++t) {
                __m256 centred;
                if (zero) {
                    const __m256 token_shift = _mm256_set1_ps(static_cast<float>(shift[t]));
                    const __m256 shifted = _mm256_mul_ps(_mm256_loadu_ps(zero + half * 8), token_shift);
                    centred = _mm256_sub_ps(_mm256_cvtepi32_ps(product[t][half]), shifted);
                } else {
                    const __m256i shifted = _mm256_add_epi32(product[t][half], _mm256_set1_epi32(shift[t]));
                    centred = _mm256_cvtepi32_ps(shifted);
                }
                const __m256 factor = _mm256_mul_ps(row_scale, _mm256_set1_ps(scale[t]));
                total[t][half] = _mm256_add_ps(total[t][half], _mm256_mul_ps(centred, factor));
            }
        }
    }
};

template <Shape shape, int tokens>
GOLDSTICK_AVX2 void multiply(const Columns& columns, const RowBlock& block, const Activations& activations,
                             std::int64_t begin, float* sums) {
    using S = Sums<shape, tokens>;
    S state;
    const std::uint32_t* words = block.words;
    const float* scale = activations.scale + begin;
    const std::int32_t* shift = activations.shift + begin;
    for (const Chunk& chunk : columns.chunks) {
        if (chunk.opens) {
            state.clear_products();
        }
        const std::int32_t* q = activations.codes + activations.of(chunk, begin);
        for (std::int64_t at = 0; at < chunk.padded; at += columns.block_codes(), q += S::shifts * S::lanes) {
            for (int d = 0; d < S::lanes; ++d, words += kRows) {
                _mm_prefetch(reinterpret_cast<const char*>(words + kAhead), _MM_HINT_T0);
                state.multiply(words, q + d, chunk.steps);
            }
        }
        if (chunk.closes) {
            const std::int64_t group = chunk.group * kRows;
            const float* zero = block.zero ? block.zero + group : nullptr;
            state.close(block.scale + group, zero, shift, scale);
        }
        scale += activations.tokens;
        shift += activations.tokens;
    }
    GOLDSTICK_UNROLL
    for (int t = 0; t < tokens; ++t) {
        _mm256_storeu_ps(sums + t * kRows, state.total[t][0]);
        _mm256_storeu_ps(sums + t * kRows + 8, state.total[t][1]);
    }
}

template <Shape shape>
void multiply(const Columns& columns, const RowBlock& block, const Activations& activations, std::int64_t begin,
              std::int64_t end, float* sums) {
    for (std::int64_t tokens; begin < end; begin += tokens, sums += tokens * kRows) {
        tokens = std::min<std::int64_t>(end - begin, 4);
        const auto run = tokens == 4   ? multiply<shape, 4>
                         : tokens == 3 ? multiply<shape, 3>
                         : tokens == 2 ? multiply<shape, 2>
                                       : multiply<shape, 1>;
        run(columns, block, activations, begin, sums);
    }
}

}  // namespace

void block_interleaved_avx2(const Columns& columns, const RowBlock* block, const Activations& activations,
                            std::int64_t begin, std::int64_t end, float* sums) {
    const auto run = columns.shape == Shape::kNibbles       ? multiply<Shape::kNibbles>
                     : columns.shape == Shape::kHalfNibbles ? multiply<Shape::kHalfNibbles>
                                                            : multiply<Shape::kBytes>;
    run(columns, *block, activations, begin, end, sums);
}

}  // namespace goldstick

#endif
