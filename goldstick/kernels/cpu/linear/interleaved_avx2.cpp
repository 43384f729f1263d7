// A few tokens and a weight that is prepacked: memory is read from front to back, and codes are used as a shift and
// a mask leave them. A lane is a row, so nothing is added across lanes where a group ends.
#include "base/inline.hpp"
#include "linear/closing_avx2.hpp"
#include "linear/codes_avx2.hpp"
#include "linear/linear.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace goldstick {
namespace {

constexpr std::int64_t kAhead = 1024;  // words between what is read and what is called for

template <Shape shape, bool table, int tokens>
struct Sums {
    using C = Codes<shape, false, table>;
    static constexpr int lanes = lanes_of(shape);  // of a block

    C codes;
    __m256i product[tokens][2]{};  // of 16 rows, since the span began
    __m256 total[tokens][2]{};     // of the spans before

    GOLDSTICK_AVX2 explicit Sums(const Columns& columns) : codes(columns) {}

    GOLDSTICK_AVX2 void clear_products() {
        GOLDSTICK_UNROLL
        for (int t = 0; t < tokens; ++t) {
            product[t][0] = product[t][1] = _mm256_setzero_si256();
        }
    }

    // Add the products of word `d` of each row. A token's activations of the codes shifted by `j` lie `lanes` apart.
    GOLDSTICK_AVX2 GOLDSTICK_INLINE void multiply(const std::uint32_t* block, int d, const std::int32_t* q,
                                                  std::int64_t steps) {
        if (d < words_of(shape)) {
            _mm_prefetch(reinterpret_cast<const char*>(block + d * kRows + kAhead), _MM_HINT_T0);
        }
        const auto low = codes.words(word_of<shape>(block, d)), high = codes.words(word_of<shape>(block + 8, d));
        GOLDSTICK_UNROLL
        for (int j = 0; j < C::shifts; ++j) {
            const __m256i first = C::shifted(low, j), second = C::shifted(high, j);
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
    GOLDSTICK_AVX2 void close(const RowBlock& block, const Chunk& chunk, const std::int32_t* shift, const float* scale) {
        GOLDSTICK_UNROLL
        for (int half = 0; half < 2; ++half) {
            const Steps8 steps = steps_of(block, chunk, half * 8);
            GOLDSTICK_UNROLL
            for (int t = 0; t < tokens; ++t) {
                const __m256i token_shift = _mm256_set1_epi32(shift[t]);
                const __m256 added = closed(product[t][half], steps, token_shift, _mm256_set1_ps(scale[t]));
                total[t][half] = _mm256_add_ps(total[t][half], added);
            }
        }
    }
};

template <Shape shape, bool table, int tokens>
GOLDSTICK_AVX2 void multiply(const Columns& columns, const RowBlock& block, const Activations& activations,
                             std::int64_t begin, float* sums) {
    using S = Sums<shape, table, tokens>;
    S state(columns);
    const std::uint32_t* words = block.words;
    const float* scale = activations.scale + begin;
    const std::int32_t* shift = activations.shift + begin;
    for (const Chunk& chunk : columns.chunks) {
        if (chunk.opens) {
            state.clear_products();
        }
        const std::int32_t* q = activations.codes + activations.of(chunk, begin);
        for (std::int64_t at = 0; at < chunk.padded; at += columns.block_codes(), q += S::C::shifts * S::lanes) {
            if constexpr (is_split(shape)) {
                GOLDSTICK_UNROLL
                for (int d = 0; d < S::lanes; ++d) {
                    state.multiply(words, d, q + d, chunk.steps);
                }
            } else {
                for (int d = 0; d < S::lanes; ++d) {
                    state.multiply(words, d, q + d, chunk.steps);
                }
            }
            words += words_of(shape) * kRows;
        }
        if (chunk.closes) {
            state.close(block, chunk, shift, scale);
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

template <Shape shape, bool table>
void multiply(const Columns& columns, const RowBlock& block, const Activations& activations, std::int64_t begin,
              std::int64_t end, float* sums) {
    for (std::int64_t tokens; begin < end; begin += tokens, sums += tokens * kRows) {
        tokens = std::min<std::int64_t>(end - begin, 4);
        const auto run = tokens == 4   ? multiply<shape, table, 4>
                         : tokens == 3 ? multiply<shape, table, 3>
                         : tokens == 2 ? multiply<shape, table, 2>
                                       : multiply<shape, table, 1>;
        run(columns, block, activations, begin, sums);
    }
}

}  // namespace

void block_interleaved_avx2(const Columns& columns, const RowBlock* block, const Activations& activations,
                            std::int64_t begin, std::int64_t end, float* sums) {
    const auto run = for_shape<true>(columns, [](auto shape, auto table) {
        return multiply<decltype(shape)::value, decltype(table)::value>;
    });
    run(columns, *block, activations, begin, end, sums);
}

}  // namespace goldstick

#endif
