// The fits of ggml's quantizers: for each group of weights the scale (and the minimum) of least weighted error, as
// algorithms/ggml/fits.py defines them. The same float32 operations in the same order, so all results are equal to the
// bit. This file must be compiled without contraction.
#pragma once

#include <cstdint>

namespace goldstick {

enum class FitKind { affine, symmetric, changes, positive, table };

// All arrays are dense and row-major.
struct BlockFit {
    FitKind kind;
    const float* x;        // [groups, width]
    const float* weight;   // [groups, width]; null for `changes`, whose weight is x²
    float* scale;          // [groups]
    float* minimum;        // [groups], of `affine`
    std::uint8_t* codes;   // [groups, width]; null for `table`
    const float* shifts;   // [tries]: numerators of the inverse steps that are tried after the first
    const float* table;    // [16], ascending whole numbers, of `table`
    std::int64_t groups, width, tries;
    int code_max;          // of `symmetric` and `changes` the half: codes are 0 … 2 · half − 1
    bool absolute;         // whether errors of `affine` count by their magnitude, not squared
};

// Fit all groups on `threads` threads.
void fit_blocks(const BlockFit& fit, int threads, bool use_avx2);

}  // namespace goldstick
