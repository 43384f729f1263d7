// How a call is done: with which instructions, and how many tokens go together.
#pragma once

#include <cstdint>

#include "linear/linear.hpp"

namespace goldstick {

struct Plan {
    Isa isa;
    bool few;       // tokens: codes are used as they are unpacked
    bool in_bytes;  // activations are multiplied as bytes
    bool halved;    // two bytes of each
    bool interleaved;
    std::int64_t tile;   // tokens whose activations lie side by side
    std::int64_t tiles;  // of all tokens
    bool superblocks;    // which have a kernel of their own
    bool may_exceed;     // whether 16 bits might not hold two products of bytes: see overflow.cpp

    // Blocks of rows that go together.
    std::int64_t blocks() const { return in_matrices() || (superblocks && tile <= kPairedTokens) ? kBlocks : 1; }
    bool in_matrices() const { return isa == Isa::kAmx; }

    // The kernel of a block of rows.
    BlockKernel* kernel() const;

    // Tokens of a part, which go through a block of rows together: as many as there may be, since each part unpacks the
    // weight again, but some work for every thread.
    std::int64_t tokens_of_part(std::int64_t blocks, int threads) const;
};

// The plan of a call. Without `bytes`, activations of 8 bits are multiplied as those of 16.
template <typename T>
Plan plan_of(const LinearCall<T>& call, Isa isa, bool bytes = true);

}  // namespace goldstick
