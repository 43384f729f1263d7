// Rows do not meet. A candidate is abandoned as soon as a part of its error is not below the best: terms are not
// negative, and adding what is not negative never makes a float smaller, so it could not have won.
#include "calibration/ranges.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

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

// Error of one block, of which `used` terms count.
template <bool weighted>
GOLDSTICK_INLINE float block_error(const float* values, const float* importance, std::int64_t used,
                                   const Candidate& candidate, float middle, float highest) {
    constexpr float kMagic = 12582912.0f;  // adding 1.5 · 2^23 leaves no room for a fraction: ties go to even
    const float scale = candidate.scale, zero = candidate.zero, offset = candidate.offset;
    float term[kErrorBlock];
    for (std::int64_t i = 0; i < kErrorBlock; ++i) {
        float ratio = values[i] / scale + offset;
        // Clamped first, so that rounding stays in range; the ends are whole numbers.
        ratio = ratio > -middle ? ratio : -middle;
        ratio = ratio < highest ? ratio : highest;
        const float code = ((ratio + kMagic) - kMagic) + middle;
        const float moved = (code - zero) * scale - values[i];
        term[i] = (moved * moved) * std::sqrt(std::fabs(moved));
        if constexpr (weighted) {
            term[i] *= importance[i];
        }
    }
    for (std::int64_t i = used; i < kErrorBlock; ++i) {
        term[i] = 0.0f;
    }
    for (std::int64_t i = 0; i < 16; ++i) term[i] += term[i + 16];
    for (std::int64_t i = 0; i < 8; ++i) term[i] += term[i + 8];
    for (std::int64_t i = 0; i < 4; ++i) term[i] += term[i + 4];
    return (term[0] + term[2]) + (term[1] + term[3]);
}

template <bool weighted>
GOLDSTICK_INLINE std::int64_t search_group(const RangeSearch& search, std::int64_t at, const Scratch& scratch) {
    const float middle = static_cast<float>(1 << (search.bits - 1));
    const float highest = static_cast<float>((1 << search.bits) - 1) - middle;
    const float* scale = search.scale + at * search.candidates;
    const float* zero = search.zero ? search.zero + at * search.candidates : nullptr;
    std::int64_t best = 0;
    float least = INFINITY;
    for (std::int64_t c = 0; c < search.candidates; ++c) {
        const Candidate candidate{scale[c], zero ? zero[c] : middle, zero ? zero[c] - middle : 0.0f};
        float error = 0.0f;
        for (std::int64_t start = 0; start < search.width; start += kErrorBlock) {
            const std::int64_t used = std::min(kErrorBlock, search.width - start);
            error += block_error<weighted>(scratch.values.data() + start, scratch.importance.data() + start, used,
                                           candidate, middle, highest);
            if (!(error < least)) break;
        }
        if (error < least) {
            least = error;
            best = c;
        }
    }
    return best;
}

template <bool weighted>
GOLDSTICK_INLINE void search_row(const RangeSearch& search, std::int64_t row, Scratch& scratch) {
    for (std::int64_t group = 0; group < search.groups; ++group) {
        const std::int64_t at = row * search.groups + group;
        std::copy_n(search.values + at * search.width, search.width, scratch.values.begin());
        if constexpr (weighted) {
            std::copy_n(search.importance + group * search.width, search.width, scratch.importance.begin());
        }
        search.best[at] = search_group<weighted>(search, at, scratch);
    }
}

GOLDSTICK_INLINE void search_row_in(const RangeSearch& search, std::int64_t row, Scratch& scratch) {
    if (search.importance) {
        search_row<true>(search, row, scratch);
    } else {
        search_row<false>(search, row, scratch);
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
