// Products of a panel with AVX2: two vectors of eight rows, and four tokens at a time.
#include "base/inline.hpp"
#include "linear/closing_avx2.hpp"
#include "linear/gemm.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace goldstick {
namespace {

GOLDSTICK_AVX2 inline Steps8 steps_of(const Rows& rows, std::int64_t row) {
    return {_mm256_loadu_ps(rows.weight_scale + row), rows.zero ? _mm256_loadu_ps(rows.zero + row) : _mm256_setzero_ps(),
            rows.zero != nullptr, rows.minimums};
}

// Add what the products of a span come to, of one token and eight rows.
GOLDSTICK_AVX2 inline void close(__m256i product, const Steps8& steps, std::int32_t shift, float scale, float* sums) {
    const __m256 added = closed(product, steps, _mm256_set1_epi32(shift), _mm256_set1_ps(scale));
    _mm256_storeu_ps(sums, _mm256_add_ps(_mm256_loadu_ps(sums), added));
}

// How codes of eight rows and activations are multiplied, `together` steps of them: 32-bit sums.
struct InWords {
    static constexpr int together = 2;
    GOLDSTICK_AVX2 static __m256i multiply(const __m256i* codes, const __m256i* q) {
        return _mm256_add_epi32(_mm256_madd_epi16(codes[0], q[0]), _mm256_madd_epi16(codes[1], q[1]));
    }
};

// The sums of 16 bits, of two products each, do not overflow: overflows see to it, or codes being small.
template <int steps>
struct InBytes {
    static constexpr int together = steps;
    GOLDSTICK_AVX2 static __m256i multiply(const __m256i* codes, const __m256i* q) {
        __m256i sum = _mm256_maddubs_epi16(codes[0], q[0]);
        GOLDSTICK_UNROLL
        for (int i = 1; i < steps; ++i) {
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes[i], q[i]));
        }
        return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
    }
};

// Add the products of one or more steps. Codes of a step lie side by side, as do its tokens' activations.
template <typename How, int tokens>
GOLDSTICK_AVX2 inline void add_products(const __m256i* codes, const std::int32_t* q, __m256i (&low)[tokens],
                                        __m256i (&high)[tokens]) {
    constexpr int together = How::together;
    __m256i first[together], second[together], both[together];
    GOLDSTICK_UNROLL
    for (int k = 0; k < together; ++k) {
        first[k] = _mm256_load_si256(codes + 2 * k);
        second[k] = _mm256_load_si256(codes + 2 * k + 1);
    }
    GOLDSTICK_UNROLL
    for (int t = 0; t < tokens; ++t) {
        GOLDSTICK_UNROLL
        for (int k = 0; k < together; ++k) {
            both[k] = _mm256_set1_epi32(q[k * tokens + t]);
        }
        low[t] = _mm256_add_epi32(low[t], How::multiply(first, both));
        high[t] = _mm256_add_epi32(high[t], How::multiply(second, both));
        asm volatile("" : "+x"(low[t]), "+x"(high[t]));  // one token after the other: there are 16 registers
    }
}

GOLDSTICK_AVX2 inline const __m256i* step_of(const Strip& strip, std::int64_t step) {
    return reinterpret_cast<const __m256i*>(strip.rows->codes + step * kRows);
}

// The same for all steps of a chunk.
template <typename How, int tokens, bool calls>
GOLDSTICK_AVX2 inline void add_all(const Strip& strip, const Chunk& chunk, const std::int32_t* q,
                                   __m256i (&low)[tokens], __m256i (&high)[tokens]) {
    for (std::int64_t i = 0; i < chunk.steps; i += How::together, q += tokens * How::together) {
        if (calls) {
            _mm_prefetch(reinterpret_cast<const char*>(strip.rows->ahead + strip.lines[i]), _MM_HINT_T1);
        }
        add_products<How, tokens>(step_of(strip, i), q, low, high);
    }
}

template <typename How, int tokens>
GOLDSTICK_AVX2 void multiply(const Strip& strip, const Chunk& chunk) {
    const std::int32_t *q = strip.q, *shift = strip.shift;
    const Overflow* overflow = strip.overflow;
    const Rows& rows = *strip.rows;
    const Steps8 low_steps = steps_of(rows, 0), high_steps = steps_of(rows, 8);
    const float* scale = strip.scale;
    auto* products = reinterpret_cast<__m256i*>(rows.products);
    float* sums = rows.sums;
    for (std::int64_t tile = 0; tile < strip.tiles; ++tile, products += 2 * tokens, overflow += chunk.steps) {
        __m256i low[tokens], high[tokens];
        GOLDSTICK_UNROLL
        for (int t = 0; t < tokens; ++t) {
            low[t] = chunk.opens ? _mm256_setzero_si256() : _mm256_loadu_si256(products + 2 * t);
            high[t] = chunk.opens ? _mm256_setzero_si256() : _mm256_loadu_si256(products + 2 * t + 1);
        }
        if (tile == 0) {
            add_all<How, tokens, true>(strip, chunk, q, low, high);
        } else {
            add_all<How, tokens, false>(strip, chunk, q, low, high);
        }
        q += tokens * chunk.steps;
        for (std::int32_t i = 0, count = strip.overflows ? strip.overflows[tile] : 0; i < count; ++i) {
            add_products<InBytes<1>, tokens>(step_of(strip, overflow[i].step), overflow[i].codes, low, high);
        }
        GOLDSTICK_UNROLL
        for (int t = 0; t < tokens; ++t) {
            if (chunk.closes) {
                close(low[t], low_steps, shift[t], scale[t], sums + t * kRows);
                close(high[t], high_steps, shift[t], scale[t], sums + t * kRows + 8);
            } else {
                _mm256_storeu_si256(products + 2 * t, low[t]);
                _mm256_storeu_si256(products + 2 * t + 1, high[t]);
            }
        }
        shift += tokens, scale += tokens, sums += tokens * kRows;
    }
}

using Multiply = void(const Strip&, const Chunk&);
template <typename How>
constexpr Multiply* kMultiply[kTile + 1] = {nullptr, multiply<How, 1>, multiply<How, 2>, multiply<How, 3>,
                                            multiply<How, 4>};

constexpr int kSmallBits = 6;  // two sums of two products of such codes and 8 bits: 4 · 63 · 128 < 2^15

}  // namespace

Multiply* const* gemm_avx2(const Columns& columns) {
    return !columns.in_bytes              ? kMultiply<InWords>
           : columns.coding.width <= kSmallBits ? kMultiply<InBytes<2>>
                                        : kMultiply<InBytes<1>>;
}

}  // namespace goldstick

#endif
