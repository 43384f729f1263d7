// Which of several ranges rounds a group of weights with the least error:
//
//     n     = the number of the grid nearest to w / scale
//     d     = n · scale − w
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

// The numbers that codes stand for. Integers: clamp(round(w / scale + zero), 0, 2^bits − 1) − zero. Floats: multiples of
// 2^(e − mantissa_bits) in the binade of 2^e, below 2^e = least_normal those of that one; ties to even. A table: 16
// numbers in ascending order, of which as many are below the nearest as there are edges below w / scale.
enum class NumberKind { integers, floats, table };

struct Numbers {
    NumberKind kind;
    int bits;                    // of integers
    int mantissa_bits;           // of floats
    float least_normal, largest; // of floats
    const float* values;         // [16], of a table
    const float* edges;          // [15], of a table
};

// All arrays are dense and row-major.
struct RangeSearch {
    const float* values;      // [rows, groups, width]
    const float* scale;       // [rows, groups, candidates]
    const float* zero;        // [rows, groups, candidates], of integers, or null: 2^(bits − 1)
    const float* importance;  // [groups, width], 0 or more, or null: all are 1
    std::int64_t* best;       // [rows, groups]: the first candidate of least error
    std::int64_t rows, groups, width, candidates;
    Numbers numbers;
};

// Search all rows on `threads` threads.
void search_ranges(const RangeSearch& search, int threads, bool use_avx2);

}  // namespace goldstick
