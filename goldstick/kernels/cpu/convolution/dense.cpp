// Convolutions whose outputs read several channels: codes are laid pixel by pixel, padding included, and the products of
// 16 output channels taken wherever the kernel lies, without a copy for each place. A thread lays a band of an image and
// multiplies it while it is near; where there are too few bands, all threads lay the images, and then share the products.
#include <algorithm>
#include <vector>

#include "base/buffer.hpp"
#include "base/work_queue.hpp"
#include "convolution/convolution.hpp"
#include "convolution/image_ranges.hpp"
#include "convolution/pixel_codes.hpp"
#include "convolution/transpose.hpp"

namespace goldstick {
namespace {

constexpr std::int64_t kItems = 4;            // for each thread
constexpr std::int64_t kNearCodes = 1 << 16;  // of a band
constexpr std::int64_t kTogether = 1 << 19;   // numbers of images that are worked on together
constexpr std::int64_t kLeastPixels = 2 * kConvolutionPixels;  // of a band, or of products that threads share
constexpr std::int64_t kHalo = 4;             // a band reads at least so many times what the next one reads again

std::int64_t parts_of(std::int64_t whole, std::int64_t part) { return (whole + part - 1) / part; }

// Everything about a call that its threads share.
template <typename T>
struct Work {
    const ConvolutionWeight& weight;
    const ConvolutionShape& shape;
    const ConvolutionCall<T>& call;
    int threads;
    Isa isa;
    std::int64_t rows, columns;      // of the output
    std::int64_t padded_columns;     // of the codes
    std::vector<Run> runs;
    Lines<T> lines;

