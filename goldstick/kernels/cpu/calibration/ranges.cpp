// Rows do not meet. A candidate is abandoned as soon as a part of its error is not below the best: terms are not
// negative, and adding what is not negative never makes a float smaller, so it could not have won.
#include "calibration/ranges.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/floats.hpp"
#include "base/inline.hpp"

namespace goldstick {

namespace {

// The weights and importances of one group, filled up to whole blocks.
struct Scratch {
    std::vector<float> values, importance;
};

struct Candidate {
    float scale;
    float zero;    // of unsigned codes
    float offset;  // zero − 2^(bits − 1), of signed codes
};

// The rules that give the numbers of a grid nearest to some weights, in units of the scale.

struct Integers {
    float middle, highest;

    explicit Integers(const Numbers& numbers)
        : middle(static_cast<float>(1 << (numbers.bits - 1))),
          highest(static_cast<float>((1 << numbers.bits) - 1) - middle) {}

    template <std::int64_t lanes>
    GOLDSTICK_INLINE void round(const float* values, const Candidate& candidate, float* number) const {
        constexpr float kMagic = 12582912.0f;  // adding 1.5 · 2^23 leaves no room for a fraction: ties go to even
        const float scale = candidate.scale, zero = candidate.zero, offset = candidate.offset;
        for (std::int64_t i = 0; i < lanes; ++i) {
            float ratio = values[i] / scale + offset;
            // Clamped first, so that rounding stays in range; the ends are whole numbers.
            ratio = ratio > -middle ? ratio : -middle;
            ratio = ratio < highest ? ratio : highest;
            number[i] = (((ratio + kMagic) - kMagic) + middle) - zero;
        }
    }
};

// What w / scale is where the scale is 0: no weight is any number of such steps.
GOLDSTICK_INLINE float quotient(float value, float divisor, float counts) { return (value / divisor) * counts; }

struct Floats {
    float magic, largest;
    std::uint32_t least_normal;

    explicit Floats(const Numbers& numbers)
        : magic(1.5f * static_cast<float>(1 << (23 - numbers.mantissa_bits))),
          largest(numbers.largest),
          least_normal(bits_of(numbers.least_normal)) {}

    template <std::int64_t lanes>
    GOLDSTICK_INLINE void round(const float* values, const Candidate& candidate, float* number) const {
        const float divisor = candidate.scale == 0.0f ? 1.0f : candidate.scale;
        const float counts = candidate.scale == 0.0f ? 0.0f : 1.0f;
        for (std::int64_t i = 0; i < lanes; ++i) {
            float ratio = quotient(values[i], divisor, counts);
            ratio = ratio > -largest ? ratio : -largest;
            ratio = ratio < largest ? ratio : largest;
            std::uint32_t power = bits_of(ratio) & 0x7f800000u;
            power = power > least_normal ? power : least_normal;
            const float step = magic * float_of(power);  // adding it leaves room for mantissa_bits below the power
            number[i] = (ratio + step) - step;
        }
    }
};

struct Table {
    const float* numbers;
    const float* edges;

    explicit Table(const Numbers& given) : numbers(given.values), edges(given.edges) {}

