// Which of several ranges rounds a group of weights with the least error:
//
//     code  = clamp(round(w / scale + zero), 0, 2^bits − 1)
//     d     = (code − zero) · scale − w
//     error = Σ importance · |d|^2.5,   |d|^2.5 = (d · d) · √|d|
//
// The same float32 operations in the same order as algorithms/range_error.py, so the choice is the same to the bit: a
// square root is correctly rounded everywhere, a power is not. Blocks of 32 terms are folded in halves, and the blocks
// are added in order. This file must be compiled without contraction.
#pragma once

#include <cstdint>

namespace goldstick {

// Terms that are folded together; a group is filled up with zeros.
constexpr std::int64_t kErrorBlock = 32;

// All arrays are dense and row-major.
struct RangeSearch {
    const float* values;      // [rows, groups, width]
    const float* scale;       // [rows, groups, candidates]
    const float* zero;        // [rows, groups, candidates], or null: the zero is 2^(bits − 1)
    const float* importance;  // [groups, width], 0 or more, or null: all are 1
    std::int64_t* best;       // [rows, groups]: the first candidate of least error
    std::int64_t rows, groups, width, candidates;
    int bits;
};

// Search all rows on `threads` threads.
void search_ranges(const RangeSearch& search, int threads, bool use_avx2);

}  // namespace goldstick
