// Products of a panel with AVX-512 VNNI: one vector of sixteen rows, up to sixteen tokens at a time. Four products of
// bytes are added in 32 bits at once, so none of them can exceed anything.
#include "linear/avx512.hpp"
#include "linear/gemm.hpp"

#if defined(__x86_64__)

namespace goldstick {
namespace {

template <bool in_bytes, int tokens, bool calls>
GOLDSTICK_AVX512 inline void add_all(const Strip& strip, const Chunk& chunk, const std::int32_t* q,
                                     __m512i (&product)[tokens]) {
    for (std::int64_t i = 0; i < chunk.steps; ++i, q += tokens) {
        if (calls) {
            _mm_prefetch(reinterpret_cast<const char*>(strip.rows->ahead + strip.lines[i]), _MM_HINT_T1);
        }
        _mm_prefetch(reinterpret_cast<const char*>(q + tokens * chunk.steps), _MM_HINT_T0);
        const __m512i codes = _mm512_load_si512(strip.rows->codes + i * kRows);
        GOLDSTICK_UNROLL
        for (int t = 0; t < tokens; ++t) {
            product[t] = add_products<in_bytes>(product[t], codes, q[t]);
        }
    }
}

template <bool in_bytes, int tokens>
GOLDSTICK_AVX512 void multiply(const Strip& strip, const Chunk& chunk) {
    const Rows& rows = *strip.rows;
    const bool shifted = begins_shifted(chunk, rows.zero != nullptr);
    const Steps steps = steps_of(rows.weight_scale, rows.zero, rows.minimums);
    const std::int32_t *q = strip.q, *shift = strip.shift;
    const float* scale = strip.scale;
    std::int32_t* products = rows.products;
    float* sums = rows.sums;
    for (std::int64_t tile = 0; tile < strip.tiles; ++tile, q += tokens * chunk.steps) {
        __m512i product[tokens];
        GOLDSTICK_UNROLL
        for (int t = 0; t < tokens; ++t) {
            product[t] = shifted       ? _mm512_set1_epi32(shift[t])
                         : chunk.opens ? _mm512_setzero_si512()
                                       : _mm512_loadu_si512(products + t * kRows);
        }
        if (tile == 0) {
            add_all<in_bytes, tokens, true>(strip, chunk, q, product);
        } else {
            add_all<in_bytes, tokens, false>(strip, chunk, q, product);
        }
        GOLDSTICK_UNROLL
        for (int t = 0; t < tokens; ++t) {
            if (chunk.closes) {
                const __m512 before = _mm512_loadu_ps(sums + t * kRows);
                const __m512 added = closed(product[t], shifted, steps, shift[t], scale[t]);
                _mm512_storeu_ps(sums + t * kRows, _mm512_add_ps(before, added));
            } else {
                _mm512_storeu_si512(products + t * kRows, product[t]);
            }
        }
        shift += tokens, scale += tokens, sums += tokens * kRows, products += tokens * kRows;
    }
}

template <bool in_bytes, int... tokens>
Multiply* const* table(std::integer_sequence<int, tokens...>) {
    static constexpr Multiply* functions[] = {nullptr, multiply<in_bytes, tokens + 1>...};
    return functions;
}

}  // namespace

Multiply* const* gemm_avx512(const Columns& columns) {
    const auto tokens = std::make_integer_sequence<int, kTile512>();
    return columns.in_bytes ? table<true>(tokens) : table<false>(tokens);
}

}  // namespace goldstick

#endif
