// A decoder block of one new token for each sequence, its layers prepared:
//
//     h = x + output(attention(rotary(qkv(norm(x)))))        y = h + down(silu(gate(norm(h))) · up(norm(h)))
//
// Each step is that of its own header, and each result is rounded to T, so that the block gives the bits of its parts.
#pragma once

#include <cstdint>
#include <vector>

#include "decode/attention.hpp"
#include "linear/prepared_linear.hpp"

namespace goldstick {

struct BlockLayers {
    std::vector<const PreparedLinear*> qkv;  // queries, keys and values side by side, by one layer or several
    const PreparedLinear* output;   // maps the heads back
    const PreparedLinear* gate_up;  // gates, then ups
    const PreparedLinear* down;
};

// Where the tokens of neighbouring sequences go, whose caches lie in one buffer.
struct Place {
    Cached keys, values;
    std::int64_t filled, tokens_before, turned;
    std::int64_t first, sequences;  // of the batch
};

template <typename T>
struct BlockCall {
    BlockLayers layers;
    const T* x;                // [batch, width]
    T* y;                      // [batch, width]
    const T* attention_norm;   // [width]
    const T* feed_norm;        // [width]
    float attention_epsilon, feed_epsilon;
    const T* cos;              // [batch or 1, channels]
    const T* sin;
    std::vector<Place> places;  // one for all sequences, or one for each
    std::int64_t batch, heads, kv_heads, channels;
    std::int64_t angle_stride;  // from one sequence's angles to the next; 0 where they are the same
    float scaling;
};

// Blocks one after the other: the x of each is the y of the one before.
template <typename T>
void decoder_blocks(const std::vector<BlockCall<T>>& calls, int threads, bool use_avx2);

}  // namespace goldstick
