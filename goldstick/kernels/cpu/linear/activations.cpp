// Activations to integers. The same source is compiled for AVX2 and without: each value takes the same operations.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/floats.hpp"
#include "base/inline.hpp"
#include "linear/linear.hpp"
#include "linear/rounding.hpp"

namespace goldstick {

namespace {

constexpr float kLargest16 = 32639.0f;  // 127 · 256 + 127: both bytes of any such number may have a sign
constexpr float kLargest8 = 127.0f;
constexpr float kLeastScale = 0x1p-120f;  // below this 1 / scale might not be finite
constexpr std::int32_t kInfinity = 0x7f800000;

// The largest |x|, as the bits of a float: at least kInfinity where one is infinite or not a number.
template <typename T>
GOLDSTICK_INLINE std::int32_t largest_bits(const T* x, std::int64_t count) {
    std::int32_t largest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        largest = std::max(largest, static_cast<std::int32_t>(bits_of(to_float(x[i])) & 0x7fffffffu));
    }
    return largest;
}

// To the nearest integer, ties to even, for |value| < 2^22.
GOLDSTICK_INLINE float round_even(float value) {
    constexpr float kMagic = 12582912.0f;  // adding 1.5 · 2^23 leaves no room for a fraction
    return (value + kMagic) - kMagic;
}

// q = round(x · factor).
template <typename T>
GOLDSTICK_INLINE void round_by_product(const T* x, std::int64_t count, float factor, std::int16_t* q) {
    for (std::int64_t i = 0; i < count; ++i) {
        q[i] = static_cast<std::int16_t>(static_cast<std::int32_t>(round_even(to_float(x[i]) * factor)));
    }
}

// q = round(clamp(x / scale + zero, −end, end − 1)) − zero, the division and the sum rounded to T.
template <typename T>
GOLDSTICK_INLINE void round_by_quotient(const T* x, std::int64_t count, float scale, float zero, float end,
                                        std::int16_t* q) {
    const float last = end - 1.0f;
    for (std::int64_t i = 0; i < count; ++i) {
        float value = round_to<T>(round_to<T>(to_float(x[i]) / scale) + zero);
        value = value > -end ? value : -end;
        value = value < last ? value : last;
        q[i] = static_cast<std::int16_t>(static_cast<std::int32_t>(round_even(value) - zero));
    }
}

// Lay the codes of a chunk in the order of its blocks, `Code` wide, `apart` steps between one and the next.
template <typename Code, int lanes, int lane_codes>
GOLDSTICK_INLINE void arrange_as(const std::int16_t* q, std::int64_t padded, std::int64_t apart, std::int32_t* out) {
    constexpr int slots = sizeof(std::int32_t) / sizeof(Code), shifts = lane_codes / slots;
    for (const std::int16_t* const end = q + padded; q < end; q += lanes * lane_codes) {
        for (int j = 0; j < shifts; ++j) {
            for (int d = 0; d < lanes; ++d, out += apart) {
                Code step[slots];
                for (int slot = 0; slot < slots; ++slot) {
                    step[slot] = static_cast<Code>(q[d * lane_codes + j + slot * shifts]);
                }
                std::memcpy(out, step, sizeof step);
            }
        }
    }
}

template <typename Code>
GOLDSTICK_INLINE void arrange(const Columns& columns, const std::int16_t* q, std::int64_t padded, std::int64_t apart,
                              std::int32_t* out) {
    switch (columns.shape) {
        case Shape::kNibbles: return arrange_as<Code, 8, 8>(q, padded, apart, out);
        case Shape::kHalfNibbles: return arrange_as<Code, 4, 8>(q, padded, apart, out);
        case Shape::kQuarterNibbles: return arrange_as<Code, 2, 8>(q, padded, apart, out);
        case Shape::kBytes:
        case Shape::kFives: return arrange_as<Code, 8, 4>(q, padded, apart, out);
        case Shape::kHalfBytes:
        case Shape::kSixes:
        case Shape::kPairs: return arrange_as<Code, 4, 4>(q, padded, apart, out);
    }
}

// The low bytes of a token's codes, to where all of them lie.
GOLDSTICK_INLINE void place_bytes(const Columns& columns, const Chunk& chunk, const Activations& activations,
                                  std::int64_t token, const std::int16_t* q, std::int32_t* out) {
    if (!activations.in_matrices) {
        arrange<std::int8_t>(columns, q, chunk.padded, activations.apart(token), out + activations.of(chunk, token));
        return;
    }
    std::int32_t* const tile = out + activations.of_tile(chunk, token);
    std::int32_t steps[kChunk / 4];
    arrange<std::int8_t>(columns, q, chunk.padded, 1, steps);
    const std::int64_t width = columns.matrix_steps, row = token % activations.tile;
    for (std::int64_t at = 0; at < chunk.steps; at += width) {
        std::memcpy(tile + at * kTile512 + row * width, steps + at, static_cast<std::size_t>(width) * sizeof *steps);
    }
}

// Codes of a whole token are −end … end − 1.
GOLDSTICK_INLINE float end_of(Rounding rounding) { return rounding == Rounding::kInt4Token ? 8.0f : 128.0f; }

// Scale of a whole token. A number that is none makes it NaN.
template <typename T>
GOLDSTICK_INLINE float token_scale(const LinearCall<T>& call, const T* x) {
    const std::int32_t largest = largest_bits(x, call.columns);
    if (call.rounding == Rounding::kInt8Tensor) {  // clamping takes the infinite, but not what is no number
        return largest > kInfinity ? std::numeric_limits<float>::quiet_NaN() : call.input_scale;
    }
    if (largest >= kInfinity) {
        return std::numeric_limits<float>::quiet_NaN();
    }
    const float scale = round_to<T>(float_of(static_cast<std::uint32_t>(largest)) / (end_of(call.rounding) - 0.5f));
    return scale != 0.0f ? scale : kEpsilon<T>;  // as the reference
}

// Codes of one chunk in order, and their scale.
template <typename T>
GOLDSTICK_INLINE float quantize_chunk(const LinearCall<T>& call, const T* x, std::int64_t count, float scale,
                                      std::int16_t* q) {
    if (by_span(call.rounding)) {
        const std::int32_t largest = largest_bits(x, count);
        const float code = call.rounding == Rounding::kInt16 ? kLargest16 : kLargest8;
        scale = largest < kInfinity ? std::max(float_of(static_cast<std::uint32_t>(largest)) / code, kLeastScale)
                                    : std::numeric_limits<float>::quiet_NaN();
    }
    if (scale != scale) {
        std::fill_n(q, count, std::int16_t{0});
    } else if (by_span(call.rounding)) {
        round_by_product(x, count, 1.0f / scale, q);
    } else {
        round_by_quotient(x, count, scale, call.input_zero, end_of(call.rounding), q);
    }
    return scale;
}

template <typename T>
GOLDSTICK_INLINE void quantize_in(const LinearCall<T>& call, const Columns& columns, const Activations& activations,
                                  std::int64_t token, std::int64_t first, std::int64_t last) {
    const T* x = call.x + token * call.columns;
    const float whole = by_span(call.rounding) ? 0.0f : token_scale(call, x);
    std::int16_t q[kChunk];
    std::int32_t sum = 0;
    std::int64_t at = first * activations.tokens + token;
    const std::int64_t apart = activations.apart(token);
    for (std::int64_t index = first; index < last; ++index) {
        const Chunk& chunk = columns.chunks[static_cast<std::size_t>(index)];
        const std::int64_t count = chunk.end - chunk.begin;
        activations.scale[at] = quantize_chunk(call, x + chunk.begin, count, whole, q);
        std::fill(q + count, q + chunk.padded, std::int16_t{0});
        sum = chunk.opens ? 0 : sum;
        for (std::int64_t i = 0; i < count; ++i) {
            sum += q[i];
        }
        activations.shift[at] = call.zero ? sum : -columns.middle() * sum;
        if (activations.low) {
            place_bytes(columns, chunk, activations, token, q, activations.low);
            std::transform(q, q + chunk.padded, q, [](std::int16_t code) { return (code + 128) >> 8; });
        }
        if (columns.in_bytes) {
            place_bytes(columns, chunk, activations, token, q, activations.codes);
        } else {
            arrange<std::int16_t>(columns, q, chunk.padded, apart, activations.codes + activations.of(chunk, token));
        }
        at += activations.tokens;
    }
}

template <typename T>
GOLDSTICK_AVX2 void quantize_avx2(const LinearCall<T>& call, const Columns& columns, const Activations& activations,
                                  std::int64_t token, std::int64_t first, std::int64_t last) {
    quantize_in(call, columns, activations, token, first, last);
}

template <typename T>
void quantize_scalar(const LinearCall<T>& call, const Columns& columns, const Activations& activations,
                     std::int64_t token, std::int64_t first, std::int64_t last) {
    quantize_in(call, columns, activations, token, first, last);
}

}  // namespace

