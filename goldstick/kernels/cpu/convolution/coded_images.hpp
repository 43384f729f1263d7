// Images that go from one convolution to the next as the codes that the next one reads: bytes [images, height, width,
// channels], each the code and 128. They are a quarter of the floats, and rounded once, while they are near.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "convolution/convolution.hpp"
#include "convolution/image_codes.hpp"

namespace goldstick {

constexpr std::int16_t kByteShift = 128;

// How the outputs of a convolution are rounded for the next.
inline ImageScale scale_of(const CodedOutput& coded) {
    return {Rounding::kInt8Tensor, coded.scale, coded.zero, 1.0f / coded.scale};
}

// Floats to bytes. Returns whether all are numbers.
using ToBytes = bool(const float* x, std::int64_t count, const ImageScale& how, std::uint8_t* to);
ToBytes bytes_avx512;
inline ToBytes* bytes_of_floats(Isa isa) {
#if defined(__x86_64__)
    if (isa != Isa::kScalar) {
        return isa >= Isa::kAvx512 ? bytes_avx512 : codes_avx2<float, std::uint8_t>;
    }
#endif
    return codes_scalar<float, std::uint8_t>;
}

// Bytes to codes less the zero, as a kernel keeps them.
template <typename Code>
GOLDSTICK_INLINE void from_bytes(const std::uint8_t* x, std::int64_t count, const ImageScale& how, Code* to) {
    if constexpr (sizeof(Code) == 1) {
        std::copy_n(x, count, to);
    } else {
        const auto shift = static_cast<std::int16_t>(kByteShift + static_cast<std::int16_t>(how.zero));
        for (std::int64_t i = 0; i < count; ++i) {
            to[i] = static_cast<Code>(x[i] - shift);
        }
    }
}

// Neighbouring pixels of an image, with room for whole steps of each group of channels; what lies where there is no
// channel is multiplied by 0.
template <typename Code>
GOLDSTICK_INLINE void lay_coded_pixels(const ConvolutionShape& shape, const std::uint8_t* x, std::int64_t count,
                                       const ImageScale& how, Code* to) {
    constexpr int step = 4 / sizeof(Code);
    const std::int64_t slots = shape.slots(step), within = shape.group_in(), width = shape.group_slots(step);
    if (slots == shape.in) {
        return from_bytes(x, count * shape.in, how, to);
    }
    for (std::int64_t pixel = 0; pixel < count; ++pixel, x += shape.in, to += slots) {
        for (std::int64_t group = 0; group < shape.groups; ++group) {
            from_bytes(x + group * within, within, how, to + group * width);
            std::fill(to + group * width + within, to + (group + 1) * width, Code{0});
        }
    }
}

}  // namespace goldstick
