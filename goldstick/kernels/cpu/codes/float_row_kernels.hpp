// What each instruction set brings for rows of float codes.
#pragma once

#include <cstdint>

#include "base/inline.hpp"
#include "codes/float_codes.hpp"

namespace goldstick {

struct FloatRowKernels {
    // `count` rows from `first` on, and all tokens.
    void (*multiply)(const FloatCodes&, std::int64_t first, std::int64_t count, const float* x, std::int64_t tokens,
                     float* y);
    // One row, rounded to a type.
    void (*to_float32)(const FloatCodes&, std::int64_t row, float* out);
    void (*to_bfloat16)(const FloatCodes&, std::int64_t row, bfloat16* out);
    void (*to_float16)(const FloatCodes&, std::int64_t row, float16* out);
};

FloatRowKernels float_rows_scalar(Widening widening);
FloatRowKernels float_rows_avx2(Widening widening);
FloatRowKernels float_rows_avx512(Widening widening);

template <typename T>
void dequantize_with(const FloatRowKernels& kernels, const FloatCodes& codes, std::int64_t row, T* out) {
    if constexpr (kPrecision<T> == Precision::float32) {
        kernels.to_float32(codes, row, out);
    } else if constexpr (kPrecision<T> == Precision::bfloat16) {
        kernels.to_bfloat16(codes, row, out);
    } else {
        kernels.to_float16(codes, row, out);
    }
}

// Values of FP8 are multiplied smaller by this: the bits of a code, moved to where a float has them, stand for that.
template <Widening widening>
constexpr float kShrunk = widening == Widening::kE4m3 ? 0x1p-120f : widening == Widening::kE5m2 ? 0x1p-112f : 1.0f;

// Of FP8: how far a code is moved, which bits of a float it then has, and the first code that is no number, twice as large
// and without its sign.
template <Widening widening>
constexpr bool kFp8 = widening == Widening::kE4m3 || widening == Widening::kE5m2;
template <Widening widening>
constexpr int kMoved = widening == Widening::kE4m3 ? 20 : 21;
template <Widening widening>
constexpr int kFloatBits = static_cast<int>(0x80000000u | 0x7fu << kMoved<widening>);
template <Widening widening>
constexpr int kNoNumber = 2 * (widening == Widening::kE4m3 ? 0x7f : widening == Widening::kE5m2 ? 0x7c : 0x7f);

constexpr std::int64_t kBlockColumns = 64;

// Whether a row is gone through in blocks of so many columns: of FP8, in groups that blocks or their halves fill.
inline bool in_blocks(const FloatCodes& codes) {
    const bool fp8 = codes.widening == Widening::kE4m3 || codes.widening == Widening::kE5m2;
    const std::int64_t group = codes.group_size;
    return fp8 && (group % kBlockColumns == 0 || group == kBlockColumns / 2 || group >= codes.columns);
}

// Place of a column of such a row among the inputs.
GOLDSTICK_INLINE std::int64_t place_in_block(std::int64_t column) {
    return (column & ~63) | (column >> 2 & 3) << 4 | (column >> 4 & 3) << 2 | (column & 3);
}

// Code `index` of a packed row.
GOLDSTICK_INLINE unsigned float_code(const std::uint8_t* row, std::int64_t index, int bits) {
    const std::int64_t first = index * bits;
    const int shift = static_cast<int>(first & 7);
    unsigned code = row[first >> 3] >> shift;
    if (shift + bits > 8) {  // it goes on in the next byte, which the row therefore has
        code |= static_cast<unsigned>(row[(first >> 3) + 1]) << (8 - shift);
    }
    return code & ((1u << bits) - 1u);
}

}  // namespace goldstick