template <typename T>
void quantize_token(const LinearCall<T>& call, const Columns& columns, const Activations& activations,
                    std::int64_t token, Isa isa) {
    quantize_chunks(call, columns, activations, token, 0, static_cast<std::int64_t>(columns.chunks.size()), isa);
}

template <typename T>
void quantize_chunks(const LinearCall<T>& call, const Columns& columns, const Activations& activations, std::int64_t token,
                     std::int64_t first, std::int64_t last, Isa isa) {
    (isa != Isa::kScalar ? quantize_avx2<T> : quantize_scalar<T>)(call, columns, activations, token, first, last);
}

template void quantize_chunks<float>(const LinearCall<float>&, const Columns&, const Activations&, std::int64_t,
                                     std::int64_t, std::int64_t, Isa);
template void quantize_chunks<bfloat16>(const LinearCall<bfloat16>&, const Columns&, const Activations&, std::int64_t,
                                        std::int64_t, std::int64_t, Isa);
template void quantize_chunks<float16>(const LinearCall<float16>&, const Columns&, const Activations&, std::int64_t,
                                       std::int64_t, std::int64_t, Isa);
template void quantize_token<float>(const LinearCall<float>&, const Columns&, const Activations&, std::int64_t, Isa);
template void quantize_token<bfloat16>(const LinearCall<bfloat16>&, const Columns&, const Activations&, std::int64_t,
                                       Isa);
template void quantize_token<float16>(const LinearCall<float16>&, const Columns&, const Activations&, std::int64_t,
                                       Isa);

}  // namespace goldstick