    std::int64_t blocks() const { return shape.groups * shape.blocks_of_group(); }
    std::int64_t codes_of(std::int64_t rows_of_output) const {
        return rows_read(shape, rows_of_output) * padded_columns * shape.slots();
    }
};

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

// y = sum · (weight scale · scale) + bias for 16 channels and some pixels of one image.
template <bool wide, typename T>
GOLDSTICK_INLINE void finish(const Work<T>& work, std::int64_t image, std::int64_t pixel, std::int64_t count,
                             std::int64_t channel, std::int64_t channels, float scale, const float* sums, float* turned) {
    const ConvolutionCall<T>& call = work.call;
    const std::int64_t all = work.shape.out, pixels = work.rows * work.columns;
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

// The pixels begin … end of a band's output by some blocks of output channels.
template <typename T>
void multiply(const Work<T>& work, const Band& band, std::int64_t begin, std::int64_t end, std::int64_t first_block,
              std::int64_t last_block, float scale) {
    const ConvolutionShape& shape = work.shape;
    const std::int64_t slots = shape.slots();
    std::int64_t most = kConvolutionTile;
    ConvolutionTile* run = convolution_tile_scalar;
    auto* finished = finish_scalar<T>;
#if defined(__x86_64__)
    if (work.isa != Isa::kScalar) {
        most = work.isa >= Isa::kAvx512 ? kConvolutionTile512 : kConvolutionTile;
        run = work.isa >= Isa::kAvx512 ? convolution_tile_avx512 : convolution_tile_avx2;
        finished = finish_avx2<T>;
    }
#endif
    alignas(64) float sums[kConvolutionPixels * kRows], turned[kRows * kConvolutionPixels];
    const std::int16_t* pixels[kConvolutionPixels];
    const std::int64_t group_pixels = parts_of(end - begin, parts_of(end - begin, kConvolutionPixels));
    std::int64_t row = begin / work.columns, column = begin % work.columns;
    for (std::int64_t first = begin; first < end; first += group_pixels) {
        const std::int64_t count = std::min(group_pixels, end - first);
        for (std::int64_t t = 0; t < count; ++t) {
            pixels[t] = band.codes + (row * shape.stride_rows * work.padded_columns + column * shape.stride_columns) * slots;
            if (++column == work.columns) {
                column = 0, ++row;
            }
        }
        const std::int64_t tile = parts_of(count, parts_of(count, most));
        for (std::int64_t block = first_block; block < last_block; ++block) {
            const std::int64_t group = block / shape.blocks_of_group(), within = block % shape.blocks_of_group();
            const std::int8_t* const codes = work.weight.codes.data() + block * work.weight.block_codes();
            for (std::int64_t at = 0; at < count; at += tile) {
                run(codes, work.runs, pixels + at, group * shape.pairs() * 2, std::min(tile, count - at),
                    sums + at * kRows);
            }
            finished(work, band.image, band.begin * work.columns + first, count,
                     group * shape.group_out() + within * kRows, std::min(kRows, shape.group_out() - within * kRows), scale,
                     sums, turned);
        }
    }
}

// Rows of the output of a band.
template <typename T>
std::int64_t rows_of_band(const Work<T>& work) {
    const ConvolutionShape& shape = work.shape;
    const std::int64_t again = std::max<std::int64_t>(0, rows_read(shape, 1) - shape.stride_rows);
    const std::int64_t least = std::max(parts_of(kLeastPixels, work.columns), kHalo * again / shape.stride_rows);
    const std::int64_t near = kNearCodes / (work.padded_columns * shape.slots() * shape.stride_rows);
    const std::int64_t even = work.threads > 1 ? parts_of(work.rows * work.call.images, kItems * work.threads) : work.rows;
    return std::min(work.rows, std::max(least, std::min(near, even)));
}

// Each thread by itself: a band's codes, then its products.
template <typename T>
void run_bands(const Work<T>& work, std::int64_t rows, ImageRanges<T>& ranges, ImagesWithNone& none) {
    const std::int64_t images = work.call.images, bands = parts_of(work.rows, rows);
    const std::int64_t together = std::max<std::int64_t>(1, kTogether / (work.shape.in * work.call.height * work.call.width));
#pragma omp parallel num_threads(work.threads) if (work.threads > 1)
    {
        const Buffer<std::int16_t> codes(work.codes_of(rows));
        std::int16_t several[(kRows + 1) * kSegment];
        for (std::int64_t first = 0; first < images; first += together) {
            const std::int64_t last = std::min(images, first + together);
            ranges.find(first, last);
#pragma omp for schedule(dynamic) nowait
            for (std::int64_t item = first * bands; item < last * bands; ++item) {
                const std::int64_t begin = item % bands * rows, end = std::min(begin + rows, work.rows);
                const Band band{item / bands, begin, end, codes.data()};
                const ImageScale how = ranges.scale(band.image);
                for (std::int64_t line = 0; line < work.lines.count(band); ++line) {
                    none.note(band.image, work.lines.lay(band, line, how, several));
                }
                multiply(work, band, 0, (end - begin) * work.columns, 0, work.blocks(), how.scale);
            }
        }
    }
}

// All threads together: the codes of all images, then items of their products.
template <typename T>
void run_images(const Work<T>& work, ImageRanges<T>& ranges, ImagesWithNone& none) {
    const std::int64_t images = work.call.images, pixels = work.rows * work.columns, all = work.codes_of(work.rows);
    const Buffer<std::int16_t> codes(images * all);
    const auto image_of = [&](std::int64_t image) { return Band{image, 0, work.rows, codes.data() + image * all}; };
    const std::int64_t lines = work.lines.count(image_of(0));
    const std::int64_t wanted = parts_of(kItems * work.threads, images);  // items of an image
    const std::int64_t part = std::max(parts_of(pixels, wanted), std::min(pixels, kLeastPixels));
    const std::int64_t parts = parts_of(pixels, part);
    const std::int64_t blocks = parts_of(work.blocks(), std::min(work.blocks(), parts_of(wanted, parts)));  // of an item
    const std::int64_t shares = parts_of(work.blocks(), blocks);
    WorkQueue queue(images * parts * shares, 1);
#pragma omp parallel num_threads(work.threads) if (work.threads > 1)
    {
        ranges.find(0, images);
        std::int16_t several[(kRows + 1) * kSegment];
#pragma omp for schedule(static)
        for (std::int64_t i = 0; i < images * lines; ++i) {
            const std::int64_t image = i / lines;
            none.note(image, work.lines.lay(image_of(image), i % lines, ranges.scale(image), several));
        }
        for (std::int64_t item = 0, stop = 0; item < stop || queue.take(item, stop); ++item) {
            const std::int64_t image = item / shares / parts, begin = item / shares % parts * part;
            const std::int64_t block = item % shares * blocks;
            multiply(work, image_of(image), begin, std::min(begin + part, pixels), block,
                     std::min(block + blocks, work.blocks()), ranges.scale(image).scale);
        }
    }
}

}  // namespace

template <typename T>
void convolve(const ConvolutionWeight& weight, const ConvolutionCall<T>& call, int threads, Isa isa) {
    const ConvolutionShape& shape = weight.shape;
    if (shape.depthwise()) {
        return convolve_depthwise(weight, call, threads, isa);
    }
    const std::int64_t longest = call.rounding == Rounding::kInt16 ? kSpanPairs16 : kSpanPairs8;
    const std::int64_t padded_columns = call.width + shape.left + shape.right;
    const Work<T> work{weight,         shape, call, threads, isa, shape.rows_of(call.height), shape.columns_of(call.width),
                       padded_columns, runs_of(shape, padded_columns, longest), Lines<T>(shape, call, padded_columns, isa)};
    ImageRanges<T> ranges(call, shape.in * call.height * call.width, isa);
    ImagesWithNone none(call.images);
    const std::int64_t rows = rows_of_band(work);
    if (threads == 1 || call.images * parts_of(work.rows, rows) >= 2 * threads) {
        run_bands(work, rows, ranges, none);
    } else {
        run_images(work, ranges, none);
    }
    none.fill(call.y, shape.out * work.rows * work.columns);
}

template void convolve<float>(const ConvolutionWeight&, const ConvolutionCall<float>&, int, Isa);
template void convolve<bfloat16>(const ConvolutionWeight&, const ConvolutionCall<bfloat16>&, int, Isa);
template void convolve<float16>(const ConvolutionWeight&, const ConvolutionCall<float16>&, int, Isa);

}  // namespace goldstick
