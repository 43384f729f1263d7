// Attention of one new token for each sequence over its cached keys and values, grouped query heads included.
//
//     o = Σ over t  softmax(scaling · q·k[t])[t] · v[t]
//
// The cache lies in up to three runs of tokens one after the other; each holds floats, or codes with scales. Scales of
// channels are folded into q and o, scales and minimums of tokens into the scores and the weights of the softmax, and
// where codes are of turned channels, q is turned and their part of o turned back: codes are widened in the first-level
// cache, and no dequantized copy is ever made. Order and number of partial sums are fixed, so neither threads nor
// instructions change a bit.
#pragma once

#include <cstdint>

#include "decode/widen.hpp"

namespace goldstick {

// Keys or values of a run of tokens, of one sequence and one head after another.
struct Run {
    const void* data;          // [batch, kv_heads, …, channels]; of int4 half as many bytes
    const float* token_scale;  // of codes: [batch, kv_heads, …], or null; of int4 [batch, kv_heads, …, 2], with minimums
    std::int64_t batch_stride, head_stride;  // of `data`, in elements; tokens lie one after the other
    std::int64_t scale_batch_stride, scale_head_stride;  // of `token_scale`
    CacheCoding coding;
};

constexpr int kRuns = 3;

template <typename T>
struct AttentionCall {
    const T* q;  // [batch, heads, channels], `q_stride` from one sequence to the next
    T* out;      // [batch, heads, channels]
    Run keys[kRuns], values[kRuns];
    std::int64_t tokens[kRuns];        // of each run
    const float* key_scale;            // of codes: [kv_heads, channels], or null where tokens have scales
    const float* value_scale;
    std::int64_t batch, heads, kv_heads, channels, q_stride;
    std::int64_t turned;  // of codes: how many channels a Hadamard transform has mixed, a power of two; 0 for none
    float scaling;
};

constexpr std::int64_t kMostGrouped = 64;  // query heads that read one head of the cache

template <typename T>
void attend(const AttentionCall<T>& call, int threads, bool use_avx2);

// The same in pieces: one sequence and one head of the cache each, batch · kv_heads of them, with memory for so many floats.
template <typename T>
std::int64_t scratch_of(const AttentionCall<T>& call);
template <typename T>
void attend_item(const AttentionCall<T>& call, std::int64_t item, float* scratch, bool use_avx2);

// Rotary embedding of neighbouring halves, x · cos + rotate_half(x) · sin, each operation rounded to T.
template <typename T>
struct RotaryCall {
    const T* x;         // [batch, (heads + 2 · kv_heads) · channels]: queries, keys, values of one token each
    const T* cos;       // [batch or 1, channels]
    const T* sin;
    T* q;               // [batch, heads, channels]
    T* keys;            // where the token's key goes, [batch, kv_heads, …, channels]
    T* values;
    std::int64_t batch, heads, kv_heads, channels;
    std::int64_t angle_stride;  // from one sequence's angles to the next; 0 where they are the same
    std::int64_t batch_stride, head_stride;  // of keys and values
};

template <typename T>
void rotate(const RotaryCall<T>& call, bool use_avx2);

// Keys or values of some sequences, and where those of their next token go: behind `filled` others.
struct Cached {
    CacheCoding coding;
    void* data;          // dense buffer [batch, kv_heads, capacity, …] of T or codes, as in Run
    float* token_scale;  // of codes: dense buffer [batch, kv_heads, scale_capacity, 1 or 2], or null
    const float* scale;  // of codes: [kv_heads, channels], or null where tokens have scales
    std::int64_t capacity, scale_capacity;
    const void* before;  // of codes: tokens before them that stay floats, or null
    std::int64_t before_batch_stride, before_head_stride;
};

// Both for a token of each sequence: rotated and written behind others, then attending to all of them.
template <typename T>
struct TokenCall {
    const T* x;    // [batch, (heads + 2 · kv_heads) · channels]: queries, keys, values
    const T* cos;  // [batch or 1, channels]
    const T* sin;
    T* q;       // [batch, heads, channels], memory for the rotated queries
    T* out;     // [batch, heads, channels]
    T* states;  // [2, batch, kv_heads, channels], memory for keys and values that become codes
    Cached keys, values;
    std::int64_t batch, heads, kv_heads, channels;
    std::int64_t angle_stride;
    std::int64_t filled, tokens_before, turned;
    float scaling;
};

template <typename T>
void attend_token(const TokenCall<T>& call, int threads, bool use_avx2);

// Its two steps: the first rotates and writes, and gives what the second attends.
template <typename T>
AttentionCall<T> write_token(const TokenCall<T>& call, bool use_avx2);

}  // namespace goldstick
