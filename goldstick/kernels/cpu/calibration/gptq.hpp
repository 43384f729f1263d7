// The column loop of GPTQ on one block of columns: round a column, spread its error over those to come.
//
//     code = clamp(round(w / scale + zero), 0, 2^bits − 1)       float32
//     e    = (w − (code − zero) · scale) / U[j, j]               float64
//     w[k] −= e · U[j, k]                                        float64, two roundings
//
// With minimums the code is clamp(round((w + minimum) / scale), 0, 2^bits − 1) and its value code · scale − minimum, in
// float32; with a table the code is that of the value nearest to w / scale, and its value the product of both.
//
// The same operations in the same order as algorithms/column_loop.py, so codes and errors are equal to the bit. This
// file must be compiled without contraction: a fused multiply-add would round once where torch rounds twice.
#pragma once

#include <cstdint>

#include "base/floats.hpp"

namespace goldstick {

// All arrays are dense and row-major.
struct GptqBlock {
    const double* weight;       // [rows, width]
    const double* factor;       // [width, width], upper
    const float* scale;         // [rows, groups]
    const float* zero;          // [rows, groups], or null: the zero is 2^(bits − 1)
    const std::int64_t* group;  // [width], each in 0 … groups − 1
    std::uint8_t* codes;        // [rows, width]
    double* errors;             // [rows, width]
    std::int64_t rows, width, groups;
    int bits;
    bool minimums;              // whether `zero` holds minimums
    const float* edges;         // [values − 1] between the values of a table, signed ones without their sign; or null
    const float* table;         // [2^bits], the value of every code
    int edge_count;
    bool sign, zero_sign;       // whether the top bit of a code is a sign, and whether −0 has it
    Precision precision;  // to which (code − zero) and its product with the scale are rounded: that of the layer
};

// Solve the whole block on `threads` threads.
void solve_gptq_block(const GptqBlock& block, int threads, bool use_avx2);

}  // namespace goldstick
