// Rows of FP8 codes, sixty-four columns at a time, where scales allow it: bytes are widened where they lie in a vector, and
// inputs are put into the order that comes of it once. A row is read from front to back, into sixty-four sums.
//
// Included after float_rows.hpp. Beside what that asks for, Sixteen has halves(low, high) and plus(a, b), kParts<tokens>
// says in how many parts a block is gone through, so that its sums stay in registers, and Wide has
// add_block<parts, part>(row, column, x, apart, partial), which adds the products of a part of 64 columns for each token,
// whose inputs lie `apart`.
#pragma once

#include <utility>

#include "codes/float_rows.hpp"

namespace goldstick {
namespace {

constexpr int kVectors = kBlockColumns / kLanes;

constexpr std::int64_t kStrip = 512;  // columns whose inputs stay in the first cache from one part to the next

template <int parts, int part, Widening widening, int tokens>
GOLDSTICK_HERE GOLDSTICK_INLINE void add_blocks(const FloatCodes& codes, Wide<widening>& wide, const std::uint8_t* row,
                                                std::int64_t begin, std::int64_t end, const float* x,
                                                Sixteen (&partial)[tokens][kVectors]) {
    for (std::int64_t i = begin; i < end; i += kBlockColumns) {
        if (part == 0) call_ahead(row + i);
        wide.template add_block<parts, part>(row, i, x + i, codes.columns, partial);
    }
}

template <Widening widening, int tokens, int... part>
GOLDSTICK_HERE GOLDSTICK_INLINE void add_parts(const FloatCodes& codes, Wide<widening>& wide, const std::uint8_t* row,
                                               std::int64_t begin, std::int64_t end, const float* x,
                                               Sixteen (&partial)[tokens][kVectors], std::integer_sequence<int, part...>) {
    (add_blocks<sizeof...(part), part>(codes, wide, row, begin, end, x, partial), ...);
}

// One row. A scale belongs to half a block of columns, or to whole blocks. Whether all codes were numbers.
template <Widening widening, int tokens, bool halves>
GOLDSTICK_HERE bool multiply_blocks(const FloatCodes& codes, std::int64_t row, const float* x, float* y) {
    const std::uint8_t* const stream = codes.packed + row * codes.row_bytes;
    const float* const steps = codes.step + row * codes.groups;
    Wide<widening> wide(codes);
    Sixteen sums[tokens];
    float rest[tokens] = {};
    GOLDSTICK_UNROLL
    for (int t = 0; t < tokens; ++t) sums[t] = Sixteen::zero();
    const std::int64_t width = halves ? kBlockColumns : codes.group_size;
    const std::int64_t whole = codes.columns / kBlockColumns * kBlockColumns;
    for (std::int64_t begin = 0; begin < whole; begin += width) {
        const std::int64_t end = std::min(begin + width, whole);
        Sixteen partial[tokens][kVectors];
        GOLDSTICK_UNROLL
        for (int t = 0; t < tokens; ++t) {
            GOLDSTICK_UNROLL
            for (int k = 0; k < kVectors; ++k) partial[t][k] = Sixteen::zero();
        }
        const auto parts = std::make_integer_sequence<int, kParts<tokens>>();
        const std::int64_t strip = kParts<tokens> == 1 ? end - begin : kStrip;
        for (std::int64_t at = begin; at < end; at += strip) {
            add_parts<widening, tokens>(codes, wide, stream, at, std::min(at + strip, end), x, partial, parts);
        }
        const float* const own = steps + begin / codes.group_size;
        const Sixteen step = halves ? Sixteen::halves(own[0], own[1]) : Sixteen::all(own[0]);
        GOLDSTICK_UNROLL
        for (int t = 0; t < tokens; ++t) {
            const Sixteen(&of)[kVectors] = partial[t];
            sums[t].add_product(Sixteen::plus(Sixteen::plus(of[0], of[1]), Sixteen::plus(of[2], of[3])), step);
        }
    }
    for (std::int64_t begin = whole; begin < codes.columns;) {
        const std::int64_t group = begin / codes.group_size, end = std::min((group + 1) * codes.group_size, codes.columns);
        add_edges<widening, tokens>(codes, stream, begin, end, {end, end}, steps[group], x, rest);
        begin = end;
    }
    GOLDSTICK_UNROLL
    for (int t = 0; t < tokens; ++t) {
        float lanes[kLanes];
        sums[t].store(lanes);
        y[t * codes.rows + row] = total_of(lanes) + rest[t];
    }
    return !wide.seen_no_number();
}

}  // namespace
}  // namespace goldstick
