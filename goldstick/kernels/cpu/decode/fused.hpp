// What lies between the products of a decoder block, one pass over memory each.
//
// T is float, bfloat16 or float16. Sums are taken in float32 over kLanes partial sums, whatever the instructions, and nothing is
// contracted: the results are the same bits with and without AVX2, alone and in a batch, on any number of threads.
#pragma once

#include <cstdint>

namespace goldstick {

constexpr std::int64_t kLanes = 32;  // partial sums of a sum over channels

// y = weight · round(x / √(mean x² + epsilon)), rows of `columns`; `round` to T, as the product is.
template <typename T>
struct NormCall {
    const T* x;       // [rows, columns]
    const T* weight;  // [columns]
    T* y;             // [rows, columns]
    std::int64_t rows, columns;
    float epsilon;
};

// y = round(silu(gate)) · up, silu(v) = v / (1 + e^−v). A row holds the gates, then the ups.
template <typename T>
struct GateCall {
    const T* x;  // [rows, 2 · columns]
    T* y;        // [rows, columns]
    std::int64_t rows, columns;
};

// The same for numbers that lie side by side.
template <typename T>
void gate_numbers(const T* gate, const T* up, T* y, std::int64_t count, bool use_avx2);

template <typename T>
void rms_norm(const NormCall<T>& call, int threads, bool use_avx2);

template <typename T>
void gated_silu(const GateCall<T>& call, int threads, bool use_avx2);

}  // namespace goldstick
