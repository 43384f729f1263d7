// Packed codes of float elements, as numbers and in products: w[o, i] = value(u[o, i]) · step[o, g], g = i / group_size.
//
// Element k of a row occupies bits `bits·k …` of the row's bit stream. What a code stands for is read from a table; E4M3
// is widened by shifts, which gives the same numbers.
#pragma once

#include <cstdint>

#include "base/floats.hpp"

namespace goldstick {

// One weight matrix; all arrays are dense and row-major.
struct FloatCodes {
    const std::uint8_t* packed;  // [rows, row_bytes]
    const float* step;           // [rows, groups]
    const float* table;          // [2^bits]
    std::int64_t rows, columns, row_bytes, groups, group_size;
    int bits;
    bool e4m3;  // whether the table is that of E4M3
};

// Write the whole matrix, each product rounded to T once.
template <typename T>
void dequantize_float_codes(const FloatCodes& codes, T* out, int threads, bool use_avx2);

// y[t, o] = Σ over groups (Σ value · x[t, i]) · step, in float32 and in an order that depends on the columns alone:
// the bits of a token's result are the same in any batch and on any number of threads. For a few tokens.
void multiply_float_codes(const FloatCodes& codes, const float* x, std::int64_t tokens, float* y, int threads,
                          bool use_avx2);

}  // namespace goldstick
