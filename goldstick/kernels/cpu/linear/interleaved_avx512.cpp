// A few tokens and a weight that is prepacked, with AVX-512 VNNI: one vector of sixteen rows, up to sixteen tokens
// side by side, codes used as a shift and a mask leave them.
#include "linear/avx512.hpp"
#include "linear/linear.hpp"

#if defined(__x86_64__)

namespace goldstick {
namespace {

// Numbers between what is read and what is called for, into the second cache and from there into the first.
constexpr std::int64_t kAhead = 1024, kNear = 256, kScalesAhead = 128;

// `bytes` of each activation are multiplied as such; 0: 16 bits at once.
template <Shape shape, int bytes, int tokens>
struct Sums {
    static constexpr bool in_bytes = bytes > 0, halved = bytes == 2;
    static constexpr int width = shape == Shape::kBytes ? 8 : 4, shifts = 32 / width / (in_bytes ? 4 : 2);
    static constexpr int lanes = shape == Shape::kHalfNibbles ? 4 : 8;  // words of a block
    // An instruction's sum is there five cycles later, and two begin in each: so many sums of a token go side by side.
    static constexpr int beside = tokens <= 2 ? 4 : tokens <= 4 ? 2 : 1;
    static constexpr int together = beside > shifts ? beside / shifts : 1;  // words of a row

    __m512i product[tokens][beside]{};           // since the span began
    __m512i low[halved ? tokens : 1][beside]{};  // the same of low bytes
    __m512 total[tokens];                        // of the spans before

    // Sums begin with 0, or with the token's shift.
    GOLDSTICK_AVX512 void open(const std::int32_t* shift) {
        GOLDSTICK_UNROLL
        for (int t = 0; t < tokens; ++t) {
            GOLDSTICK_UNROLL
            for (int i = 0; i < beside; ++i) {
                product[t][i] = _mm512_setzero_si512();
                if constexpr (halved) {
                    low[t][i] = _mm512_setzero_si512();
                }
            }
            __m512i& first = halved ? low[t][0] : product[t][0];
            first = shift ? _mm512_set1_epi32(shift[t]) : first;
        }
    }

    // Add the products of `together` words of each row. The codes shifted by `j` meet activations `lanes` steps apart.
    GOLDSTICK_AVX512 void multiply(const std::uint32_t* words, const std::int32_t* q, const std::int32_t* q_low) {
        const __m512i mask = in_bytes ? _mm512_set1_epi8((1 << width) - 1) : _mm512_set1_epi16((1 << width) - 1);
        GOLDSTICK_UNROLL
        for (int d = 0; d < together; ++d) {
            const __m512i word = _mm512_load_si512(words + d * kRows);
            GOLDSTICK_UNROLL
            for (int j = 0; j < shifts; ++j) {
                const __m512i shifted = j == 0 ? word : _mm512_srli_epi32(word, j * width);
                const __m512i codes = shifts == 1 ? word : _mm512_and_si512(shifted, mask);
                GOLDSTICK_UNROLL
                for (int t = 0; t < tokens; ++t) {
                    const int at = (j * lanes + d) * tokens + t, i = (d * shifts + j) % beside;
                    product[t][i] = add_products<in_bytes>(product[t][i], codes, q[at]);
                    if constexpr (halved) {
                        low[t][i] = add_products<true>(low[t][i], codes, q_low[at]);
                    }
                }
            }
        }
    }

