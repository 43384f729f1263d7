// Packed codes of float elements, as numbers and in products: w[o, i] = value(u[o, i]) · step[o, g], g = i / group_size.
//
// Element k of a row occupies bits `bits·k …` of the row's bit stream. What a code stands for is read from a table, or
// widened by shifts, which gives the same numbers.
#pragma once

#include <cstdint>

#include "base/floats.hpp"
#include "base/isa.hpp"

namespace goldstick {

// How vector instructions widen codes.
enum class Widening { kNibbles, kE4m3, kE5m2, kTable };

// One weight matrix; all arrays are dense and row-major.
struct FloatCodes {
    const std::uint8_t* packed;  // [rows, row_bytes]
    const float* step;           // [rows, groups]
    const float* table;          // [2^bits]
    std::int64_t rows, columns, row_bytes, groups, group_size;
    int bits;
    Widening widening;
};

// Write the whole matrix, each product rounded to T once.
template <typename T>
void dequantize_float_codes(const FloatCodes& codes, T* out, int threads, Isa isa);

// y[t, o] = Σ over groups (Σ value · x[t, i]) · step, in float32 and in an order that depends on the columns alone: what
// lies between multiples of 16 is dealt out to 16 sums, with fused multiply-adds; what does not, is added one by one. So
// the bits of a token's result are the same in any batch, on any number of threads and with any instructions. For a few
// tokens.
void multiply_float_codes(const FloatCodes& codes, const float* x, std::int64_t tokens, float* y, int threads, Isa isa);

}  // namespace goldstick
