// Many tokens: the codes of 16 rows are spread out once, two or four columns to a 32-bit lane and a row to each lane,
// and multiplied by as many activations, a tile of tokens at a time. Lanes are rows, so nothing is added across lanes.
#pragma once

#include "linear.hpp"

namespace goldstick {

// A chunk of the columns and tiles of the same number of tokens.
struct Strip {
    const std::int32_t* codes;     // [step][kRows], of the panel, on cache lines
    const std::uint8_t* ahead;     // what is unpacked next: while the first tile is multiplied, memory is called for
    const std::int32_t* lines;     // [step], from there on
    std::int64_t tiles, tokens;    // tokens of all tiles
    const std::int32_t* q;         // [tile][step][tokens]
    const std::int32_t* low;       // the same, of low bytes, or null
    const float* scale;            // [tile][tokens], of the activations
    const std::int32_t* shift;     // [tile][tokens]
    const Excess* excess;          // [tile][step]
    const std::int32_t* excesses;  // [tile], or null
    const float* weight_scale;     // [kRows]
    const float* zero;             // [kRows], or null
    std::int32_t* products;        // [tile][tokens][kRows]: of a span's chunks before this one
    float* sums;                   // [tile][tokens][kRows]: of the spans before this one
};

// Add what a chunk comes to. One for each number of tokens that a tile may have, from 1 on.
using Multiply = void(const Strip&, const Chunk&);
Multiply* const* panel_avx2(const Columns& columns);
Multiply* const* panel_avx512(const Columns& columns);
Multiply* const* panel_amx(bool halved);

}  // namespace goldstick
