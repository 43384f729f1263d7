// Convolutions whose outputs read several channels: the codes of an image are laid pixel by pixel, padding included, and
// the products of 16 output channels taken wherever the kernel lies, without a copy for each place.
#include <algorithm>
#include <vector>

#include "base/buffer.hpp"
#include "base/work_queue.hpp"
#include "convolution/convolution.hpp"
#include "convolution/image_codes.hpp"
#include "convolution/transpose.hpp"

namespace goldstick {
namespace {

constexpr std::int64_t kSegment = 64;        // most pixels that are rounded at once
constexpr std::int64_t kManyCodes = 1 << 18;  // of all images together
constexpr std::int64_t kRange = 1 << 14;     // numbers whose largest is found at once
constexpr std::int64_t kItems = 6, kLeastPixels = 2 * kConvolutionPixels;  // for each thread, and of an item
constexpr std::int64_t kNearCodes = 1 << 16;  // codes, or outputs, that stay in a cache for all output channels

// Neighbouring pixels, in the image and among its codes.
struct Segment {
    std::int64_t image, from, to, count;
};

// Everything about a call that its threads share.
template <typename T>
struct Work {
    const ConvolutionWeight& weight;
    const ConvolutionShape& shape;
    const ConvolutionCall<T>& call;
    std::int64_t rows, columns;                // of the output
    std::int64_t padded_rows, padded_columns;  // of the codes
    std::vector<Run> runs;
    std::int16_t* codes;  // [images][padded row][padded column][slots]

