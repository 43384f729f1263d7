// Which kernel rows of float codes take: included last, once an instruction set is there.
#pragma once

#include <type_traits>

#include "codes/float_blocks.hpp"
#include "codes/float_rows.hpp"

namespace goldstick {
namespace {

// As many rows side by side as leave their sums in registers; or one, in blocks.
template <Widening widening, int tokens>
void multiply_all(const FloatCodes& codes, std::int64_t first, std::int64_t count, const float* x, float* y) {
    const std::int64_t end = first + count;
    const auto again = [&](std::int64_t count) {
        float_rows_scalar(widening).multiply(codes, first, count, x, tokens, y);
    };
    if constexpr (kFp8<widening>) {
        auto* const run = codes.group_size == kBlockColumns / 2 ? multiply_blocks<widening, tokens, true>
                                                                : multiply_blocks<widening, tokens, false>;
        for (; first < end && in_blocks(codes); ++first) {
            if (!run(codes, first, x, y)) again(1);
        }
    }
    constexpr int rows = std::max(1, kSums / tokens);
    for (; first + rows <= end; first += rows) {
        if (!multiply_rows<widening, rows, tokens>(codes, first, x, y)) again(rows);
    }
    for (; first < end; ++first) {
        if (!multiply_rows<widening, 1, tokens>(codes, first, x, y)) again(1);
    }
}

template <Widening widening>
void multiply_all(const FloatCodes& codes, std::int64_t first, std::int64_t count, const float* x, std::int64_t tokens,
                  float* y) {
    for (; tokens > 0; tokens -= 4, x += 4 * codes.columns, y += 4 * codes.rows) {
        switch (tokens) {
            case 1: multiply_all<widening, 1>(codes, first, count, x, y); break;
            case 2: multiply_all<widening, 2>(codes, first, count, x, y); break;
            case 3: multiply_all<widening, 3>(codes, first, count, x, y); break;
            default: multiply_all<widening, 4>(codes, first, count, x, y);
        }
    }
}

template <typename Of>
auto for_widening(Widening widening, Of of) {
    switch (widening) {
        case Widening::kNibbles: return of(std::integral_constant<Widening, Widening::kNibbles>());
        case Widening::kE4m3: return of(std::integral_constant<Widening, Widening::kE4m3>());
        case Widening::kE5m2: return of(std::integral_constant<Widening, Widening::kE5m2>());
        default: return of(std::integral_constant<Widening, Widening::kTable>());
    }
}

FloatRowKernels kernels_for(Widening widening) {
    return for_widening(widening, [](auto how) {
        constexpr Widening kHow = decltype(how)::value;
        return FloatRowKernels{multiply_all<kHow>, dequantize<kHow, float>, dequantize<kHow, bfloat16>,
                               dequantize<kHow, float16>};
    });
}

}  // namespace
}  // namespace goldstick
