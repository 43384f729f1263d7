// Many tokens: the codes of 16 rows are spread out once, two or four columns to a 32-bit lane and a row to each lane,
// and multiplied by as many activations, a tile of tokens at a time. Lanes are rows, so nothing is added across lanes.
#pragma once

#include "linear/linear.hpp"

namespace goldstick {

// What a chunk of 16 rows is multiplied with and added to.
struct Rows {
    const std::int32_t* codes;  // [step][kRows], of the panel, on cache lines
    const std::uint8_t* ahead;  // what is unpacked next: while the first tile is multiplied, memory is called for
    const float* weight_scale;  // [kRows]
    const float* zero;          // [kRows], or null
    bool minimums;              // whether zeros are such
    std::int32_t* products;     // [tile][tokens][kRows]: of a span's chunks before this one
    float* sums;                // [tile][tokens][kRows]: of the spans before this one
};

// A chunk of the columns and tiles of the same number of tokens.
struct Strip {
    Rows rows[kBlocks];            // as many as the plan takes together
    const std::int32_t* lines;     // [step], where memory is called for, from `ahead` on
    std::int64_t tiles, tokens;    // tokens of all tiles
    const std::int32_t* q;         // [tile][step][tokens]
    const std::int32_t* low;       // the same, of low bytes, or null
    const float* scale;            // [tile][tokens], of the activations
    const std::int32_t* shift;     // [tile][tokens]
    std::int64_t matrix_steps;     // of AMX's matrices
    const Overflow* overflow;          // [tile][step]
    const std::int32_t* overflows;  // [tile], or null
};

// Add what a chunk comes to. One for each number of tokens that a tile may have, from 1 on; AMX's tiles are all whole.
using Multiply = void(const Strip&, const Chunk&);
Multiply* const* gemm_avx2(const Columns& columns);
Multiply* const* gemm_avx512(const Columns& columns);
Multiply* gemm_amx(bool halved);

// AMX's registers, set up for matrices of these columns as long as it lives.
class Tiles {
public:
    explicit Tiles(const Columns& columns);
    ~Tiles();
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;
};

}  // namespace goldstick
