// Products of a panel with AMX: matrices of 16 tokens and 64 columns times such of 64 columns and 16 rows of a weight,
// as which codes lie in the panel. Activations of 16 bits are two bytes, which are multiplied one by one.
#include "linear/amx.hpp"
#include "linear/avx512.hpp"
#include "linear/gemm.hpp"

#if defined(GOLDSTICK_HAS_AMX)

namespace goldstick {
namespace {

constexpr std::int64_t kFound = kTokensOfMatrix * kRows;  // sums of a matrix of tokens with one of codes
constexpr int kParts = 4;                                // in which sums are finished

// A chunk of 32 rows for all tokens of a strip: two matrices of tokens at a time, or the high and the low bytes of one,
// with two of codes. Sums are finished while the next are found: multiplying takes few of a core's instructions.
template <bool halved, bool whole, bool zeros>  // whether a chunk is a span; whether the weight has zeros
class Product {
public:
    GOLDSTICK_AMX Product(const Strip& strip, const Chunk& chunk) : strip_(strip), chunk_(chunk) {}

    GOLDSTICK_AMX void run() {
        constexpr std::int64_t tokens = kTokensOfMatrix * (halved ? 1 : 2);
        int ready = 0;
        for (std::int64_t token = 0; token < strip_.tokens; token += tokens) {
            if (halved || strip_.tokens - token > kTokensOfMatrix) {
                multiply(token, ready, std::make_integer_sequence<int, 2>());
                ready = kParts;
            } else {
                multiply(token, ready, std::make_integer_sequence<int, 1>());
                ready = kParts / 2;
            }
            of_ready_ = token;
            last_ = !last_;
        }
        for (int part = 0; part < ready; ++part) {
            finish(part);
        }
    }

private:
    // Find the sums of the tokens from `token` on, and finish those that are ready.
    template <int... i>
    GOLDSTICK_AMX GOLDSTICK_INLINE void multiply(std::int64_t token, int ready, std::integer_sequence<int, i...>) {
        const Rows *const first = strip_.rows, *const second = strip_.rows + 1;
        const std::int64_t apart = strip_.matrix_steps * 4;
        int part = 0;
        ((clear<2 * i>(), clear<2 * i + 1>()), ...);
        for (std::int64_t at = 0; at < chunk_.steps; at += strip_.matrix_steps) {
            for (std::int64_t ahead = at; token == 0 && ahead < at + strip_.matrix_steps; ++ahead) {
                _mm_prefetch(reinterpret_cast<const char*>(first->ahead + strip_.lines[ahead]), _MM_HINT_T1);
                _mm_prefetch(reinterpret_cast<const char*>(second->ahead + strip_.lines[ahead]), _MM_HINT_T1);
            }
            load<kCodes[0]>(first->codes + at * kRows, kRows * 4);
            load<kCodes[1]>(second->codes + at * kRows, kRows * 4);
            ((load<kActivations[i]>(activations(token, i) + at * kTokensOfMatrix, apart),
              multiply_matrix<2 * i, kActivations[i], kCodes[0]>(),
              multiply_matrix<2 * i + 1, kActivations[i], kCodes[1]>(),
              part < ready ? finish(part++) : void()),
             ...);
        }
        while (part < ready) {
            finish(part++);
        }
        std::int32_t* const found = found_[last_];
        ((store<2 * i>(found + 2 * i * kFound, kRows * 4), store<2 * i + 1>(found + (2 * i + 1) * kFound, kRows * 4)),
         ...);
    }

    // The i-th matrix of them.
    GOLDSTICK_INLINE const std::int32_t* activations(std::int64_t token, int i) const {
        return halved ? (i == 0 ? strip_.q : strip_.low) + token * chunk_.steps
                      : strip_.q + (token + i * kTokensOfMatrix) * chunk_.steps;
    }

    // What the sums come to, a matrix of tokens at a time, or the half of one.
    GOLDSTICK_AMX GOLDSTICK_INLINE void finish(int part) {
        constexpr std::int64_t count = halved ? kTokensOfMatrix / 2 : kTokensOfMatrix;
        const std::int64_t at = halved ? part % 2 * count : part / 2 * count;  // tokens after the first that is ready
        const Rows& rows = strip_.rows[halved ? part / 2 : part % 2];
        const std::int32_t* const found = found_[!last_] + part * (halved ? kFound / 2 : kFound);
        const std::int64_t token = of_ready_ + at;
        const std::int32_t* const shift = strip_.shift + token;
        const float* const scale = strip_.scale + token;
        std::int32_t* const products = rows.products + token * kRows;
        float* const sums = rows.sums + token * kRows;
        const Steps steps = steps_of(rows.weight_scale, zeros ? rows.zero : nullptr, rows.minimums);
        GOLDSTICK_UNROLL
        for (std::int64_t t = 0; t < count; ++t) {
            __m512i product = _mm512_load_si512(found + t * kRows);
            if (halved) {
                const __m512i low = _mm512_load_si512(found + t * kRows + 2 * kFound);
                product = _mm512_add_epi32(_mm512_slli_epi32(product, 8), low);
            }
            if (!whole && !chunk_.opens) {
                product = _mm512_add_epi32(product, _mm512_loadu_si512(products + t * kRows));
            }
            if (!whole && !chunk_.closes) {
                _mm512_storeu_si512(products + t * kRows, product);
                continue;
            }
            const __m512 before = _mm512_loadu_ps(sums + t * kRows);
            const __m512 added = closed(product, false, steps, shift[t], scale[t]);
            _mm512_storeu_ps(sums + t * kRows, _mm512_add_ps(before, added));
        }
    }

    const Strip& strip_;
    const Chunk& chunk_;
    alignas(64) std::int32_t found_[2][kSums * kFound];
    bool last_ = false;           // where the next sums go
    std::int64_t of_ready_ = 0;  // the first token of those before
};

template <bool halved, bool whole>
GOLDSTICK_AMX void multiply(const Strip& strip, const Chunk& chunk) {
    strip.rows->zero ? Product<halved, whole, true>(strip, chunk).run()
                     : Product<halved, whole, false>(strip, chunk).run();
}

template <bool halved>
GOLDSTICK_AMX void multiply(const Strip& strip, const Chunk& chunk) {
    chunk.opens && chunk.closes ? multiply<halved, true>(strip, chunk) : multiply<halved, false>(strip, chunk);
}

}  // namespace

Tiles::Tiles(const Columns& columns) { configure(Shapes(columns.matrix_steps)); }
Tiles::~Tiles() { release(); }

Multiply* gemm_amx(bool halved) { return halved ? multiply<true> : multiply<false>; }

}  // namespace goldstick

#endif
