// Products of a panel with AMX: matrices of 16 tokens and 64 columns times such of 64 columns and 16 rows of a weight,
// as which codes lie in the panel. Activations of 16 bits are two bytes, which are multiplied one by one.
#include "amx.hpp"
#include "avx512.hpp"
#include "panel.hpp"

#if defined(GOLDSTICK_HAS_AMX)

namespace goldstick {
namespace {

// What is multiplied at once: up to four matrices of tokens, or the high and the low bytes of two.
template <bool halved>
struct Matrices {
    static constexpr std::int64_t tokens = kTokensOfMatrix * (halved ? kSums / 2 : kSums);
    alignas(64) std::int32_t found[kSums][kTokensOfMatrix * kRows];

    // Of the i-th.
    template <int i>
    static const std::int32_t* activations(const Strip& strip, const Chunk& chunk, std::int64_t token) {
        const std::int64_t first = token + (halved ? i / 2 : i) * kTokensOfMatrix;
        return (halved && i % 2 == 1 ? strip.low : strip.q) + first * chunk.steps;
    }

    // Find the sums of a chunk for the tokens from `token` on, `steps` at a time.
    template <int... i>
    GOLDSTICK_AMX void multiply(const Strip& strip, const Chunk& chunk, std::int64_t token, std::int64_t steps,
                                std::integer_sequence<int, i...>) {
        (clear<i>(), ...);
        for (std::int64_t at = 0; at < chunk.steps; at += steps) {
            for (std::int64_t ahead = at; token == 0 && ahead < at + steps; ++ahead) {
                _mm_prefetch(reinterpret_cast<const char*>(strip.ahead + strip.lines[ahead]), _MM_HINT_T1);
            }
            load<kCodes>(strip.codes + at * kRows, kRows * 4);
            ((load<kActivations[i % 2]>(activations<i>(strip, chunk, token) + at * kTokensOfMatrix, steps * 4),
              multiply_matrix<i, kActivations[i % 2]>()),
             ...);
        }
        (store<i>(found[i], kRows * 4), ...);
    }

    // Of one of those tokens.
    GOLDSTICK_AMX __m512i product(std::int64_t token) const {
        const std::int64_t matrix = token / kTokensOfMatrix, row = token % kTokensOfMatrix * kRows;
        if (!halved) {
            return _mm512_load_si512(found[matrix] + row);
        }
        const __m512i high = _mm512_load_si512(found[2 * matrix] + row);
        return _mm512_add_epi32(_mm512_slli_epi32(high, 8), _mm512_load_si512(found[2 * matrix + 1] + row));
    }
};

// What the sums of the tokens from `first` on come to.
template <bool halved>
GOLDSTICK_AMX void finish(const Strip& strip, const Chunk& chunk, const Matrices<halved>& matrices, std::int64_t first,
                          std::int64_t count) {
    const __m512 weight_scale = _mm512_loadu_ps(strip.weight_scale);
    const std::int32_t* const shift = strip.shift + first;
    const float* const scale = strip.scale + first;
    std::int32_t* const products = strip.products + first * kRows;
    float* const sums = strip.sums + first * kRows;
    for (std::int64_t t = 0; t < count; ++t) {
        __m512i product = matrices.product(t);
        if (!chunk.opens) {
            product = _mm512_add_epi32(product, _mm512_loadu_si512(products + t * kRows));
        }
        if (!chunk.closes) {
            _mm512_storeu_si512(products + t * kRows, product);
            continue;
        }
        const __m512 found = centred(product, false, strip.zero, shift[t]);
        const __m512 before = _mm512_loadu_ps(sums + t * kRows);
        _mm512_storeu_ps(sums + t * kRows, _mm512_add_ps(before, scaled(found, weight_scale, scale[t])));
    }
}

template <bool halved>
GOLDSTICK_AMX void multiply(const Strip& strip, const Chunk& chunk) {
    using M = Matrices<halved>;
    constexpr int each = halved ? 2 : 1;
    const std::int64_t steps = chunk.matrix_steps();
    M matrices;
    configure(Shapes(steps));
    for (std::int64_t first = 0; first < strip.tokens; first += M::tokens) {
        const std::int64_t count = std::min(strip.tokens - first, M::tokens);
        switch ((count + kTokensOfMatrix - 1) / kTokensOfMatrix) {
            case 1: matrices.multiply(strip, chunk, first, steps, std::make_integer_sequence<int, each>()); break;
            case 2: matrices.multiply(strip, chunk, first, steps, std::make_integer_sequence<int, 2 * each>()); break;
            case 3: matrices.multiply(strip, chunk, first, steps, std::make_integer_sequence<int, 3>()); break;
            default: matrices.multiply(strip, chunk, first, steps, std::make_integer_sequence<int, kSums>());
        }
        finish(strip, chunk, matrices, first, count);
    }
    release();
}

// Whole tiles and those of fewer tokens, as which they are written, are multiplied alike.
using Tokens = std::make_integer_sequence<int, kTile512 + 1>;

template <bool halved, int... tokens>
Multiply* const* table(std::integer_sequence<int, tokens...>) {
    static constexpr Multiply* all = multiply<halved>;
    static constexpr Multiply* functions[] = {(static_cast<void>(tokens), all)...};
    return functions;
}

}  // namespace

Multiply* const* panel_amx(bool halved) {
    return halved ? table<true>(Tokens()) : table<false>(Tokens());
}

}  // namespace goldstick

#endif
