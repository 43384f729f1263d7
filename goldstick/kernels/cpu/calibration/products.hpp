// Sums of products of whole numbers over tokens: sums[i, j] += Σ_t left[t, i] · right[t, j].
//
// Numbers have at most 2^13 (kLargest) as their size. A product is then at most 2^26, and 31 of them stay below 2^31:
// so many tokens can be summed in 32 bits before they are added to the 64-bit sums, whatever the numbers are. Most are
// far smaller than the largest: over tokens whose squares sum up to less than 2^31 in every channel, no sum of products
// leaves 32 bits either (|Σ a b|² ≤ Σ a² · Σ b²), nor does a part of it. Everything is exact; no order, no chunking and no
// number of threads changes a bit.
#pragma once

#include <cstdint>

#include "base/isa.hpp"

namespace goldstick {

constexpr int kLargest = 1 << 13;

// All arrays are dense and row-major.
struct Products {
    const std::int16_t* left;   // [tokens, rows]
    const std::int16_t* right;  // [tokens, columns]
    std::int64_t* sums;         // [rows, columns]
    std::int64_t tokens, rows, columns;
    bool upper;  // left is right: of tiles below the diagonal nothing is summed
};

// Channels are taken kPanel at a time, tokens in pairs: a packed panel is [pairs][kPanel][2], zeros where there is
// nothing. A tile is one panel of the left against one of the right.
constexpr int kPanel = 48;
using Tile = std::int64_t[kPanel][kPanel];

// Add the products of two packed panels to a tile; `together` pairs of tokens may be summed in 32 bits.
using AddTile = void (*)(const std::int16_t* left, const std::int16_t* right, std::int64_t pairs,
                         std::int64_t together, Tile& tile);
void add_tile_scalar(const std::int16_t* left, const std::int16_t* right, std::int64_t pairs, std::int64_t together,
                     Tile& tile);
void add_tile_avx2(const std::int16_t* left, const std::int16_t* right, std::int64_t pairs, std::int64_t together,
                   Tile& tile);
void add_tile_avx512(const std::int16_t* left, const std::int16_t* right, std::int64_t pairs, std::int64_t together,
                     Tile& tile);

// Add all products on `threads` threads.
void add_products(const Products& products, int threads, Isa isa);

}  // namespace goldstick
