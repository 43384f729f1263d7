// Up to four tokens and a weight of superblocks that is prepacked, with AVX-512 VNNI: scales are integers, and one span is
// one group and one block, so that nothing is looked up between two of them. Of one or two tokens 32 rows go together, which
// share the inputs that are read.
#include "linear/avx512.hpp"
#include "linear/linear.hpp"

#if defined(__x86_64__)

namespace goldstick {
namespace {

// Bytes between what is read and what is called for, into the second cache and from there into the first.
constexpr std::int64_t kAhead = 12288, kNear = 512, kScalesAhead = 512;

// Rows that are multiplied together: what is read next of them, and their sums.
template <Shape shape, bool minimums, int tokens>
struct Rows {
    static constexpr int lanes = lanes_of(shape), shifts = WideCodes<shape, true, false>::shifts;

    const std::uint32_t* words;
    const char* end;    // of the words
    std::int64_t jump;  // bytes from there to those that are read next
    const std::int8_t* whole;
    const std::int8_t* minimum;
    const float* units;
    const float* zero_units;
    __m512 unit, zero_unit, total[tokens];
    // An instruction's sum is there four cycles later: two sums of each byte go side by side.
    __m512i high[tokens][2], low[tokens][2];

    GOLDSTICK_AVX512 GOLDSTICK_INLINE void begin(const RowBlock& block, std::int64_t bytes, std::int64_t further) {
        words = block.words;
        end = reinterpret_cast<const char*>(words) + bytes;
        jump = further;
        whole = block.whole_scale;
        minimum = block.whole_zero;
        units = block.unit;
        zero_units = block.zero_unit;
        GOLDSTICK_UNROLL
        for (int t = 0; t < tokens; ++t) {
            total[t] = _mm512_setzero_ps();
        }
    }

    GOLDSTICK_AVX512 GOLDSTICK_INLINE void call_ahead() const {
        const char* const at = reinterpret_cast<const char*>(words);
        const char* const far = at + kAhead + (at + kAhead < end ? 0 : jump);
        GOLDSTICK_UNROLL
        for (int word = 0; word < words_of(shape); ++word) {
            _mm_prefetch(far + word * 64, _MM_HINT_T1);
            _mm_prefetch(at + kNear + word * 64, _MM_HINT_T0);
        }
    }

    GOLDSTICK_AVX512 GOLDSTICK_INLINE void next_superblock() {
        unit = _mm512_load_ps(units);
        units += kRows;
        _mm_prefetch(reinterpret_cast<const char*>(whole) + kScalesAhead, _MM_HINT_T0);
        if constexpr (minimums) {
            zero_unit = _mm512_load_ps(zero_units);
            zero_units += kRows;
            _mm_prefetch(reinterpret_cast<const char*>(minimum) + kScalesAhead, _MM_HINT_T0);
        }
    }

    GOLDSTICK_AVX512 GOLDSTICK_INLINE void clear() {
        GOLDSTICK_UNROLL
        for (int t = 0; t < tokens; ++t) {
            high[t][0] = high[t][1] = low[t][0] = low[t][1] = _mm512_setzero_si512();
        }
    }

    GOLDSTICK_AVX512 GOLDSTICK_INLINE __m512i word(int d) const {
        __m512i packed = word_of<shape>(words, d);
        asm volatile("" : "+v"(packed));  // read once
        return packed;
    }

    GOLDSTICK_AVX512 GOLDSTICK_INLINE void add(int t, int chain, __m512i codes, __m512i q_high, __m512i q_low) {
        high[t][chain] = _mm512_dpbusd_epi32(high[t][chain], codes, q_high);
        low[t][chain] = _mm512_dpbusd_epi32(low[t][chain], codes, q_low);
    }

    GOLDSTICK_AVX512 GOLDSTICK_INLINE static __m512 numbers_at(const std::int8_t* numbers) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(numbers))));
    }

    // Add what the products of a group come to.
    GOLDSTICK_AVX512 GOLDSTICK_INLINE void close(const float* scale, const std::int32_t* shift) {
        const __m512 step = _mm512_mul_ps(numbers_at(whole), unit);
        __m512 least = step;
        if constexpr (minimums) {
            least = _mm512_mul_ps(numbers_at(minimum), zero_unit);
            minimum += kRows;
        }
        GOLDSTICK_UNROLL
        for (int t = 0; t < tokens; ++t) {
            const __m512 all = _mm512_set1_ps(scale[t]);
            const __m512i upper = _mm512_slli_epi32(_mm512_add_epi32(high[t][0], high[t][1]), 8);
            const __m512i product = _mm512_add_epi32(upper, _mm512_add_epi32(low[t][0], low[t][1]));
            __m512 added;
            if constexpr (minimums) {
                const __m512 of_zeros = _mm512_mul_ps(least, _mm512_set1_ps(static_cast<float>(shift[t])));
                added = _mm512_mul_ps(_mm512_sub_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(product), step), of_zeros), all);
            } else {
                const __m512i centred = _mm512_add_epi32(product, _mm512_set1_epi32(shift[t]));
                added = _mm512_mul_ps(_mm512_cvtepi32_ps(centred), _mm512_mul_ps(step, all));
            }
            total[t] = _mm512_add_ps(total[t], added);
        }
        whole += kRows;
        words += words_of(shape) * kRows;
    }
};

