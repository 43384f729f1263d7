// Rows do not meet: a tile of rows is transposed, so that one vector instruction works on one column of several rows,
// and goes through all columns while it lies in the first-level cache.
#include "calibration/gptq.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/floats.hpp"
#include "base/inline.hpp"

namespace goldstick {

namespace {

constexpr int kLanes = 16;  // rows of a tile
constexpr int kPerVector = 4;
constexpr int kVectors = kLanes / kPerVector;
typedef double Lanes __attribute__((vector_size(kPerVector * sizeof(double))));

// Whole numbers, ties to even, for |value| < 2^22: adding 1.5 · 2^23 leaves no room for a fraction.
GOLDSTICK_INLINE float round_half_even(float value) {
    constexpr float kMagic = 12582912.0f;
    return (value + kMagic) - kMagic;
}

template <Precision precision>
GOLDSTICK_INLINE float rounded(float value) {
    if constexpr (precision == Precision::bfloat16) {
        return round_to<bfloat16>(value);
    } else if constexpr (precision == Precision::float16) {
        return round_to<float16>(value);
    } else {
        return value;
    }
}

// The columns of a tile that are still float64: subtract from column k what the columns before it left, in their
// order. Looking back at k instead of forward from each j subtracts the same numbers in the same order, and keeps the
// sums in registers.
GOLDSTICK_INLINE void take_off_errors(const double* errors, const double* factor, std::int64_t k, double* column) {
    Lanes sum[kVectors];
    std::memcpy(sum, column, sizeof sum);
    for (std::int64_t j = 0; j < k; ++j) {
        const double weight = factor[j];
        const double* error = errors + j * kLanes;
        for (int v = 0; v < kVectors; ++v) {
            Lanes lanes;
            std::memcpy(&lanes, error + v * kPerVector, sizeof lanes);
            sum[v] -= lanes * weight;
        }
    }
    std::memcpy(column, sum, sizeof sum);
}

// Solve kLanes rows from `first` on; rows past the end repeat the last one and are not stored.
// `work` [width, kLanes] holds the weights of the columns to come and the errors of those that are done;
// `factor` [width, width] is U transposed.
enum class Codes { integers, minimums, table };

// The places of `ratio` in a table: how many edges lie below it, and the sign.
GOLDSTICK_INLINE void look_up(const GptqBlock& block, const float* ratio, float* code) {
    const float sign_bit = static_cast<float>(1 << (block.bits - 1));
    float size[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
        size[lane] = block.sign ? std::fabs(ratio[lane]) : ratio[lane];
        code[lane] = 0.0f;
    }
    for (int e = 0; e < block.edge_count; ++e) {
        const float edge = block.edges[e];
        for (int lane = 0; lane < kLanes; ++lane) {
            code[lane] += size[lane] > edge ? 1.0f : 0.0f;
        }
    }
    if (block.sign) {
        for (int lane = 0; lane < kLanes; ++lane) {
            const bool below = block.zero_sign ? std::signbit(ratio[lane]) : ratio[lane] < 0.0f;
            code[lane] += below ? sign_bit : 0.0f;
        }
    }
}

template <Precision precision, Codes kind>
GOLDSTICK_INLINE void solve_tile(const GptqBlock& block, const double* factor, std::int64_t first, double* work) {
    const std::int64_t width = block.width;
    const int used = static_cast<int>(std::min<std::int64_t>(kLanes, block.rows - first));
    std::int64_t row[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
        row[lane] = first + std::min(lane, used - 1);
        const double* from = block.weight + row[lane] * width;
        for (std::int64_t j = 0; j < width; ++j) {
            work[j * kLanes + lane] = from[j];
        }
    }
    const float middle = static_cast<float>(1 << (block.bits - 1));
    const float lowest = -middle;
    const float highest = static_cast<float>((1 << block.bits) - 1) - middle;
    float scale[kLanes], offset[kLanes], zero[kLanes], code[kLanes];
    std::int64_t group = -1;
    for (std::int64_t k = 0; k < width; ++k) {
        if (block.group[k] != group) {
            group = block.group[k];
            for (int lane = 0; lane < kLanes; ++lane) {
                const std::int64_t at = row[lane] * block.groups + group;
                scale[lane] = block.scale[at];
                offset[lane] = block.zero ? block.zero[at] - middle : 0.0f;
                zero[lane] = block.zero ? rounded<precision>(block.zero[at]) : middle;
            }
        }
        double column[kLanes];
        std::memcpy(column, work + k * kLanes, sizeof column);
        take_off_errors(work, factor + k * width, k, column);
        const double pivot = factor[k * width + k];
        if constexpr (kind == Codes::table) {
            float ratio[kLanes];
            for (int lane = 0; lane < kLanes; ++lane) {
                const float quotient = static_cast<float>(column[lane]) / scale[lane];
                ratio[lane] = scale[lane] == 0.0f ? 0.0f : quotient;
            }
            look_up(block, ratio, code);
            for (int lane = 0; lane < kLanes; ++lane) {
                const float value = rounded<precision>(block.table[static_cast<int>(code[lane])] * scale[lane]);
                column[lane] = (column[lane] - static_cast<double>(value)) / pivot;
            }
        }
        for (int lane = 0; kind == Codes::minimums && lane < kLanes; ++lane) {
            const float quotient = (static_cast<float>(column[lane]) + zero[lane]) / scale[lane];
            float ratio = scale[lane] == 0.0f ? 0.0f : quotient;
            ratio = ratio > 0.0f ? ratio : 0.0f;
            ratio = ratio < highest + middle ? ratio : highest + middle;
            code[lane] = round_half_even(ratio);
            const float value = code[lane] * scale[lane] - zero[lane];
            column[lane] = (column[lane] - static_cast<double>(value)) / pivot;
        }
        for (int lane = 0; kind == Codes::integers && lane < kLanes; ++lane) {
            const float quotient = static_cast<float>(column[lane]) / scale[lane];
            float ratio = (scale[lane] == 0.0f ? 0.0f : quotient) + offset[lane];
            // Clamped first, so that rounding stays in range; the ends are whole numbers. A NaN becomes the lowest.
            ratio = ratio > lowest ? ratio : lowest;
            ratio = ratio < highest ? ratio : highest;
            code[lane] = round_half_even(ratio) + middle;
            const float value = rounded<precision>(rounded<precision>(code[lane] - zero[lane]) * scale[lane]);
            column[lane] = (column[lane] - static_cast<double>(value)) / pivot;
        }
        std::memcpy(work + k * kLanes, column, sizeof column);
        for (int lane = 0; lane < used; ++lane) {
            block.codes[row[lane] * width + k] = static_cast<std::uint8_t>(code[lane]);
        }
    }
    for (int lane = 0; lane < used; ++lane) {
        double* to = block.errors + row[lane] * width;
        for (std::int64_t j = 0; j < width; ++j) {
            to[j] = work[j * kLanes + lane];
        }
    }
}

template <Codes kind>
GOLDSTICK_INLINE void solve_tile_of(const GptqBlock& block, const double* factor, std::int64_t first, double* work) {
    switch (block.precision) {
        case Precision::float32:
            return solve_tile<Precision::float32, kind>(block, factor, first, work);
        case Precision::bfloat16:
            return solve_tile<Precision::bfloat16, kind>(block, factor, first, work);
        case Precision::float16:
            return solve_tile<Precision::float16, kind>(block, factor, first, work);
    }
}

GOLDSTICK_INLINE void solve_tile_in(const GptqBlock& block, const double* factor, std::int64_t first, double* work) {
    if (block.table) {
        solve_tile_of<Codes::table>(block, factor, first, work);
    } else if (block.minimums) {
        solve_tile<Precision::float32, Codes::minimums>(block, factor, first, work);
    } else {
        solve_tile_of<Codes::integers>(block, factor, first, work);
    }
}

void solve_tile_scalar(const GptqBlock& block, const double* factor, std::int64_t first, double* work) {
    solve_tile_in(block, factor, first, work);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2"))) void solve_tile_avx2(const GptqBlock& block, const double* factor, std::int64_t first, double* work) {
    solve_tile_in(block, factor, first, work);
}
#else
void solve_tile_avx2(const GptqBlock& block, const double* factor, std::int64_t first, double* work) {
    solve_tile_in(block, factor, first, work);
}
#endif

}  // namespace

void solve_gptq_block(const GptqBlock& block, int threads, bool use_avx2) {
    const auto solve = use_avx2 ? solve_tile_avx2 : solve_tile_scalar;
    const std::int64_t width = block.width;
    std::vector<double> factor(static_cast<std::size_t>(width * width));
    for (std::int64_t j = 0; j < width; ++j) {
        for (std::int64_t k = j; k < width; ++k) {
            factor[static_cast<std::size_t>(k * width + j)] = block.factor[j * width + k];
        }
    }
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        std::vector<double> work(static_cast<std::size_t>(width) * kLanes);
#pragma omp for schedule(static)
        for (std::int64_t first = 0; first < block.rows; first += kLanes) {
            solve(block, factor.data(), first, work.data());
        }
    }
}

}  // namespace goldstick
