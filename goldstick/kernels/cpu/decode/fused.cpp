#include "decode/fused.hpp"

#include <cmath>

#include "base/floats.hpp"
#include "base/inline.hpp"
#include "base/vector_math.hpp"

namespace goldstick {

namespace {

template <typename T>
GOLDSTICK_INLINE void norm_row(const NormCall<T>& call, std::int64_t row) {
    const T* x = call.x + row * call.columns;
    T* y = call.y + row * call.columns;
    float parts[kLanes] = {};
    std::int64_t i = 0;
    for (; i + kLanes <= call.columns; i += kLanes) {
        for (std::int64_t lane = 0; lane < kLanes; ++lane) {
            const float value = to_float(x[i + lane]);
            parts[lane] += value * value;
        }
    }
    for (; i < call.columns; ++i) {
        const float value = to_float(x[i]);
        parts[i % kLanes] += value * value;
    }
    for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
        for (std::int64_t lane = 0; lane < half; ++lane) parts[lane] += parts[lane + half];
    }
    const float inverse = 1.0f / std::sqrt(parts[0] / static_cast<float>(call.columns) + call.epsilon);
    for (i = 0; i < call.columns; ++i) {
        store(y + i, round_to<T>(to_float(call.weight[i]) * round_to<T>(to_float(x[i]) * inverse)));
    }
}

template <typename T>
GOLDSTICK_INLINE void gate_in(const T* gate, const T* up, T* y, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
        const float value = to_float(gate[i]);
        const float activated = value / (1.0f + exponential(-value));
        store(y + i, round_to<T>(round_to<T>(activated) * to_float(up[i])));
    }
}

template <typename T>
GOLDSTICK_AVX2 void norm_avx2(const NormCall<T>& call, std::int64_t row) {
    norm_row(call, row);
}
template <typename T>
void norm_scalar(const NormCall<T>& call, std::int64_t row) {
    norm_row(call, row);
}
template <typename T>
GOLDSTICK_AVX2 void gate_avx2(const T* gate, const T* up, T* y, std::int64_t count) {
    gate_in(gate, up, y, count);
}
template <typename T>
void gate_scalar(const T* gate, const T* up, T* y, std::int64_t count) {
    gate_in(gate, up, y, count);
}

}  // namespace

template <typename T>
void rms_norm(const NormCall<T>& call, int threads, bool use_avx2) {
    auto* const run = use_avx2 ? norm_avx2<T> : norm_scalar<T>;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (std::int64_t row = 0; row < call.rows; ++row) run(call, row);
}

template <typename T>
void gated_silu(const GateCall<T>& call, int threads, bool use_avx2) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (std::int64_t row = 0; row < call.rows; ++row) {
        const T* gate = call.x + row * 2 * call.columns;
        gate_numbers(gate, gate + call.columns, call.y + row * call.columns, call.columns, use_avx2);
    }
}

template <typename T>
void gate_numbers(const T* gate, const T* up, T* y, std::int64_t count, bool use_avx2) {
    (use_avx2 ? gate_avx2<T> : gate_scalar<T>)(gate, up, y, count);
}

template void rms_norm<float>(const NormCall<float>&, int, bool);
template void rms_norm<bfloat16>(const NormCall<bfloat16>&, int, bool);
template void rms_norm<float16>(const NormCall<float16>&, int, bool);
template void gated_silu<float>(const GateCall<float>&, int, bool);
template void gated_silu<bfloat16>(const GateCall<bfloat16>&, int, bool);
template void gated_silu<float16>(const GateCall<float16>&, int, bool);
template void gate_numbers<float>(const float*, const float*, float*, std::int64_t, bool);
template void gate_numbers<bfloat16>(const bfloat16*, const bfloat16*, bfloat16*, std::int64_t, bool);
template void gate_numbers<float16>(const float16*, const float16*, float16*, std::int64_t, bool);

}  // namespace goldstick
