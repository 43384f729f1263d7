// Outputs that go to memory past the caches: these could not keep them until they are read, and a line that is written
// whole need not be read first.
#pragma once

#include <cstdint>
#include <type_traits>

#include "convolution/convolution.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace goldstick {

constexpr std::int64_t kKeptOutputs = 10 << 18;  // of a call: 10 MiB of floats

// Whether those of a call do: only floats, where vectors are whole lines, and no codes are made of them.
template <typename T>
bool goes_past_caches(const ConvolutionShape& shape, const ConvolutionCall<T>& call) {
    const std::int64_t outputs = call.images * shape.out * shape.rows_of(call.height) * shape.columns_of(call.width);
    return std::is_same_v<T, float> && !call.coded.codes && outputs > kKeptOutputs;
}

inline bool on_a_line(const float* y) { return reinterpret_cast<std::uintptr_t>(y) % 64 == 0; }

// Each thread that wrote such outputs waits until others see them.
inline void wait_for_stores() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

}  // namespace goldstick