    std::int64_t pixels() const { return call.height * call.width; }
    std::int64_t out_pixels() const { return rows * columns; }
    std::int64_t image_codes() const { return padded_rows * padded_columns * shape.slots(); }
};

std::int64_t parts_of(std::int64_t whole, std::int64_t part) { return (whole + part - 1) / part; }

std::vector<Run> runs_of(const ConvolutionShape& shape, std::int64_t padded_columns, std::int64_t longest) {
    std::vector<Run> runs;
    const bool joined = shape.dilation_columns == 1 && shape.groups == 1;
    const std::int64_t each = joined ? 1 : shape.kernel_columns;
    std::int64_t left = longest;
    for (std::int64_t i = 0; i < shape.kernel_rows; ++i) {
        for (std::int64_t j = 0; j < each; ++j) {
            const std::int64_t place = i * shape.dilation_rows * padded_columns + j * shape.dilation_columns;
            std::int64_t offset = place * shape.slots();
            std::int64_t pairs = shape.pairs() * (joined ? shape.kernel_columns : 1);
            while (pairs > 0) {
                const std::int64_t taken = std::min(pairs, left);
                runs.push_back({offset, taken, taken == left});
                offset += 2 * taken, pairs -= taken, left = taken == left ? longest : left - taken;
            }
        }
    }
    runs.back().closes = true;
    return runs;
}

// Codes of some pixels, a number for each channel of the input, by pixels.
template <bool wide, typename T>
GOLDSTICK_INLINE bool lay_pixels(const Work<T>& work, const Segment& segment, const ImageScale& how, std::int16_t* rows,
                                 std::int16_t* to) {
    const ConvolutionShape& shape = work.shape;
    const std::int64_t slots = shape.slots(), within = shape.group_in(), width = shape.pairs() * 2;
    const T* const image = work.call.x + segment.image * shape.in * work.pixels();
    if (work.call.channels_last) {
        const T* const x = image + segment.from * shape.in;
        if (slots == shape.in) {
            return codes_for<wide>(x, segment.count * shape.in, how, to);
        }
        bool numbers = true;
        if (shape.groups == 1 && shape.in <= kRows) {  // too few for a call each
            numbers = codes_for<wide>(x, segment.count * shape.in, how, rows);
            for (std::int64_t pixel = 0; pixel < segment.count; ++pixel, rows += shape.in, to += slots) {
                std::copy_n(rows, shape.in, to);
                std::fill(to + shape.in, to + slots, std::int16_t{0});
            }
            return numbers;
        }
        for (std::int64_t pixel = 0; pixel < segment.count; ++pixel) {
            for (std::int64_t group = 0; group < shape.groups; ++group) {
                std::int16_t* const q = to + pixel * slots + group * width;
                numbers &= codes_for<wide>(x + pixel * shape.in + group * within, within, how, q);
                std::fill(q + within, q + width, std::int16_t{0});
            }
        }
        return numbers;
    }
    bool numbers = true;
    const std::int64_t together = within == width ? shape.in : within;  // channels without a gap
    for (std::int64_t first = 0; first < shape.in; first += together) {
        for (std::int64_t channel = 0; channel < together; channel += kRows) {
            const std::int64_t count = std::min(kRows, together - channel);
            for (std::int64_t i = 0; i < count; ++i) {
                numbers &= codes_for<wide>(image + (first + channel + i) * work.pixels() + segment.from, segment.count,
                                           how, rows + i * kSegment);
            }
            const std::int64_t filled = channel + count == together ? count + (width - within) * (within != width) : count;
            std::fill_n(rows + count * kSegment, (filled - count) * kSegment, std::int16_t{0});
            std::int16_t* const q = to + first / within * width + channel;
            turn<wide>(rows, kSegment, filled, segment.count, q, slots);
        }
    }
    return numbers;
}

// y = sum · (weight scale · scale) + bias for 16 channels and some pixels of one image.
template <bool wide, typename T>
GOLDSTICK_INLINE void finish(const Work<T>& work, std::int64_t image, std::int64_t pixel, std::int64_t count,
                             std::int64_t channel, std::int64_t channels, float scale, const float* sums, float* turned) {
    const ConvolutionCall<T>& call = work.call;
    const std::int64_t all = work.shape.out, pixels = work.out_pixels();
    float by[kRows], shift[kRows];
    for (std::int64_t r = 0; r < channels; ++r) {
        by[r] = to_float(call.scale[channel + r]) * scale;
        shift[r] = call.bias ? to_float(call.bias[channel + r]) : 0.0f;
    }
    if (call.channels_last) {
        T* GOLDSTICK_RESTRICT y = call.y + (image * pixels + pixel) * all + channel;
        for (std::int64_t t = 0; t < count; ++t, y += all, sums += kRows) {
            if (channels == kRows) {
                for (std::int64_t r = 0; r < kRows; ++r) store(y + r, round_to<T>(sums[r] * by[r] + shift[r]));
            } else {
                for (std::int64_t r = 0; r < channels; ++r) store(y + r, round_to<T>(sums[r] * by[r] + shift[r]));
            }
        }
        return;
    }
    turn<wide>(sums, kRows, wide ? (count + 7) / 8 * 8 : count, kRows, turned, kConvolutionPixels);
    for (std::int64_t r = 0; r < channels; ++r, turned += kConvolutionPixels) {
        T* GOLDSTICK_RESTRICT const y = call.y + (image * all + channel + r) * pixels + pixel;
        for (std::int64_t t = 0; t < count; ++t) store(y + t, round_to<T>(turned[t] * by[r] + shift[r]));
    }
}

template <typename T>
GOLDSTICK_AVX2 bool lay_avx2(const Work<T>& work, const Segment& segment, const ImageScale& how, std::int16_t* rows,
                             std::int16_t* to) {
    return lay_pixels<true>(work, segment, how, rows, to);
}
template <typename T>
bool lay_scalar(const Work<T>& work, const Segment& segment, const ImageScale& how, std::int16_t* rows,
                std::int16_t* to) {
    return lay_pixels<false>(work, segment, how, rows, to);
}
template <typename T>
GOLDSTICK_AVX2 void finish_avx2(const Work<T>& work, std::int64_t image, std::int64_t pixel, std::int64_t count,
                                std::int64_t channel, std::int64_t channels, float scale, const float* sums,
                                float* turned) {
    finish<true>(work, image, pixel, count, channel, channels, scale, sums, turned);
}
template <typename T>
void finish_scalar(const Work<T>& work, std::int64_t image, std::int64_t pixel, std::int64_t count, std::int64_t channel,
                   std::int64_t channels, float scale, const float* sums, float* turned) {
    finish<false>(work, image, pixel, count, channel, channels, scale, sums, turned);
}
// The codes of one block of output channels, two channels of the input to a step, as 16 bits.
inline void widen_panel(const std::int8_t* codes, std::int64_t count, std::int16_t* panel) {
    for (std::int64_t i = 0; i < count; ++i) panel[i] = codes[i];
}
GOLDSTICK_AVX2 void widen_avx2(const std::int8_t* codes, std::int64_t count, std::int16_t* panel) {
    widen_panel(codes, count, panel);
}

// The segments of all images: whole planes cut where nothing is padded, else row by row.
template <typename T>
std::vector<Segment> segments_of(const Work<T>& work) {
    std::vector<Segment> segments;
    const ConvolutionShape& shape = work.shape;
    const bool rows_apart = shape.padded();
    const std::int64_t lines = rows_apart ? work.call.height : 1, line = rows_apart ? work.call.width : work.pixels();
    for (std::int64_t image = 0; image < work.call.images; ++image) {
        for (std::int64_t row = 0; row < lines; ++row) {
            const std::int64_t first = (image * work.padded_rows + row + shape.top) * work.padded_columns + shape.left;
            for (std::int64_t at = 0; at < line; at += kSegment) {
                segments.push_back({image, row * line + at, first + at, std::min(kSegment, line - at)});
            }
        }
    }
    return segments;
}

// Keep the largest of an image's numbers, which several threads look for.
void note(std::vector<std::int32_t>& largest, std::int64_t image, std::int32_t found) {
#pragma omp critical
    largest[static_cast<std::size_t>(image)] = std::max(largest[static_cast<std::size_t>(image)], found);
}

// Zeros around an image.
template <typename T>
void pad(const Work<T>& work, std::int64_t image) {
    const std::int64_t slots = work.shape.slots(), row_codes = work.padded_columns * slots;
    std::int16_t* const codes = work.codes + image * work.image_codes();
    std::fill_n(codes, work.shape.top * row_codes, std::int16_t{0});
    std::fill_n(codes + (work.padded_rows - work.shape.bottom) * row_codes, work.shape.bottom * row_codes,
                std::int16_t{0});
    for (std::int64_t row = work.shape.top; row < work.padded_rows - work.shape.bottom; ++row) {
        std::int16_t* const line = codes + row * row_codes;
        std::fill_n(line, work.shape.left * slots, std::int16_t{0});
        std::fill_n(line + row_codes - work.shape.right * slots, work.shape.right * slots, std::int16_t{0});
    }
}

// Some pixels of an image by one block of output channels.
template <typename T>
void multiply_block(const Work<T>& work, std::int64_t image, std::int64_t begin, std::int64_t end, std::int64_t group,
                    std::int64_t block, float scale, std::int16_t* panel, Isa isa) {
    const ConvolutionShape& shape = work.shape;
    const std::int64_t slots = shape.slots();
    const std::int64_t most = isa >= Isa::kAvx512 ? kConvolutionTile512 : kConvolutionTile;
    ConvolutionTile* run = convolution_tile_scalar;
    auto* finished = finish_scalar<T>;
#if defined(__x86_64__)
    if (isa != Isa::kScalar) {
        run = isa >= Isa::kAvx512 ? convolution_tile_avx512 : convolution_tile_avx2;
        finished = finish_avx2<T>;
    }
#endif
    const std::int8_t* const codes =
        work.weight.codes.data() + (group * shape.blocks_of_group() + block) * work.weight.block_codes();
    (isa != Isa::kScalar ? widen_avx2 : widen_panel)(codes, work.weight.block_codes(), panel);
    const std::int16_t* const source = work.codes + image * work.image_codes() + group * shape.pairs() * 2;
    const std::int64_t channel = group * shape.group_out() + block * kRows;
    const std::int64_t channels = std::min(kRows, shape.group_out() - block * kRows);
    alignas(64) float sums[kConvolutionPixels * kRows], turned[kRows * kConvolutionPixels];
    std::int64_t row = begin / work.columns, column = begin % work.columns;
    for (std::int64_t first = begin; first < end; first += kConvolutionPixels) {
        const std::int64_t count = std::min(kConvolutionPixels, end - first);
        const std::int64_t tile = parts_of(count, parts_of(count, most));
        for (std::int64_t at = 0; at < count; at += tile) {
            const std::int16_t* pixels[kConvolutionTile512];
            const std::int64_t together = std::min(tile, count - at);
            for (std::int64_t t = 0; t < together; ++t) {
                pixels[t] = source + (row * shape.stride_rows * work.padded_columns + column * shape.stride_columns) * slots;
                if (++column == work.columns) {
                    column = 0, ++row;
                }
            }
            run(panel, work.runs, pixels, together, sums + at * kRows);
        }
        finished(work, image, first, count, channel, channels, scale, sums, turned);
    }
}

}  // namespace

template <typename T>
void convolve(const ConvolutionWeight& weight, const ConvolutionCall<T>& call, int threads, Isa isa) {
    const ConvolutionShape& shape = weight.shape;
    if (shape.depthwise()) {
        return convolve_depthwise(weight, call, threads, isa);
    }
    const std::int64_t padded_rows = call.height + shape.top + shape.bottom;
    const std::int64_t padded_columns = call.width + shape.left + shape.right;
    const std::int64_t image_codes = padded_rows * padded_columns * shape.slots();
    if (call.images > 1 && image_codes * call.images > kManyCodes) {  // one after the other: its codes stay in a cache
        ConvolutionCall<T> one = call;
        for (one.images = 1; one.x < call.x + call.images * shape.in * call.height * call.width;) {
            convolve(weight, one, threads, isa);
            one.x += shape.in * call.height * call.width;
            one.y += shape.out * shape.rows_of(call.height) * shape.columns_of(call.width);
        }
        return;
    }
    const std::int64_t longest = call.rounding == Rounding::kInt16 ? kSpanPairs16 : kSpanPairs8;
    Work<T> work{weight, shape, call, shape.rows_of(call.height), shape.columns_of(call.width), padded_rows,
                 padded_columns, runs_of(shape, padded_columns, longest), nullptr};
    const Buffer<std::int16_t> memory(call.images * work.image_codes());
    work.codes = memory.data();
    const std::vector<Segment> segments = segments_of(work);
    const auto count = static_cast<std::int64_t>(segments.size());
    std::vector<std::int32_t> largest(static_cast<std::size_t>(call.images), 0);
    const std::int64_t numbers = shape.in * work.pixels(), ranges = parts_of(numbers, kRange);
    const std::int64_t blocks = shape.groups * shape.blocks_of_group();
    const std::int64_t shares = (kItems * threads + blocks * call.images - 1) / (blocks * call.images);
    const std::int64_t read = kNearCodes / (shape.slots() * shape.stride_rows * shape.stride_columns);
    const std::int64_t near = call.channels_last ? std::min(read, kNearCodes / shape.out) : read;
    const std::int64_t even = std::min((work.out_pixels() + shares - 1) / shares, near);
    const std::int64_t part = parts_of(std::max(even, kLeastPixels), kConvolutionPixels) * kConvolutionPixels;
    const std::int64_t parts = parts_of(work.out_pixels(), part), items = call.images * parts * blocks;
    WorkQueue queue(items, 1);
    const bool given = call.rounding == Rounding::kInt8Tensor;
    auto* const found = isa != Isa::kScalar ? largest_avx2<T> : largest_scalar<T>;
    auto* const lay = isa != Isa::kScalar ? lay_avx2<T> : lay_scalar<T>;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static)
        for (std::int64_t range = 0; range < (given ? 0 : call.images * ranges); ++range) {
            const std::int64_t image = range / ranges, first = range % ranges * kRange;
            const std::int32_t most = found(call.x + image * numbers + first, std::min(kRange, numbers - first));
            note(largest, image, most);
        }
        std::int16_t rows[(kRows + 1) * kSegment];
#pragma omp for schedule(static) nowait
        for (std::int64_t image = 0; image < call.images; ++image) {
            pad(work, image);
        }
#pragma omp for schedule(static)
        for (std::int64_t i = 0; i < count; ++i) {
            const Segment& segment = segments[static_cast<std::size_t>(i)];
            const ImageScale how = image_scale(call, largest[static_cast<std::size_t>(segment.image)]);
            if (!lay(work, segment, how, rows, work.codes + segment.to * shape.slots()) && given) {
                note(largest, segment.image, kNoNumber);
            }
        }
        const Buffer<std::int16_t> panel(weight.block_codes());
        for (std::int64_t item = 0, stop = 0; item < stop || queue.take(item, stop); ++item) {
            const std::int64_t block = item % blocks, begin = item / blocks % parts * part;
            const std::int64_t image = item / blocks / parts, end = std::min(begin + part, work.out_pixels());
            const float scale = image_scale(call, largest[static_cast<std::size_t>(image)]).scale;
            multiply_block(work, image, begin, end, block / shape.blocks_of_group(), block % shape.blocks_of_group(),
                           scale, panel.data(), isa);
        }
    }
}

template void convolve<float>(const ConvolutionWeight&, const ConvolutionCall<float>&, int, Isa);
template void convolve<bfloat16>(const ConvolutionWeight&, const ConvolutionCall<bfloat16>&, int, Isa);
template void convolve<float16>(const ConvolutionWeight&, const ConvolutionCall<float16>&, int, Isa);

}  // namespace goldstick