    // Add what the products of a span come to.
    GOLDSTICK_AVX512 void close(bool shifted, __m512 weight_scale, const float* zero, const std::int32_t* shift,
                                const float* scale) {
        GOLDSTICK_UNROLL
        for (int t = 0; t < tokens; ++t) {
            __m512i all = product[t][0];
            GOLDSTICK_UNROLL
            for (int i = 1; i < beside; ++i) {
                all = _mm512_add_epi32(all, product[t][i]);
            }
            if constexpr (halved) {
                all = _mm512_slli_epi32(all, 8);
                GOLDSTICK_UNROLL
                for (int i = 0; i < beside; ++i) {
                    all = _mm512_add_epi32(all, low[t][i]);
                }
            }
            const __m512 found = centred(all, shifted, zero, shift[t]);
            total[t] = _mm512_add_ps(total[t], scaled(found, weight_scale, scale[t]));
        }
    }
};

template <Shape shape, int bytes, int tokens>
GOLDSTICK_AVX512 void multiply(const Columns& columns, const RowBlock& block, const Activations& activations,
                               std::int64_t begin, float* sums) {
    using S = Sums<shape, bytes, tokens>;
    S state;
    GOLDSTICK_UNROLL
    for (int t = 0; t < tokens; ++t) {
        state.total[t] = _mm512_setzero_ps();
    }
    const std::uint32_t* words = block.words;
    const float* scale = activations.scale + begin;
    const std::int32_t* shift = activations.shift + begin;
    for (const Chunk& chunk : columns.chunks) {
        const bool shifted = begins_shifted(chunk, block.zero);
        if (chunk.opens) {
            state.open(shifted ? shift : nullptr);
        }
        const std::int32_t* q = activations.codes + activations.of(chunk, begin);
        const std::int32_t* low = S::halved ? activations.low + activations.of(chunk, begin) : q;
        constexpr std::int64_t taken = S::shifts * S::lanes * tokens;
        for (std::int64_t at = 0; at < chunk.padded; at += columns.block_codes(), q += taken, low += taken) {
            for (int d = 0; d < S::lanes; d += S::together, words += S::together * kRows) {
                GOLDSTICK_UNROLL
                for (int i = 0; i < S::together; ++i) {
                    _mm_prefetch(reinterpret_cast<const char*>(words + i * kRows + kAhead), _MM_HINT_T1);
                    _mm_prefetch(reinterpret_cast<const char*>(words + i * kRows + kNear), _MM_HINT_T0);
                }
                state.multiply(words, q + d * tokens, low + d * tokens);
            }
        }
        if (chunk.closes) {
            const std::int64_t group = chunk.group * kRows;
            _mm_prefetch(reinterpret_cast<const char*>(block.scale + group + kScalesAhead), _MM_HINT_T0);
            const float* zero = block.zero ? block.zero + group : nullptr;
            state.close(shifted, _mm512_loadu_ps(block.scale + group), zero, shift, scale);
        }
        scale += activations.tokens;
        shift += activations.tokens;
    }
    GOLDSTICK_UNROLL
    for (int t = 0; t < tokens; ++t) {
        _mm512_storeu_ps(sums + t * kRows, state.total[t]);
    }
}

using Run = void(const Columns&, const RowBlock&, const Activations&, std::int64_t, float*);

template <Shape shape, int bytes, int... tokens>
Run* run_for(std::int64_t count, std::integer_sequence<int, tokens...>) {
    static constexpr Run* functions[] = {nullptr, multiply<shape, bytes, tokens + 1>...};
    return functions[count];
}

template <int bytes, int most>
Run* run_for(Shape shape, std::int64_t count) {
    const auto tokens = std::make_integer_sequence<int, most>();
    return shape == Shape::kNibbles       ? run_for<Shape::kNibbles, bytes>(count, tokens)
           : shape == Shape::kHalfNibbles ? run_for<Shape::kHalfNibbles, bytes>(count, tokens)
                                          : run_for<Shape::kBytes, bytes>(count, tokens);
}

}  // namespace

void block_interleaved_avx512(const Columns& columns, const RowBlock* block, const Activations& activations,
                              std::int64_t begin, std::int64_t end, float* sums) {
    for (std::int64_t count; begin < end; begin += count, sums += count * kRows) {
        count = activations.apart(begin);
        Run* const run = activations.low    ? run_for<2, kHalvedTokens>(columns.shape, count)
                         : columns.in_bytes ? run_for<1, kTile512>(columns.shape, count)
                                            : run_for<0, kTile512>(columns.shape, count);
        run(columns, *block, activations, begin, sums);
    }
}

}  // namespace goldstick

#endif
