// Many tokens: the codes of 16 rows are spread out once, two or four columns to a 32-bit lane and a row to each lane,
// and multiplied by as many activations, four tokens at a time. Lanes are rows, so nothing is added across lanes.
#include "panel_avx2.hpp"

#if defined(__x86_64__)

namespace goldstick {
namespace {

// A chunk of the columns and tiles of the same number of tokens.
struct Strip {
    const __m256i* codes;          // of the panel
    const std::uint8_t* ahead;     // what is unpacked next: while the first tile is multiplied, memory is called for
    const std::int32_t* lines;     // [step], from there on
    std::int64_t tiles;
    const std::int32_t* q;         // [tile][step][tokens]
    const float* scale;            // [tile][tokens], of the activations
    const std::int32_t* sum;       // [tile][tokens]
    const Excess* excess;          // [tile][step]
    const std::int32_t* excesses;  // [tile], or null
    const float* weight_scale;     // [kRows]
    const float* zero;             // [kRows], or null
    std::int32_t middle;           // where zero is null
    std::int32_t* products;        // [tile][tokens][kRows]: of a span's chunks before this one
    float* sums;                   // [tile][tokens][kRows]: of the spans before this one
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

// How codes of eight rows and activations are multiplied, `together` steps of them: 32-bit sums.
struct InWords {
    static constexpr int together = 2;
    GOLDSTICK_AVX2 static __m256i multiply(const __m256i* codes, const __m256i* q) {
        return _mm256_add_epi32(_mm256_madd_epi16(codes[0], q[0]), _mm256_madd_epi16(codes[1], q[1]));
    }
};

// The sums of 16 bits, of two products each, do not overflow: excesses see to it, or codes being small.
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

// The same for all steps of a chunk.
template <typename How, int tokens, bool calls>
GOLDSTICK_AVX2 inline void add_all(const Strip& strip, const Chunk& chunk, const std::int32_t* q,
                                   __m256i (&low)[tokens], __m256i (&high)[tokens]) {
    for (std::int64_t i = 0; i < chunk.steps; i += How::together, q += tokens * How::together) {
        if (calls) {
            _mm_prefetch(reinterpret_cast<const char*>(strip.ahead + strip.lines[i]), _MM_HINT_T1);
        }
        add_products<How, tokens>(strip.codes + 2 * i, q, low, high);
    }
}

template <typename How, int tokens>
GOLDSTICK_AVX2 void multiply(const Strip& strip, const Chunk& chunk) {
    const std::int32_t *q = strip.q, *sum = strip.sum;
    const Excess* excess = strip.excess;
    const __m256 low_scale = _mm256_loadu_ps(strip.weight_scale), high_scale = _mm256_loadu_ps(strip.weight_scale + 8);
    const float *zero = strip.zero, *high_zero = zero ? zero + 8 : nullptr, *scale = strip.scale;
    auto* products = reinterpret_cast<__m256i*>(strip.products);
    float* sums = strip.sums;
    for (std::int64_t tile = 0; tile < strip.tiles; ++tile, products += 2 * tokens, excess += chunk.steps) {
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
        for (std::int32_t i = 0, count = strip.excesses ? strip.excesses[tile] : 0; i < count; ++i) {
            add_products<InBytes<1>, tokens>(strip.codes + 2 * excess[i].step, excess[i].codes, low, high);
        }
        GOLDSTICK_UNROLL
        for (int t = 0; t < tokens; ++t) {
            if (chunk.closes) {
                close(low[t], low_scale, zero, strip.middle, sum[t], scale[t], sums + t * kRows);
                close(high[t], high_scale, high_zero, strip.middle, sum[t], scale[t], sums + t * kRows + 8);
            } else {
                _mm256_storeu_si256(products + 2 * t, low[t]);
                _mm256_storeu_si256(products + 2 * t + 1, high[t]);
            }
        }
        sum += tokens, scale += tokens, sums += tokens * kRows;
    }
}

using Multiply = void(const Strip&, const Chunk&);
template <typename How>
constexpr Multiply* kMultiply[kTile + 1] = {nullptr, multiply<How, 1>, multiply<How, 2>, multiply<How, 3>,
                                            multiply<How, 4>};

// Where the cache lines of the 16 rows of a chunk lie, spread out over its steps: one word of each row fills a line where
// they lie side by side.
void spread_lines(const Columns& columns, const Chunk& chunk, bool interleaved, std::int32_t* lines) {
    const std::int64_t of_row = (chunk.padded * columns.bits / 8 + 63) / 64;
    const std::int64_t count = interleaved ? columns.words(chunk) : of_row * kRows;
    for (std::int64_t step = 0; step < chunk.steps; ++step) {
        const std::int64_t line = step * count / chunk.steps;
        const std::int64_t in_rows = line / of_row * columns.row_bytes + line % of_row * 64;
        lines[step] = static_cast<std::int32_t>(interleaved ? line * 64 : in_rows);
    }
}

constexpr int kSmallBits = 6;  // two sums of two products of such codes and 8 bits: 4 · 63 · 128 < 2^15

}  // namespace

void block_panel_avx2(const Columns& columns, const RowBlock& block, const Activations& activations,
                      std::int64_t begin, std::int64_t end, float* sums) {
    std::fill_n(sums, (end - begin) * kRows, 0.0f);
    if (columns.chunks.empty()) {
        return;
    }
    Panel panel;
    std::int32_t products[kTokens * kRows];
    const bool interleaved = block.words != nullptr;
    const bool as_they_are = interleaved && columns.in_bytes && columns.shape == Shape::kBytes;
    Unpack* const spread = (columns.in_bytes ? unpack_for<true> : unpack_for<false>)(columns.shape, interleaved);
    Multiply* const* const run = !columns.in_bytes              ? kMultiply<InWords>
                                 : columns.bits <= kSmallBits ? kMultiply<InBytes<2>>
                                                              : kMultiply<InBytes<1>>;
    const std::int64_t rest = (end - begin) % kTile, full = end - rest;
    std::int64_t part = 0, tiles = 0;  // of the chunks before this one
    std::int32_t lines[kChunk];
    spread_lines(columns, columns.chunks.front(), interleaved, lines);
    for (const Chunk& chunk : columns.chunks) {
        const bool last = &chunk == &columns.chunks.back();
        const std::uint32_t* const words = interleaved ? columns.words_of(chunk, block) : nullptr;
        const std::uint8_t* const ahead =
            interleaved ? reinterpret_cast<const std::uint8_t*>(words + columns.words(chunk) * kRows)
                        : block.rows[0] + (last ? kRows * columns.row_bytes : chunk.end * columns.bits / 8);
        if (!as_they_are) {
            spread(columns, chunk, block, panel);
        }
        const auto over = [&](std::int64_t token, std::int64_t count) {
            return Strip{as_they_are ? reinterpret_cast<const __m256i*>(words) : panel.codes,
                         ahead,
                         lines,
                         count,
                         activations.of(chunk, token),
                         activations.scale + part + token,
                         activations.sum + part + token,
                         activations.excess_of(chunk, token),
                         activations.excesses ? activations.excesses + tiles + token / kTile : nullptr,
                         block.scale + chunk.group * kRows,
                         block.zero ? block.zero + chunk.group * kRows : nullptr,
                         columns.middle(),
                         products + (token - begin) * kRows,
                         sums + (token - begin) * kRows};
        };
        run[kTile](over(begin, (full - begin) / kTile), chunk);
        if (rest) {
            run[rest](over(full, 1), chunk);
        }
        part += activations.tokens;
        tiles += activations.tiles();
    }
}

}  // namespace goldstick

#endif
