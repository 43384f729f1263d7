// Groups do not meet: a tile of groups is transposed, so that one vector instruction works on one weight of several, and
// sums are taken term by term as they are in one group alone.
#include "calibration/block_fits.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/inline.hpp"

namespace goldstick {

namespace {

constexpr int kLanes = 16;  // groups of a tile
constexpr float kLeast = 1e-15f;
constexpr int kPasses = 5;

// Whole numbers, ties to even, for |value| < 2^22.
GOLDSTICK_INLINE float round_half_even(float value) {
    constexpr float kMagic = 12582912.0f;
    return (value + kMagic) - kMagic;
}

// Clamped first, so that rounding stays in range; the ends are whole numbers. A NaN becomes the lowest.
GOLDSTICK_INLINE float round_within(float value, float lowest, float highest) {
    value = value > lowest ? value : lowest;
    value = value < highest ? value : highest;
    return round_half_even(value);
}

// What a tile works on: [width, kLanes] each.
struct Tile {
    std::vector<float> x, weight, codes, tried;
    float scale[kLanes], minimum[kLanes];
    explicit Tile(std::int64_t width)
        : x(static_cast<std::size_t>(width * kLanes)), weight(x.size()), codes(x.size()), tried(x.size()) {}
};

#define GOLDSTICK_LANES for (int lane = 0; lane < kLanes; ++lane)

GOLDSTICK_INLINE void affine_error(const Tile& tile, const float* codes, const float* scale, const float* low, bool absolute,
                                   std::int64_t width, float* error) {
    GOLDSTICK_LANES error[lane] = 0.0f;
    for (std::int64_t i = 0; i < width; ++i) {
        const float *x = &tile.x[i * kLanes], *w = &tile.weight[i * kLanes], *code = codes + i * kLanes;
        if (absolute) {
            GOLDSTICK_LANES error[lane] += w[lane] * std::fabs((scale[lane] * code[lane] + low[lane]) - x[lane]);
        } else {
            GOLDSTICK_LANES {
                const float moved = (scale[lane] * code[lane] + low[lane]) - x[lane];
                error[lane] += w[lane] * (moved * moved);
            }
        }
    }
}

GOLDSTICK_INLINE void fit_affine(const BlockFit& fit, Tile& tile) {
    const std::int64_t width = fit.width;
    const float most = static_cast<float>(fit.code_max);
    float low[kLanes], high[kLanes], least[kLanes], total[kLanes], moment[kLanes], error[kLanes], best[kLanes];
    GOLDSTICK_LANES {
        low[lane] = high[lane] = tile.x[lane];
        total[lane] = tile.weight[lane];
        moment[lane] = tile.weight[lane] * tile.x[lane];
    }
    for (std::int64_t i = 1; i < width; ++i) {
        const float *x = &tile.x[i * kLanes], *w = &tile.weight[i * kLanes];
        GOLDSTICK_LANES {
            low[lane] = x[lane] < low[lane] ? x[lane] : low[lane];
            high[lane] = x[lane] > high[lane] ? x[lane] : high[lane];
            total[lane] += w[lane];
            moment[lane] += w[lane] * x[lane];
        }
    }
    float inverse[kLanes];
    GOLDSTICK_LANES {
        low[lane] = low[lane] > 0.0f ? 0.0f : low[lane];
        least[lane] = low[lane];
        inverse[lane] = most / (high[lane] - low[lane]);
        tile.scale[lane] = 1.0f / inverse[lane];
    }
    for (std::int64_t i = 0; i < width; ++i) {
        GOLDSTICK_LANES tile.codes[i * kLanes + lane] =
            round_within(inverse[lane] * (tile.x[i * kLanes + lane] - low[lane]), 0.0f, most);
    }
    affine_error(tile, tile.codes.data(), tile.scale, low, fit.absolute, width, best);
    for (std::int64_t t = 0; t < fit.tries; ++t) {
        float sums[kLanes], squares[kLanes], products[kLanes], scale[kLanes], minimum[kLanes];
        bool better[kLanes];
        GOLDSTICK_LANES {
            inverse[lane] = fit.shifts[t] / (high[lane] - low[lane]);
            sums[lane] = squares[lane] = products[lane] = 0.0f;
        }
        for (std::int64_t i = 0; i < width; ++i) {
            const float *x = &tile.x[i * kLanes], *w = &tile.weight[i * kLanes];
            float* tried = &tile.tried[i * kLanes];
            GOLDSTICK_LANES {
                const float code = round_within(inverse[lane] * (x[lane] - low[lane]), 0.0f, most);
                const float weighted = w[lane] * code;
                tried[lane] = code;
                sums[lane] += weighted;
                squares[lane] += weighted * code;
                products[lane] += weighted * x[lane];
            }
        }
        float determinant[kLanes];
        GOLDSTICK_LANES {
            determinant[lane] = total[lane] * squares[lane] - sums[lane] * sums[lane];
            scale[lane] = (total[lane] * products[lane] - moment[lane] * sums[lane]) / determinant[lane];
            minimum[lane] = (squares[lane] * moment[lane] - sums[lane] * products[lane]) / determinant[lane];
            const bool above = minimum[lane] > 0.0f;
            scale[lane] = above ? products[lane] / squares[lane] : scale[lane];
            minimum[lane] = above ? 0.0f : minimum[lane];
        }
        affine_error(tile, tile.tried.data(), scale, minimum, fit.absolute, width, error);
        bool any = false;
        GOLDSTICK_LANES {
            better[lane] = determinant[lane] > 0.0f && error[lane] < best[lane];
            any = any || better[lane];
            best[lane] = better[lane] ? error[lane] : best[lane];
            tile.scale[lane] = better[lane] ? scale[lane] : tile.scale[lane];
            low[lane] = better[lane] ? minimum[lane] : low[lane];
        }
        for (std::int64_t i = 0; any && i < width; ++i) {
            float *code = &tile.codes[i * kLanes], *tried = &tile.tried[i * kLanes];
            GOLDSTICK_LANES code[lane] = better[lane] ? tried[lane] : code[lane];
        }
    }
    GOLDSTICK_LANES {
        const bool flat = high[lane] <= least[lane];
        tile.scale[lane] = flat ? 0.0f : tile.scale[lane];
        tile.minimum[lane] = -(flat ? least[lane] : low[lane]);
        for (std::int64_t i = 0; flat && i < width; ++i) tile.codes[i * kLanes + lane] = 0.0f;
    }
}

// The first value of largest magnitude.
GOLDSTICK_INLINE void largest_of(const Tile& tile, std::int64_t width, float* largest) {
    float size[kLanes];
    GOLDSTICK_LANES {
        largest[lane] = tile.x[lane];
        size[lane] = std::fabs(tile.x[lane]);
    }
    for (std::int64_t i = 1; i < width; ++i) {
        const float* x = &tile.x[i * kLanes];
        GOLDSTICK_LANES {
            const bool larger = std::fabs(x[lane]) > size[lane];
            largest[lane] = larger ? x[lane] : largest[lane];
            size[lane] = larger ? std::fabs(x[lane]) : size[lane];
        }
    }
}

// Codes for an inverse step, and Σ w x q and Σ w q².
GOLDSTICK_INLINE void line(const Tile& tile, const float* inverse, float lowest, float highest, std::int64_t width, float* codes,
                           float* products, float* squares) {
    GOLDSTICK_LANES products[lane] = squares[lane] = 0.0f;
    for (std::int64_t i = 0; i < width; ++i) {
        const float *x = &tile.x[i * kLanes], *w = &tile.weight[i * kLanes];
        float* code = codes + i * kLanes;
        GOLDSTICK_LANES {
            code[lane] = round_within(inverse[lane] * x[lane], lowest, highest);
            products[lane] += (w[lane] * x[lane]) * code[lane];
            squares[lane] += (w[lane] * code[lane]) * code[lane];
        }
    }
}

GOLDSTICK_INLINE void finish_signed(Tile& tile, const float* largest, float half, std::int64_t width) {
    GOLDSTICK_LANES {
        const bool dead = std::fabs(largest[lane]) < kLeast;
        tile.scale[lane] = dead ? 0.0f : tile.scale[lane];
        for (std::int64_t i = 0; i < width; ++i) {
            float& code = tile.codes[i * kLanes + lane];
            code = dead ? 0.0f : code + half;
        }
    }
}

GOLDSTICK_INLINE void fit_symmetric(const BlockFit& fit, Tile& tile) {
    const float half = static_cast<float>(fit.code_max);
    float largest[kLanes], inverse[kLanes], products[kLanes], squares[kLanes], best[kLanes];
    largest_of(tile, fit.width, largest);
    GOLDSTICK_LANES inverse[lane] = -half / largest[lane];
    line(tile, inverse, -half, half - 1.0f, fit.width, tile.codes.data(), products, squares);
    GOLDSTICK_LANES {
        tile.scale[lane] = squares[lane] != 0.0f ? products[lane] / squares[lane] : 0.0f;
        best[lane] = tile.scale[lane] * products[lane];
    }
    for (std::int64_t t = 0; t < fit.tries; ++t) {
        bool better[kLanes], any = false;
        GOLDSTICK_LANES inverse[lane] = -fit.shifts[t] / largest[lane];
        line(tile, inverse, -half, half - 1.0f, fit.width, tile.tried.data(), products, squares);
        GOLDSTICK_LANES {
            better[lane] = squares[lane] > 0.0f && products[lane] * products[lane] > best[lane] * squares[lane];
            any = any || better[lane];
            tile.scale[lane] = better[lane] ? products[lane] / squares[lane] : tile.scale[lane];
            best[lane] = better[lane] ? tile.scale[lane] * products[lane] : best[lane];
        }
        for (std::int64_t i = 0; any && i < fit.width; ++i) {
            float *code = &tile.codes[i * kLanes], *tried = &tile.tried[i * kLanes];
            GOLDSTICK_LANES code[lane] = better[lane] ? tried[lane] : code[lane];
        }
    }
    finish_signed(tile, largest, half, fit.width);
}

// Codes changed one by one where (Σ w x q)² / Σ w q² grows.
template <bool positive>
GOLDSTICK_INLINE void change_codes(Tile& tile, float lowest, float highest, std::int64_t width) {
    float products[kLanes], squares[kLanes];
    GOLDSTICK_LANES products[lane] = squares[lane] = 0.0f;
    for (std::int64_t i = 0; i < width; ++i) {
        const float *x = &tile.x[i * kLanes], *w = &tile.weight[i * kLanes], *code = &tile.codes[i * kLanes];
        GOLDSTICK_LANES {
            products[lane] += (w[lane] * x[lane]) * code[lane];
            squares[lane] += (w[lane] * code[lane]) * code[lane];
        }
    }
    for (int pass = 0; pass < kPasses; ++pass) {
        bool any = false;
        for (std::int64_t i = 0; i < width; ++i) {
            const float *x = &tile.x[i * kLanes], *w = &tile.weight[i * kLanes];
            float* codes = &tile.codes[i * kLanes];
            GOLDSTICK_LANES {
                const float code = codes[lane];
                const float rest = products[lane] - (w[lane] * x[lane]) * code;
                const float rest_squares = squares[lane] - (w[lane] * code) * code;
                const bool allowed = positive ? rest > 0.0f && rest_squares > 0.0f : rest > 0.0f;
                const float changed = round_within((x[lane] * rest_squares) / rest, lowest, highest);
                const float with_new = rest + (w[lane] * x[lane]) * changed;
                const float new_squares = rest_squares + (w[lane] * changed) * changed;
                const bool grows = (with_new * with_new) * squares[lane] > (products[lane] * products[lane]) * new_squares;
                const bool change = allowed && changed != code && new_squares > 0.0f && grows;
                any = any || change;
                codes[lane] = change ? changed : code;
                products[lane] = change ? with_new : products[lane];
                squares[lane] = change ? new_squares : squares[lane];
            }
        }
        if (!any) break;
    }
    GOLDSTICK_LANES tile.scale[lane] = squares[lane] > 0.0f ? products[lane] / squares[lane] : 0.0f;
}

GOLDSTICK_INLINE void fit_by_changes(const BlockFit& fit, Tile& tile) {
    const float half = static_cast<float>(fit.code_max);
    float largest[kLanes];
    largest_of(tile, fit.width, largest);
    for (std::int64_t i = 0; i < fit.width; ++i) {
        const float* x = &tile.x[i * kLanes];
        GOLDSTICK_LANES {
            tile.weight[i * kLanes + lane] = x[lane] * x[lane];
            tile.codes[i * kLanes + lane] = round_within((-half / largest[lane]) * x[lane], -half, half - 1.0f);
        }
    }
    change_codes<false>(tile, -half, half - 1.0f, fit.width);
    finish_signed(tile, largest, half, fit.width);
}

GOLDSTICK_INLINE void positive_error(const Tile& tile, const float* inverse, float most, std::int64_t width, float* error) {
    float scale[kLanes];
    GOLDSTICK_LANES {
        scale[lane] = 1.0f / inverse[lane];
        error[lane] = 0.0f;
    }
    for (std::int64_t i = 0; i < width; ++i) {
        const float *x = &tile.x[i * kLanes], *w = &tile.weight[i * kLanes];
        GOLDSTICK_LANES {
            const float moved = x[lane] - scale[lane] * round_within(inverse[lane] * x[lane], 0.0f, most);
            error[lane] += (w[lane] * moved) * moved;
        }
    }
}

GOLDSTICK_INLINE void fit_positive(const BlockFit& fit, Tile& tile) {
    const float most = static_cast<float>(fit.code_max);
    float high[kLanes], inverse[kLanes], kept[kLanes], error[kLanes], best[kLanes];
    GOLDSTICK_LANES high[lane] = 0.0f;
    for (std::int64_t i = 0; i < fit.width; ++i) {
        const float* x = &tile.x[i * kLanes];
        GOLDSTICK_LANES high[lane] = x[lane] > high[lane] ? x[lane] : high[lane];
    }
    GOLDSTICK_LANES kept[lane] = most / high[lane];
    positive_error(tile, kept, most + 1.0f, fit.width, best);
    for (std::int64_t t = 0; t < fit.tries; ++t) {
        GOLDSTICK_LANES inverse[lane] = fit.shifts[t] / high[lane];
        positive_error(tile, inverse, most, fit.width, error);
        GOLDSTICK_LANES {
            const bool better = error[lane] < best[lane];
            best[lane] = better ? error[lane] : best[lane];
            kept[lane] = better ? inverse[lane] : kept[lane];
        }
    }
    for (std::int64_t i = 0; i < fit.width; ++i) {
        GOLDSTICK_LANES tile.codes[i * kLanes + lane] = round_within(kept[lane] * tile.x[i * kLanes + lane], 0.0f, most);
    }
    change_codes<true>(tile, 0.0f, most, fit.width);
    GOLDSTICK_LANES {
        const bool dead = high[lane] < kLeast;
        tile.scale[lane] = dead ? 0.0f : tile.scale[lane];
        for (std::int64_t i = 0; dead && i < fit.width; ++i) tile.codes[i * kLanes + lane] = 0.0f;
    }
}

GOLDSTICK_INLINE void table_line(const BlockFit& fit, const Tile& tile, const float* inverse, float* products, float* squares) {
    GOLDSTICK_LANES products[lane] = squares[lane] = 0.0f;
    for (std::int64_t i = 0; i < fit.width; ++i) {
        const float *x = &tile.x[i * kLanes], *w = &tile.weight[i * kLanes];
        float value[kLanes];
        GOLDSTICK_LANES value[lane] = fit.table[0];
        for (int e = 0; e < 15; ++e) {
            // Values are whole numbers: near the middle between two of them distances are exact, and ties go up.
            const float middle = 0.5f * (fit.table[e] + fit.table[e + 1]), step = fit.table[e + 1] - fit.table[e];
            GOLDSTICK_LANES value[lane] += inverse[lane] * x[lane] >= middle ? step : 0.0f;
        }
        GOLDSTICK_LANES {
            products[lane] += (w[lane] * value[lane]) * x[lane];
            squares[lane] += (w[lane] * value[lane]) * value[lane];
        }
    }
}

GOLDSTICK_INLINE void fit_table(const BlockFit& fit, Tile& tile) {
    float largest[kLanes], inverse[kLanes], products[kLanes], squares[kLanes], best[kLanes];
    largest_of(tile, fit.width, largest);
    GOLDSTICK_LANES inverse[lane] = 1.0f / (-largest[lane] / fit.table[0]);
    table_line(fit, tile, inverse, products, squares);
    GOLDSTICK_LANES {
        tile.scale[lane] = squares[lane] > 0.0f ? products[lane] / squares[lane] : 0.0f;
        best[lane] = tile.scale[lane] * products[lane];
    }
    for (std::int64_t t = 0; t < fit.tries; ++t) {
        GOLDSTICK_LANES inverse[lane] = fit.shifts[t] / largest[lane];
        table_line(fit, tile, inverse, products, squares);
        GOLDSTICK_LANES {
            const bool better = squares[lane] > 0.0f && products[lane] * products[lane] > best[lane] * squares[lane];
            tile.scale[lane] = better ? products[lane] / squares[lane] : tile.scale[lane];
            best[lane] = better ? tile.scale[lane] * products[lane] : best[lane];
        }
    }
    GOLDSTICK_LANES tile.scale[lane] = std::fabs(largest[lane]) < kLeast ? 0.0f : tile.scale[lane];
}

// Groups from `first` on; those past the end repeat the last one and are not stored.
GOLDSTICK_INLINE void fit_tile(const BlockFit& fit, std::int64_t first, Tile& tile) {
    const int used = static_cast<int>(std::min<std::int64_t>(kLanes, fit.groups - first));
    GOLDSTICK_LANES {
        const std::int64_t from = (first + std::min(lane, used - 1)) * fit.width;
        for (std::int64_t i = 0; i < fit.width; ++i) {
            tile.x[i * kLanes + lane] = fit.x[from + i];
            if (fit.weight) tile.weight[i * kLanes + lane] = fit.weight[from + i];
        }
    }
    switch (fit.kind) {
        case FitKind::affine: fit_affine(fit, tile); break;
        case FitKind::symmetric: fit_symmetric(fit, tile); break;
        case FitKind::changes: fit_by_changes(fit, tile); break;
        case FitKind::positive: fit_positive(fit, tile); break;
        case FitKind::table: fit_table(fit, tile); break;
    }
    for (int lane = 0; lane < used; ++lane) {
        fit.scale[first + lane] = tile.scale[lane];
        if (fit.minimum) fit.minimum[first + lane] = tile.minimum[lane];
        for (std::int64_t i = 0; fit.codes && i < fit.width; ++i) {
            fit.codes[(first + lane) * fit.width + i] = static_cast<std::uint8_t>(tile.codes[i * kLanes + lane]);
        }
    }
}

void fit_tile_scalar(const BlockFit& fit, std::int64_t first, Tile& tile) { fit_tile(fit, first, tile); }

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2"))) void fit_tile_avx2(const BlockFit& fit, std::int64_t first, Tile& tile) {
    fit_tile(fit, first, tile);
}
#else
void fit_tile_avx2(const BlockFit& fit, std::int64_t first, Tile& tile) { fit_tile(fit, first, tile); }
#endif

}  // namespace

void fit_blocks(const BlockFit& fit, int threads, bool use_avx2) {
    const auto fit_one = use_avx2 ? fit_tile_avx2 : fit_tile_scalar;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Tile tile(fit.width);
#pragma omp for schedule(static)
        for (std::int64_t first = 0; first < fit.groups; first += kLanes) {
            fit_one(fit, first, tile);
        }
    }
}

}  // namespace goldstick
