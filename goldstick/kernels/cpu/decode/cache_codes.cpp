#include "decode/cache_codes.hpp"

#include <vector>

#include "base/floats.hpp"
#include "base/inline.hpp"
#include "decode/turn.hpp"

namespace goldstick {

namespace {

constexpr float kLargestInt8 = 127.0f, kLargestFp8 = 448.0f, kLargestInt4 = 15.0f;
constexpr float kToWhole = 12582912.0f;  // 1.5 · 2²³: what is added to it is rounded to whole numbers, halves to even

// The code of a number that was clamped; 0 where it is none.
GOLDSTICK_INLINE int whole(float x) { return x == x ? static_cast<int>((x + kToWhole) - kToWhole) : 0; }

GOLDSTICK_INLINE float clamped(float x, float low, float high) { return x > high ? high : x < low ? low : x; }

// The nearest number of E4M3 to one that it can hold.
GOLDSTICK_INLINE std::uint8_t to_e4m3(float x) {
    constexpr float kLeastNormal = 0.015625f, kStepsBelow = 512.0f;
    constexpr std::uint32_t kInfinity = 0x7f800000, kFirstExponent = 127 - 7;
    const std::uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffff;
    const auto sign = static_cast<std::uint8_t>(bits >> 24 & 0x80);
    if (magnitude > kInfinity) return sign | 0x7f;
    const float size = x < 0 ? -x : x;
    if (size < kLeastNormal) return sign | static_cast<std::uint8_t>(whole(size * kStepsBelow));
    const std::uint32_t rounded = magnitude + 0x7ffff + (magnitude >> 20 & 1);
    return sign | static_cast<std::uint8_t>((rounded >> 20) - (kFirstExponent << 3));
}

// max|x|; NaN where one of them is.
GOLDSTICK_INLINE float largest_of(const float* x, std::int64_t count) {
    float largest = 0.0f;
    for (std::int64_t i = 0; i < count; ++i) {
        const float size = x[i] < 0 ? -x[i] : x[i];
        if (size > largest || size != size) largest = size;
    }
    return largest;
}

GOLDSTICK_INLINE int nibble(float x, float low, float step) { return whole(clamped((x - low) / step, 0.0f, kLargestInt4)); }

GOLDSTICK_INLINE void code_nibbles(float* x, std::int64_t channels, std::int64_t turned, std::uint8_t* to, float* ends) {
    if (turned) turn(x, channels, turned);
    float low = x[0], high = x[0];
    for (std::int64_t i = 1; i < channels; ++i) {
        if (x[i] < low || x[i] != x[i]) low = x[i];
        if (x[i] > high || x[i] != x[i]) high = x[i];
    }
    const float ratio = (high - low) / kLargestInt4, step = ratio == 0.0f ? 1.0f : ratio;
    for (std::int64_t i = 0; i < channels; i += 2) {
        to[i / 2] = static_cast<std::uint8_t>(nibble(x[i], low, step) | nibble(x[i + 1], low, step) << 4);
    }
    ends[0] = step;
    ends[1] = low;
}

// `scale` are those of the channels, or null; then the token gets its own.
GOLDSTICK_INLINE void code_bytes(const float* x, std::int64_t channels, bool fp8, const float* scale, std::uint8_t* to,
                                 float* token_scale) {
    const float most = fp8 ? kLargestFp8 : kLargestInt8;
    float own = 1.0f;
    if (scale == nullptr) {
        const float ratio = largest_of(x, channels) / most;
        if (ratio > 0.0f) own = ratio;
        *token_scale = own;
    }
    for (std::int64_t i = 0; i < channels; ++i) {
        const float ratio = clamped(x[i] / (scale == nullptr ? own : scale[i]), -most, most);
        to[i] = fp8 ? to_e4m3(ratio) : static_cast<std::uint8_t>(whole(ratio));
    }
}

template <typename T>
GOLDSTICK_INLINE void write_all(const T* x, const Cached& cached, std::int64_t batch, std::int64_t kv_heads,
                                std::int64_t channels, std::int64_t filled, std::int64_t turned) {
    const bool nibbles = cached.coding == CacheCoding::int4;
    const std::int64_t of_token = nibbles ? channels / 2 : channels, of_scale = nibbles ? 2 : 1;
    std::vector<float> numbers(static_cast<std::size_t>(channels));
    for (std::int64_t head = 0; head < batch * kv_heads; ++head, x += channels) {
        for (std::int64_t i = 0; i < channels; ++i) numbers[static_cast<std::size_t>(i)] = to_float(x[i]);
        auto* const to = static_cast<std::uint8_t*>(cached.data) + (head * cached.capacity + filled) * of_token;
        float* const own =
            cached.token_scale ? cached.token_scale + (head * cached.scale_capacity + filled) * of_scale : nullptr;
        if (nibbles) {
            code_nibbles(numbers.data(), channels, turned, to, own);
        } else {
            const float* const scale = cached.scale ? cached.scale + head % kv_heads * channels : nullptr;
            code_bytes(numbers.data(), channels, cached.coding == CacheCoding::fp8, scale, to, own);
        }
    }
}

template <typename T>
GOLDSTICK_AVX2 void write_avx2(const T* x, const Cached& cached, std::int64_t batch, std::int64_t kv_heads,
                               std::int64_t channels, std::int64_t filled, std::int64_t turned) {
    write_all(x, cached, batch, kv_heads, channels, filled, turned);
}
template <typename T>
void write_scalar(const T* x, const Cached& cached, std::int64_t batch, std::int64_t kv_heads, std::int64_t channels,
                  std::int64_t filled, std::int64_t turned) {
    write_all(x, cached, batch, kv_heads, channels, filled, turned);
}

}  // namespace

template <typename T>
void write_codes(const T* x, const Cached& cached, std::int64_t batch, std::int64_t kv_heads, std::int64_t channels,
                 std::int64_t filled, std::int64_t turned, bool use_avx2) {
    (use_avx2 ? write_avx2<T> : write_scalar<T>)(x, cached, batch, kv_heads, channels, filled, turned);
}

template void write_codes<float>(const float*, const Cached&, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                                 std::int64_t, bool);
template void write_codes<bfloat16>(const bfloat16*, const Cached&, std::int64_t, std::int64_t, std::int64_t,
                                    std::int64_t, std::int64_t, bool);
template void write_codes<float16>(const float16*, const Cached&, std::int64_t, std::int64_t, std::int64_t,
                                   std::int64_t, std::int64_t, bool);

}  // namespace goldstick