    template <std::int64_t lanes>
    GOLDSTICK_INLINE void round(const float* values, const Candidate& candidate, float* number) const {
        const float divisor = candidate.scale == 0.0f ? 1.0f : candidate.scale;
        const float counts = candidate.scale == 0.0f ? 0.0f : 1.0f;
        float ratio[lanes];
        for (std::int64_t i = 0; i < lanes; ++i) {
            ratio[i] = quotient(values[i], divisor, counts);
            number[i] = numbers[0];
        }
        for (int k = 0; k < 15; ++k) {
            const float edge = edges[k], above = numbers[k + 1];
            for (std::int64_t i = 0; i < lanes; ++i) {
                number[i] = ratio[i] > edge ? above : number[i];
            }
        }
    }
};

// Error of one block, of which `used` terms count. Where these are `lanes` at most, the rest of the block is zeros.
template <bool weighted, std::int64_t lanes, typename Rule>
GOLDSTICK_INLINE float block_error(const float* values, const float* importance, std::int64_t used,
                                   const Candidate& candidate, const Rule& rule) {
    static_assert(lanes == kErrorBlock || 2 * lanes == kErrorBlock);
    float term[lanes];
    rule.template round<lanes>(values, candidate, term);
    for (std::int64_t i = 0; i < lanes; ++i) {
        const float moved = term[i] * candidate.scale - values[i];
        term[i] = (moved * moved) * std::sqrt(std::fabs(moved));
        if constexpr (weighted) {
            term[i] *= importance[i];
        }
    }
    for (std::int64_t i = used; i < lanes; ++i) {
        term[i] = 0.0f;
    }
    if constexpr (lanes == kErrorBlock) {
        for (std::int64_t i = 0; i < 16; ++i) term[i] += term[i + 16];
    }
    for (std::int64_t i = 0; i < 8; ++i) term[i] += term[i + 8];
    for (std::int64_t i = 0; i < 4; ++i) term[i] += term[i + 4];
    return (term[0] + term[2]) + (term[1] + term[3]);
}

template <bool weighted, std::int64_t lanes, typename Rule>
GOLDSTICK_INLINE std::int64_t search_group(const RangeSearch& search, std::int64_t at, const Scratch& scratch,
                                           const Rule& rule) {
    const float middle = static_cast<float>(1 << (search.numbers.bits - 1));
    const float* scale = search.scale + at * search.candidates;
    const float* zero = search.zero ? search.zero + at * search.candidates : nullptr;
    std::int64_t best = 0;
    float least = INFINITY;
    for (std::int64_t c = 0; c < search.candidates; ++c) {
        const Candidate candidate{scale[c], zero ? zero[c] : middle, zero ? zero[c] - middle : 0.0f};
        float error = 0.0f;
        for (std::int64_t start = 0; start < search.width; start += kErrorBlock) {
            const std::int64_t used = std::min(kErrorBlock, search.width - start);
            error += block_error<weighted, lanes>(scratch.values.data() + start, scratch.importance.data() + start, used,
                                                  candidate, rule);
            if (!(error < least)) break;
        }
        if (error < least) {
            least = error;
            best = c;
        }
    }
    return best;
}

template <bool weighted, typename Rule>
GOLDSTICK_INLINE void search_row(const RangeSearch& search, std::int64_t row, Scratch& scratch) {
    const Rule rule(search.numbers);
    constexpr std::int64_t kHalf = kErrorBlock / 2;
    for (std::int64_t group = 0; group < search.groups; ++group) {
        const std::int64_t at = row * search.groups + group;
        std::copy_n(search.values + at * search.width, search.width, scratch.values.begin());
        if constexpr (weighted) {
            std::copy_n(search.importance + group * search.width, search.width, scratch.importance.begin());
        }
        search.best[at] = search.width <= kHalf ? search_group<weighted, kHalf>(search, at, scratch, rule)
                                                : search_group<weighted, kErrorBlock>(search, at, scratch, rule);
    }
}

template <typename Rule>
GOLDSTICK_INLINE void search_row_by(const RangeSearch& search, std::int64_t row, Scratch& scratch) {
    if (search.importance) {
        search_row<true, Rule>(search, row, scratch);
    } else {
        search_row<false, Rule>(search, row, scratch);
    }
}

GOLDSTICK_INLINE void search_row_in(const RangeSearch& search, std::int64_t row, Scratch& scratch) {
    switch (search.numbers.kind) {
        case NumberKind::integers: return search_row_by<Integers>(search, row, scratch);
        case NumberKind::floats: return search_row_by<Floats>(search, row, scratch);
        case NumberKind::table: return search_row_by<Table>(search, row, scratch);
    }
}

void search_row_scalar(const RangeSearch& search, std::int64_t row, Scratch& scratch) {
    search_row_in(search, row, scratch);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2"))) void search_row_avx2(const RangeSearch& search, std::int64_t row, Scratch& scratch) {
    search_row_in(search, row, scratch);
}
#else
void search_row_avx2(const RangeSearch& search, std::int64_t row, Scratch& scratch) {
    search_row_in(search, row, scratch);
}
#endif

}  // namespace

void search_ranges(const RangeSearch& search, int threads, bool use_avx2) {
    const auto search_one = use_avx2 ? search_row_avx2 : search_row_scalar;
    const auto filled = static_cast<std::size_t>((search.width + kErrorBlock - 1) / kErrorBlock * kErrorBlock);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Scratch scratch{std::vector<float>(filled), std::vector<float>(filled)};
#pragma omp for schedule(static)
        for (std::int64_t row = 0; row < search.rows; ++row) {
            search_one(search, row, scratch);
        }
    }
}

}  // namespace goldstick
