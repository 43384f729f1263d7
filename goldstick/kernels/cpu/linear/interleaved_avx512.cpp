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
template <Shape shape, bool table, int bytes, int tokens>
struct Sums {
    static constexpr bool in_bytes = bytes > 0, halved = bytes == 2;
    using C = WideCodes<shape, in_bytes, table>;
    static constexpr int shifts = C::shifts;
    static constexpr int lanes = lanes_of(shape);  // of a block
    // An instruction's sum is there five cycles later, and two begin in each: so many sums of a token go side by side.
    static constexpr int beside = tokens <= 2 ? 4 : tokens <= 4 ? 2 : 1;
    static constexpr int together = beside > shifts ? beside / shifts : 1;  // words of a row

    C codes;
    __m512i product[tokens][beside]{};           // since the span began
    __m512i low[halved ? tokens : 1][beside]{};  // the same of low bytes
    __m512 total[tokens];                        // of the spans before

    GOLDSTICK_AVX512 explicit Sums(const Columns& columns) : codes(columns) {}

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

    // Add the products of `together` words of each row, from `first` on. The codes shifted by `j` meet activations `lanes`
    // steps apart.
    GOLDSTICK_AVX512 GOLDSTICK_INLINE void multiply(const std::uint32_t* block, int first, const std::int32_t* q,
                                                    const std::int32_t* q_low) {
        GOLDSTICK_UNROLL
        for (int d = 0; d < together; ++d) {
            if (first + d < words_of(shape)) {
                _mm_prefetch(reinterpret_cast<const char*>(block + (first + d) * kRows + kAhead), _MM_HINT_T1);
                _mm_prefetch(reinterpret_cast<const char*>(block + (first + d) * kRows + kNear), _MM_HINT_T0);
            }
        }
        GOLDSTICK_UNROLL
        for (int d = 0; d < together; ++d) {
            const auto word = codes.words(word_of<shape>(block, first + d));
            GOLDSTICK_UNROLL
            for (int j = 0; j < shifts; ++j) {
                const __m512i integers = C::shifted(word, j);
                GOLDSTICK_UNROLL
                for (int t = 0; t < tokens; ++t) {
                    const int at = (j * lanes + d) * tokens + t, i = (d * shifts + j) % beside;
                    product[t][i] = add_products<in_bytes>(product[t][i], integers, q[at]);
                    if constexpr (halved) {
                        low[t][i] = add_products<true>(low[t][i], integers, q_low[at]);
                    }
                }
            }
        }
    }

    // Add what the products of a span come to.
    GOLDSTICK_AVX512 void close(bool shifted, const Steps& steps, const std::int32_t* shift, const float* scale) {
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
            total[t] = _mm512_add_ps(total[t], closed(all, shifted, steps, shift[t], scale[t]));
        }
    }
};

template <Shape shape, bool table, int bytes, int tokens>
GOLDSTICK_AVX512 void multiply(const Columns& columns, const RowBlock& block, const Activations& activations,
                               std::int64_t begin, float* sums) {
    using S = Sums<shape, table, bytes, tokens>;
    S state(columns);
    GOLDSTICK_UNROLL
    for (int t = 0; t < tokens; ++t) {
        state.total[t] = _mm512_setzero_ps();
    }
    const std::uint32_t* words = block.words;
    const bool zeros = block.zero || block.whole_zero;
    const float* scale = activations.scale + begin;
    const std::int32_t* shift = activations.shift + begin;
    for (const Chunk& chunk : columns.chunks) {
        const bool shifted = begins_shifted(chunk, zeros);
        if (chunk.opens) {
            state.open(shifted ? shift : nullptr);
        }
        const std::int32_t* q = activations.codes + activations.of(chunk, begin);
        const std::int32_t* low = S::halved ? activations.low + activations.of(chunk, begin) : q;
        constexpr std::int64_t taken = S::shifts * S::lanes * tokens;
        for (std::int64_t at = 0; at < chunk.padded; at += columns.block_codes(), q += taken, low += taken) {
            if constexpr (is_split(shape)) {
                GOLDSTICK_UNROLL
                for (int d = 0; d < S::lanes; d += S::together) {
                    state.multiply(words, d, q + d * tokens, low + d * tokens);
                }
            } else {
                for (int d = 0; d < S::lanes; d += S::together) {
                    state.multiply(words, d, q + d * tokens, low + d * tokens);
                }
            }
            words += words_of(shape) * kRows;
        }
        if (chunk.closes) {
            const Steps steps = steps_of(block, chunk);
            if (!block.whole_scale) {
                _mm_prefetch(reinterpret_cast<const char*>(block.scale + chunk.group * kRows + kScalesAhead), _MM_HINT_T0);
            }
            state.close(shifted, steps, shift, scale);
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

template <Shape shape, bool table, int bytes, int... tokens>
Run* run_for(std::int64_t count, std::integer_sequence<int, tokens...>) {
    static constexpr Run* functions[] = {nullptr, multiply<shape, table, bytes, tokens + 1>...};
    return functions[count];
}

template <int bytes, int most>
Run* run_for(const Columns& columns, std::int64_t count) {
    return for_shape<true>(columns, [count](auto shape, auto table) {
        const auto tokens = std::make_integer_sequence<int, most>();
        return run_for<decltype(shape)::value, decltype(table)::value, bytes>(count, tokens);
    });
}

}  // namespace

void block_interleaved_avx512(const Columns& columns, const RowBlock* block, const Activations& activations,
                              std::int64_t begin, std::int64_t end, float* sums) {
    for (std::int64_t count; begin < end; begin += count, sums += count * kRows) {
        count = activations.apart(begin);
        Run* const run = activations.low    ? run_for<2, kHalvedTokens>(columns, count)
                         : columns.in_bytes ? run_for<1, kTile512>(columns, count)
                                            : run_for<0, kTile512>(columns, count);
        run(columns, *block, activations, begin, sums);
    }
}

}  // namespace goldstick

#endif
