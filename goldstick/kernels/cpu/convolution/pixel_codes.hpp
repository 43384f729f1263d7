// The codes of an image pixel by pixel, padding included: what the products of dense convolutions read.
#pragma once

#include <algorithm>
#include <cstdint>

#include "convolution/coded_images.hpp"
#include "convolution/convolution.hpp"
#include "convolution/image_codes.hpp"
#include "convolution/transpose.hpp"

namespace goldstick {

constexpr std::int64_t kSegment = 64;  // most pixels that are rounded at once

// Rows of the output of an image, and the codes that they are made of.
template <typename Code>
struct Band {
    std::int64_t image, begin, end;  // rows of the output
    Code* codes;                     // [padded row][padded column][slot], from the first row that the band reads on
};

// Rows of the padded image that a band reads.
template <typename Code>
std::int64_t first_row(const ConvolutionShape& shape, const Band<Code>& band) {
    return band.begin * shape.stride_rows;
}
inline std::int64_t rows_read(const ConvolutionShape& shape, std::int64_t rows) {
    return (rows - 1) * shape.stride_rows + (shape.kernel_rows - 1) * shape.dilation_rows + 1;
}

namespace {

// Codes of some neighbouring pixels, a number for each channel. `rows` has room for (kRows + 4) · kSegment codes. Returns
// whether all are numbers.
template <bool wide, typename T, typename Code>
GOLDSTICK_INLINE bool lay_pixels(const ConvolutionShape& shape, const ConvolutionCall<T>& call, std::int64_t image,
                                 std::int64_t from, std::int64_t count, const ImageScale& how, Code* rows, Code* to) {
    constexpr int step = 4 / sizeof(Code);
    const std::int64_t slots = shape.slots(step), within = shape.group_in(), width = shape.group_slots(step);
    const std::int64_t pixels = call.height * call.width;
    if (call.codes) {
        lay_coded_pixels(shape, call.codes + (image * pixels + from) * shape.in, count, how, to);
        return true;
    }
    const T* const x = call.x + image * shape.in * pixels;
    bool numbers = true;
    if (call.x_last) {
        const T* const first = x + from * shape.in;
        if (slots == shape.in) {
            return codes_for<wide>(first, count * shape.in, how, to);
        }
        if (shape.groups == 1 && shape.in <= kRows) {  // too few for a call each
            numbers = codes_for<wide>(first, count * shape.in, how, rows);
            if (shape.in == 3 && slots == 4) {  // what lies where there is no channel is multiplied by 0
                for (std::int64_t pixel = 0; pixel < count; ++pixel) std::copy_n(rows + 3 * pixel, 4, to + 4 * pixel);
                return numbers;
            }
            for (std::int64_t pixel = 0; pixel < count; ++pixel, rows += shape.in, to += slots) {
                std::copy_n(rows, slots, to);
            }
            return numbers;
        }
        for (std::int64_t pixel = 0; pixel < count; ++pixel) {
            for (std::int64_t group = 0; group < shape.groups; ++group) {
                Code* const q = to + pixel * slots + group * width;
                numbers &= codes_for<wide>(first + pixel * shape.in + group * within, within, how, q);
                std::fill(q + within, q + width, Code{0});
            }
        }
        return numbers;
    }
    const std::int64_t together = within == width ? shape.in : within;  // channels without a gap
    for (std::int64_t first = 0; first < shape.in; first += together) {
        for (std::int64_t channel = 0; channel < together; channel += kRows) {
            const std::int64_t several = std::min(kRows, together - channel);
            for (std::int64_t i = 0; i < several; ++i) {
                numbers &= codes_for<wide>(x + (first + channel + i) * pixels + from, count, how, rows + i * kSegment);
            }
            const bool last = channel + several == together;
            const std::int64_t filled = last ? several + (width - within) * (within != width) : several;
            std::fill_n(rows + several * kSegment, (filled - several) * kSegment, Code{0});
            Code* const q = to + first / within * width + channel;
            turn<wide>(rows, kSegment, filled, count, q, slots);
        }
    }
    return numbers;
}

// A band's codes in lines that may be laid one by one: padded rows, or where nothing is padded segments of them together.
template <typename T, typename Code>
class Lines {
public:
    Lines(const ConvolutionShape& shape, const ConvolutionCall<T>& call, std::int64_t padded_columns, Isa isa)
        : shape_(shape), call_(call), padded_columns_(padded_columns), padded_(shape.padded()),
          lay_(isa != Isa::kScalar ? lay_avx2 : lay_scalar) {}

    std::int64_t count(const Band<Code>& band) const {
        const std::int64_t rows = rows_read(shape_, band.end - band.begin);
        return padded_ ? rows : (rows * call_.width + kSegment - 1) / kSegment;
    }

    // Returns whether all numbers of the line are such. `rows` as for lay_pixels().
    bool lay(const Band<Code>& band, std::int64_t line, const ImageScale& how, Code* rows) const {
        const std::int64_t slots = shape_.slots(4 / sizeof(Code));
        if (!padded_) {
            const std::int64_t begin = line * kSegment;
            const std::int64_t end = std::min(begin + kSegment, rows_read(shape_, band.end - band.begin) * call_.width);
            const std::int64_t from = first_row(shape_, band) * call_.width + begin;
            return lay_(shape_, call_, band.image, from, end - begin, how, rows, band.codes + begin * slots);
        }
        const Code nothing = kept_as<Code>(0, how);  // of what is 0
        Code* const to = band.codes + line * padded_columns_ * slots;
        const std::int64_t row = first_row(shape_, band) + line - shape_.top;
        if (row < 0 || row >= call_.height) {
            std::fill_n(to, padded_columns_ * slots, nothing);
            return true;
        }
        bool numbers = true;
        for (std::int64_t at = 0; at < call_.width; at += kSegment) {
            const std::int64_t several = std::min(kSegment, call_.width - at);
            numbers &= lay_(shape_, call_, band.image, row * call_.width + at, several, how, rows,
                            to + (shape_.left + at) * slots);
        }
        std::fill_n(to, shape_.left * slots, nothing);
        std::fill_n(to + (shape_.left + call_.width) * slots, shape_.right * slots, nothing);
        return numbers;
    }

private:
    using Lay = bool(const ConvolutionShape&, const ConvolutionCall<T>&, std::int64_t, std::int64_t, std::int64_t,
                     const ImageScale&, Code*, Code*);
    GOLDSTICK_AVX2 static bool lay_avx2(const ConvolutionShape& shape, const ConvolutionCall<T>& call,
                                        std::int64_t image, std::int64_t from, std::int64_t count,
                                        const ImageScale& how, Code* rows, Code* to) {
        return lay_pixels<true>(shape, call, image, from, count, how, rows, to);
    }
    static bool lay_scalar(const ConvolutionShape& shape, const ConvolutionCall<T>& call, std::int64_t image,
                           std::int64_t from, std::int64_t count, const ImageScale& how, Code* rows, Code* to) {
        return lay_pixels<false>(shape, call, image, from, count, how, rows, to);
    }

    const ConvolutionShape& shape_;
    const ConvolutionCall<T>& call_;
    std::int64_t padded_columns_;
    bool padded_;
    Lay* lay_;
};

}  // namespace
}  // namespace goldstick