template <Shape shape, bool minimums, int tokens>
GOLDSTICK_AVX512 void multiply(const Columns& columns, const RowBlock* block, const Activations& activations,
                               std::int64_t begin, float* sums) {
    using R = Rows<shape, minimums, tokens>;
    using C = WideCodes<shape, true, false>;
    constexpr int together = tokens <= kPairedTokens ? 2 : 1;
    const auto groups = static_cast<std::int64_t>(columns.chunks.size());
    const std::int64_t of_superblock = groups / (columns.chunks.back().superblock + 1);
    const float* scale = activations.scale + begin;
    const std::int32_t* shift = activations.shift + begin;
    const std::int32_t* q = activations.codes + activations.of(columns.chunks[0], begin);
    const std::int32_t* q_low = activations.low + activations.of(columns.chunks[0], begin);
    const std::int64_t bytes = columns.words() * kRows * static_cast<std::int64_t>(sizeof(std::uint32_t));
    R rows[together];
    GOLDSTICK_UNROLL
    for (int r = 0; r < together; ++r) {
        rows[r].begin(block[r], bytes, (together - 1) * bytes);
    }
    for (std::int64_t first = 0; first < groups; first += of_superblock) {
        GOLDSTICK_UNROLL
        for (int r = 0; r < together; ++r) {
            rows[r].next_superblock();
        }
        for (std::int64_t g = 0; g < of_superblock; ++g) {
            GOLDSTICK_UNROLL
            for (int r = 0; r < together; ++r) {
                rows[r].clear();
                rows[r].call_ahead();
            }
            GOLDSTICK_UNROLL
            for (int d = 0; d < R::lanes; ++d) {
                __m512i packed[together];
                GOLDSTICK_UNROLL
                for (int r = 0; r < together; ++r) {
                    packed[r] = rows[r].word(d);
                }
                GOLDSTICK_UNROLL
                for (int j = 0; j < R::shifts; ++j) {
                    GOLDSTICK_UNROLL
                    for (int t = 0; t < tokens; ++t) {
                        const int at = (j * R::lanes + d) * tokens + t;
                        const __m512i upper = _mm512_set1_epi32(q[at]), lower = _mm512_set1_epi32(q_low[at]);
                        GOLDSTICK_UNROLL
                        for (int r = 0; r < together; ++r) {
                            rows[r].add(t, (d * R::shifts + j) % 2, C::shifted({packed[r], packed[r]}, j), upper, lower);
                        }
                    }
                }
            }
            GOLDSTICK_UNROLL
            for (int r = 0; r < together; ++r) {
                rows[r].close(scale, shift);
            }
            q += R::shifts * R::lanes * tokens;
            q_low += R::shifts * R::lanes * tokens;
            scale += activations.tokens;
            shift += activations.tokens;
        }
    }
    GOLDSTICK_UNROLL
    for (int r = 0; r < together; ++r) {
        GOLDSTICK_UNROLL
        for (int t = 0; t < tokens; ++t) {
            _mm512_storeu_ps(sums + (r * tokens + t) * kRows, rows[r].total[t]);
        }
    }
}

using Run = void(const Columns&, const RowBlock*, const Activations&, std::int64_t, float*);

template <Shape shape, bool minimums, int... tokens>
Run* run_for(std::int64_t count, std::integer_sequence<int, tokens...>) {
    static constexpr Run* functions[] = {nullptr, multiply<shape, minimums, tokens + 1>...};
    return functions[count];
}

}  // namespace

void block_superblocks_avx512(const Columns& columns, const RowBlock* block, const Activations& activations,
                              std::int64_t begin, std::int64_t end, float* sums) {
    Run* const run = for_shape<true>(columns, [&](auto shape, auto) {
        constexpr auto tokens = std::make_integer_sequence<int, kHalvedTokens>();
        constexpr Shape known = decltype(shape)::value;
        return block->minimums ? run_for<known, true>(end - begin, tokens) : run_for<known, false>(end - begin, tokens);
    });
    run(columns, block, activations, begin, sums);  // all tokens are one tile
}

}  // namespace goldstick

#endif
