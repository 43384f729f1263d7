// Rows of float codes, sixteen columns at a time. The source of every instruction set: a file defines GOLDSTICK_HERE, how
// it is compiled, and before it includes this
//
//     struct Sixteen: floats, with zero(), all(float), load(), store(), times() and add_product(), which rounds once;
//     template <Widening> struct Wide: made of FloatCodes; sixteen(row, column) widens the codes from a column on, a
//     multiple of 16, look<count>(row, column) looks at so many, 16 or 32, and seen_no_number() tells whether any that it
//     looked at stands for no finite number. Those of FP8 are widened as if they were numbers, and the portable kernel,
//     which reads all from the table, does it anew.
#pragma once

#include <algorithm>

#include "base/inline.hpp"
#include "codes/float_codes.hpp"
#include "codes/float_row_kernels.hpp"

namespace goldstick {
namespace {

constexpr int kLanes = 16;   // sums of a token, column i in sum i mod 16

// The part of a group that is worked on sixteen codes at a time: what lies between multiples of 16.
struct Part {
    std::int64_t begin, end;
};

inline Part part_of(std::int64_t begin, std::int64_t end) {
    const std::int64_t first = (begin + kLanes - 1) / kLanes * kLanes, last = end / kLanes * kLanes;
    return {std::min(first, end), std::max(last, std::min(first, end))};
}

// Add the products of one group that lie outside of its part.
template <Widening widening, int tokens>
inline void add_edges(const FloatCodes& codes, const std::uint8_t* row, std::int64_t begin, std::int64_t end,
                      const Part& part, float step, const float* x, float* rest) {
    for (std::int64_t i = begin; i < end; ++i) {
        if (i == part.begin) i = part.end;
        if (i >= end) break;
        const float value = codes.table[float_code(row, i, codes.bits)] * kShrunk<widening> * step;
        for (int t = 0; t < tokens; ++t) rest[t] += value * x[t * codes.columns + i];
    }
}

inline float total_of(float* sums) {
    for (int half = kLanes / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    return *sums;
}

// Add the products of sixteen columns.
template <Widening widening, int rows, int tokens>
GOLDSTICK_HERE GOLDSTICK_INLINE void add_sixteen(const FloatCodes& codes, const Wide<widening>& wide,
                                                 const std::uint8_t* stream, std::int64_t column, const float* x,
                                                 Sixteen (&partial)[rows][tokens]) {
    Sixteen inputs[tokens];
    GOLDSTICK_UNROLL
    for (int t = 0; t < tokens; ++t) inputs[t] = Sixteen::load(x + t * codes.columns + column);
    GOLDSTICK_UNROLL
    for (int r = 0; r < rows; ++r) {
        const Sixteen values = wide.sixteen(stream + r * codes.row_bytes, column);
        GOLDSTICK_UNROLL
        for (int t = 0; t < tokens; ++t) partial[r][t].add_product(values, inputs[t]);
    }
}

// `rows` rows from `first` on and `tokens` tokens, whose results lie codes.rows apart. Whether all codes were numbers.
template <Widening widening, int rows, int tokens>
GOLDSTICK_HERE bool multiply_rows(const FloatCodes& codes, std::int64_t first, const float* x, float* y) {
    const std::uint8_t* const stream = codes.packed + first * codes.row_bytes;
    Wide<widening> wide(codes);
    Sixteen sums[rows][tokens];
    float rest[rows][tokens];
    for (int r = 0; r < rows; ++r) {
        for (int t = 0; t < tokens; ++t) sums[r][t] = Sixteen::zero(), rest[r][t] = 0.0f;
    }
    for (std::int64_t group = 0; group < codes.groups; ++group) {
        const std::int64_t begin = group * codes.group_size, end = std::min(begin + codes.group_size, codes.columns);
        const Part part = part_of(begin, end);
        Sixteen partial[rows][tokens];
        GOLDSTICK_UNROLL
        for (int r = 0; r < rows; ++r) {
            GOLDSTICK_UNROLL
            for (int t = 0; t < tokens; ++t) partial[r][t] = Sixteen::zero();
        }
        std::int64_t i = part.begin;
        for (; i + 2 * kLanes <= part.end; i += 2 * kLanes) {
            GOLDSTICK_UNROLL
            for (int r = 0; r < rows; ++r) {
                wide.template look<2 * kLanes>(stream + r * codes.row_bytes, i);
            }
            add_sixteen<widening, rows, tokens>(codes, wide, stream, i, x, partial);
            add_sixteen<widening, rows, tokens>(codes, wide, stream, i + kLanes, x, partial);
        }
        if (i < part.end) {
            GOLDSTICK_UNROLL
            for (int r = 0; r < rows; ++r) wide.template look<kLanes>(stream + r * codes.row_bytes, i);
            add_sixteen<widening, rows, tokens>(codes, wide, stream, i, x, partial);
        }
        const float* const steps = codes.step + first * codes.groups + group;
        GOLDSTICK_UNROLL
        for (int r = 0; r < rows; ++r) {
            const Sixteen step = Sixteen::all(steps[r * codes.groups]);
            GOLDSTICK_UNROLL
            for (int t = 0; t < tokens; ++t) sums[r][t].add_product(partial[r][t], step);
        }
        for (int r = 0; r < rows && (part.begin > begin || part.end < end); ++r) {
            const std::uint8_t* const row = stream + r * codes.row_bytes;
            add_edges<widening, tokens>(codes, row, begin, end, part, steps[r * codes.groups], x, rest[r]);
        }
    }
    for (int r = 0; r < rows; ++r) {
        for (int t = 0; t < tokens; ++t) {
            float lanes[kLanes];
            sums[r][t].store(lanes);
            y[t * codes.rows + first + r] = total_of(lanes) + rest[r][t];
        }
    }
    return !wide.seen_no_number();
}

template <Widening widening, typename T>
GOLDSTICK_HERE bool dequantize_row(const FloatCodes& codes, std::int64_t row, T* out) {
    const std::uint8_t* const stream = codes.packed + row * codes.row_bytes;
    Wide<widening> wide(codes);
    for (std::int64_t group = 0; group < codes.groups; ++group) {
        const std::int64_t begin = group * codes.group_size, end = std::min(begin + codes.group_size, codes.columns);
        const float step = codes.step[row * codes.groups + group];
        const Sixteen steps = Sixteen::all(step), grown = Sixteen::all(1.0f / kShrunk<widening>);
        const Part part = part_of(begin, end);
        for (std::int64_t i = part.begin; i < part.end; i += kLanes) {
            wide.template look<kLanes>(stream, i);
            const Sixteen found = Sixteen::times(Sixteen::times(wide.sixteen(stream, i), grown), steps);
            float lanes[kLanes];
            found.store(lanes);
            for (int lane = 0; lane < kLanes; ++lane) store(out + i + lane, round_to<T>(lanes[lane]));
        }
        for (std::int64_t i = begin; i < end; ++i) {
            if (i == part.begin) i = part.end;
            if (i >= end) break;
            store(out + i, round_to<T>(codes.table[float_code(stream, i, codes.bits)] * step));
        }
    }
    return !wide.seen_no_number();
}

template <Widening widening, typename T>
void dequantize(const FloatCodes& codes, std::int64_t row, T* out) {
    if (!dequantize_row<widening>(codes, row, out)) {
        dequantize_with(float_rows_scalar(widening), codes, row, out);
    }
}

}  // namespace
}  // namespace goldstick
