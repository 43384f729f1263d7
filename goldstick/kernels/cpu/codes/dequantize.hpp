// Packed codes to floating-point weights: w[o, i] = (u[o, i] − zero[o, g]) · scale[o, g], g = i / group_size.
//
// Element k of a row occupies bits `bits·k …` of the row's bit stream, counted from the least significant bit.
// Both operations round to the type of the scale, so results are bit-equal to the same two operations in torch. In
// superblocks w = value · (scale · d) − zero · d', in float, rounded to the type at the end.
#pragma once

#include <cstdint>

#include "base/floats.hpp"

namespace goldstick {

// One weight matrix; all arrays are dense and row-major.
template <typename T>
struct Matrix {
    const std::uint32_t* packed;  // [rows, width]
    const T* scale;               // [rows, groups]
    const T* zero;                // [rows, groups], or null: the zero is 2^(bits − 1)
    T* out;                       // [rows, columns]
    std::int64_t rows, columns, width, groups, group_size;
    int bits;
    const float* units = nullptr;  // [rows, 1 or 2, superblocks]: d and d', or null
    std::int64_t superblocks = 0;
};

// A run of one row's columns that share a scale.
template <typename T>
struct Segment {
    const std::uint8_t* stream;  // the row's bytes
    std::int64_t stream_bytes;   // none may be read from here on
    std::int64_t begin, end;     // columns
    float zero, scale, minimum;
    T* out;                      // the row's weights
};

// Write the columns begin … end of a segment one by one.
template <typename T>
void dequantize_scalar(const Segment<T>& segment, int bits, std::int64_t begin, std::int64_t end);

// Write as many columns of a segment as fit whole vectors; return the first column left to do.
template <typename T>
std::int64_t dequantize_avx2(const Segment<T>& segment, int bits);

// Write the whole matrix on `threads` threads.
template <typename T>
void dequantize_matrix(const Matrix<T>& matrix, int threads, bool use_avx2);

// Whether this processor runs the AVX2 kernels.
bool has_avx2();

}  // namespace goldstick
