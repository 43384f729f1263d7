// Convolutions whose outputs read several channels: codes are laid pixel by pixel, padding included, and the products of
// 16 output channels taken wherever the kernel lies, without a copy for each place. A thread lays a band of an image and
// multiplies it while it is near; where there are too few bands, all threads lay the images, and then share the products.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/buffer.hpp"
#include "base/work_queue.hpp"
#include "convolution/convolution.hpp"
#include "convolution/image_ranges.hpp"
#include "convolution/outputs.hpp"
#include "convolution/past_caches.hpp"
#include "convolution/pixel_codes.hpp"

namespace goldstick {
namespace {

constexpr std::int64_t kItems = 4;            // for each thread
constexpr std::int64_t kNearCodes = 1 << 16;  // of a band
constexpr std::int64_t kTogether = 1 << 19;   // numbers of images that are worked on together
constexpr std::int64_t kLeastPixels = 2 * kConvolutionPixels;  // of a band, or of products that threads share
constexpr std::int64_t kFewPixels = 12;       // what AVX-512 multiplies at once
constexpr std::int64_t kSmallWeight = 1 << 14;  // bytes
constexpr std::int64_t kHalo = 4;             // a band reads at least so many times what the next one reads again

std::int64_t parts_of(std::int64_t whole, std::int64_t part) { return (whole + part - 1) / part; }

// Everything about a call that its threads share.
template <typename T, typename Code>
struct Work {
    const ConvolutionWeight& weight;
    const ConvolutionShape& shape;
    const ConvolutionCall<T>& call;
    int threads;
    Isa isa;
    std::int64_t rows, columns;      // of the output
    std::int64_t padded_columns;     // of the codes
    std::vector<Run> runs;
    Lines<T, Code> lines;
    bool at_once;                    // whether tiles write outputs themselves

    static constexpr int kWithin = 4 / sizeof(Code);  // channels of a step
    std::int64_t codes_of(std::int64_t rows_of_output) const {
        const std::int64_t pixels = rows_read(shape, rows_of_output) * padded_columns;
        return pixels * shape.slots(kWithin) + kWithin;  // a step may go beyond the last
    }
};

// `longest` are the steps of a span.
std::vector<Run> runs_of(const ConvolutionShape& shape, std::int64_t padded_columns, int together, std::int64_t longest) {
    std::vector<Run> runs;
    const bool joined = shape.dilation_columns == 1 && shape.groups == 1;
    const std::int64_t each = joined ? 1 : shape.kernel_columns;
    std::int64_t left = longest;
    for (std::int64_t i = 0; i < shape.kernel_rows; ++i) {
        for (std::int64_t j = 0; j < each; ++j) {
            const std::int64_t place = i * shape.dilation_rows * padded_columns + j * shape.dilation_columns;
            std::int64_t offset = place * shape.slots(together);
            std::int64_t steps = joined ? shape.row_steps(together) : shape.group_slots(together) / together;
            while (steps > 0) {
                const std::int64_t taken = std::min(steps, left);
                runs.push_back({offset, taken, taken == left});
                offset += together * taken, steps -= taken, left = taken == left ? longest : left - taken;
            }
        }
    }
    runs.back().closes = true;
    return runs;
}

// How some pixels are multiplied.
template <typename Code>
ConvolutionTiles<Code>* tiles_of(Isa isa) {
    constexpr bool in_bytes = sizeof(Code) == 1;
#if defined(__x86_64__)
    if constexpr (in_bytes) {
        return isa >= Isa::kAvx512 ? byte_tiles_avx512 : byte_tiles_scalar;
    } else if (isa != Isa::kScalar) {
        return isa >= Isa::kAvx512 ? convolution_tiles_avx512 : convolution_tiles_avx2;
    }
#endif
    if constexpr (in_bytes) {
        return byte_tiles_scalar;
    } else {
        return convolution_tiles_scalar;
    }
}

// Some pixels of a band's output, and some blocks of output channels.
struct Part {
    std::int64_t begin, end, first_block, last_block;
};

// How many pixels go through all blocks of channels together. Where the weight is small, writing is what takes time with
// AVX-512: few pixels then, whose outputs lie side by side in memory.
template <typename T, typename Code>
std::int64_t pixels_of(const Work<T, Code>& work) {
    constexpr std::int64_t small = sizeof(Code) == 1 ? kSmallWeight : kSmallWeight / 4;
    const std::int64_t blocks = work.shape.blocks();
    const bool few = work.at_once && work.isa >= Isa::kAvx512 && blocks > 1 && work.weight.codes.count() <= small;
    return few ? kFewPixels : kConvolutionPixels;
}

template <typename T, typename Code>
void multiply(const Work<T, Code>& work, const Band<Code>& band, const Part& part, const ImageScale& how,
              Factors& factors) {
    const ConvolutionShape& shape = work.shape;
    factors.set(work.call, how.scale, kept_as<Code>(0, how), part.first_block, part.last_block);
    const std::int64_t slots = shape.slots(work.kWithin), row_codes = shape.stride_rows * work.padded_columns * slots;
    auto* const tiles = tiles_of<Code>(work.isa);
    auto* const write = work.isa == Isa::kScalar   ? write_scalar<T>
                        : work.isa >= Isa::kAvx512 ? write_avx512<T>
                                                   : write_avx2<T>;
    alignas(64) float sums[2 * kConvolutionPixels * kRows] = {};
    const bool pairs = work.isa >= Isa::kAvx512;  // of blocks, which share what is read of the pixels
    const Code* pixels[kConvolutionPixels];
    std::int64_t several = evenly(part.end - part.begin, pixels_of(work));
    if (pairs && !work.call.channels_last) {
        several = (several + kRows - 1) / kRows * kRows;  // whole lines of outputs
    }
    std::int64_t row = part.begin / work.columns, column = part.begin % work.columns;
    for (std::int64_t first = part.begin; first < part.end; first += several) {
        const std::int64_t count = std::min(several, part.end - first);
        for (std::int64_t t = 0; t < count; ++t) {
            pixels[t] = band.codes + row * row_codes + column * shape.stride_columns * slots;
            if (++column == work.columns) {
                column = 0, ++row;
            }
        }
        for (std::int64_t block = part.first_block, next; block < part.last_block; block = next) {
            next = block + (pairs && (block + 1) % shape.blocks_of_group() != 0 ? 2 : 1);
            next = std::min(next, part.last_block);
            const std::int64_t channel = shape.first_channel(block);
            const std::int64_t channels = shape.first_channel(next - 1) + shape.channels_of(next - 1) - channel;
            const std::int64_t from = block / shape.blocks_of_group() * shape.group_slots(work.kWithin);
            const std::int64_t pixel = band.begin * work.columns + first, all = work.rows * work.columns;
            PixelOutputs outputs{nullptr, shape.out, factors.finish(block)};
            if constexpr (std::is_same_v<T, float>) {
                outputs.y = work.call.y + (band.image * all + pixel) * shape.out + channel;
            }
            tiles({work.weight.codes.data() + block * work.weight.block_codes(), next - block, work.weight.block_codes(),
                   work.runs, pixels, from, factors.begin(block), count, channels, sums,
                   work.at_once ? &outputs : nullptr});
            for (std::int64_t one = block; one < next && !work.at_once; ++one) {
                write(work.call, factors.finish(one), shape.out, all,
                      {band.image, pixel, count, shape.first_channel(one), shape.channels_of(one),
                       sums + (one - block) * kConvolutionPixels * kRows});
            }
        }
    }
}

// Rows of the output of a band.
template <typename T, typename Code>
std::int64_t rows_of_band(const Work<T, Code>& work) {
    const ConvolutionShape& shape = work.shape;
    const std::int64_t again = std::max<std::int64_t>(0, rows_read(shape, 1) - shape.stride_rows);
    const std::int64_t least = std::max(parts_of(kLeastPixels, work.columns), kHalo * again / shape.stride_rows);
    const std::int64_t near = kNearCodes / (work.padded_columns * shape.slots(work.kWithin) * shape.stride_rows);
    const std::int64_t all = work.rows * work.call.images;
    const std::int64_t even = work.threads > 1 ? parts_of(all, kItems * work.threads) : work.rows;
    return std::min(work.rows, std::max(least, std::min(near, even)));
}

// Each thread by itself: a band's codes, then its products.
template <typename T, typename Code>
void run_bands(const Work<T, Code>& work, std::int64_t rows, ImageRanges<T>& ranges, ImagesWithNone& none) {
    const std::int64_t images = work.call.images, bands = parts_of(work.rows, rows);
    const std::int64_t together = std::max<std::int64_t>(1, kTogether / ranges.numbers());
#pragma omp parallel num_threads(work.threads) if (work.threads > 1)
    {
        const Buffer<Code> codes(work.codes_of(rows));
        Factors factors(work.weight);
        Code several[(kRows + 4) * kSegment] = {};
        for (std::int64_t first = 0; first < images; first += together) {
            const std::int64_t last = std::min(images, first + together);
            ranges.find(first, last);
#pragma omp for schedule(dynamic) nowait
            for (std::int64_t item = first * bands; item < last * bands; ++item) {
                const std::int64_t begin = item % bands * rows, end = std::min(begin + rows, work.rows);
                const Band<Code> band{item / bands, begin, end, codes.data()};
                const ImageScale how = ranges.scale(band.image);
                for (std::int64_t line = 0; line < work.lines.count(band); ++line) {
                    none.note(band.image, work.lines.lay(band, line, how, several));
                }
                multiply(work, band, {0, (end - begin) * work.columns, 0, work.shape.blocks()}, how, factors);
            }
        }
        wait_for_stores();
    }
}

// All threads together: the codes of all images, then items of their products.
template <typename T, typename Code>
void run_images(const Work<T, Code>& work, ImageRanges<T>& ranges, ImagesWithNone& none) {
    const std::int64_t images = work.call.images, pixels = work.rows * work.columns, all = work.codes_of(work.rows);
    const Buffer<Code> codes(images * all);
    const auto image_of = [&](std::int64_t image) { return Band<Code>{image, 0, work.rows, codes.data() + image * all}; };
    const std::int64_t lines = work.lines.count(image_of(0));
    const std::int64_t wanted = parts_of(kItems * work.threads, images);  // items of an image
    const std::int64_t part = std::max(parts_of(pixels, wanted), std::min(pixels, kLeastPixels));
    const std::int64_t parts = parts_of(pixels, part);
    const std::int64_t every = work.shape.blocks();
    const std::int64_t blocks = parts_of(every, std::min(every, parts_of(wanted, parts)));  // of an item
    const std::int64_t shares = parts_of(every, blocks);
    WorkQueue queue(images * parts * shares, 1);
#pragma omp parallel num_threads(work.threads) if (work.threads > 1)
    {
        ranges.find(0, images);
        Factors factors(work.weight);
        Code several[(kRows + 4) * kSegment] = {};
#pragma omp for schedule(static)
        for (std::int64_t i = 0; i < images * lines; ++i) {
            const std::int64_t image = i / lines;
            none.note(image, work.lines.lay(image_of(image), i % lines, ranges.scale(image), several));
        }
        for (std::int64_t item = 0, stop = 0; item < stop || queue.take(item, stop); ++item) {
            const std::int64_t image = item / shares / parts, begin = item / shares % parts * part;
            const std::int64_t block = item % shares * blocks;
            multiply(work, image_of(image),
                     {begin, std::min(begin + part, pixels), block, std::min(block + blocks, every)},
                     ranges.scale(image), factors);
        }
        wait_for_stores();
    }
}

template <typename T, typename Code>
void convolve_in(const ConvolutionWeight& weight, const ConvolutionCall<T>& call, int threads, Isa isa,
                 ImageRanges<T>& ranges, ImagesWithNone& none) {
    const ConvolutionShape& shape = weight.shape;
    const std::int64_t longest = (call.rounding == Rounding::kInt16 ? kSpan16 : kSpan8) / weight.together;
    const std::int64_t padded_columns = call.width + shape.left + shape.right;
    std::vector<Run> runs = runs_of(shape, padded_columns, weight.together, longest);
    const auto spans = std::count_if(runs.begin(), runs.end(), [](const Run& run) { return run.closes; });
    const bool at_once = std::is_same_v<T, float> && call.channels_last && spans == 1 && isa != Isa::kScalar;
    const Work<T, Code> work{weight, shape, call, threads, isa, shape.rows_of(call.height), shape.columns_of(call.width),
                             padded_columns, std::move(runs), Lines<T, Code>(shape, call, padded_columns, isa), at_once};
    const std::int64_t rows = rows_of_band(work);
    if (threads == 1 || call.images * parts_of(work.rows, rows) >= 2 * threads) {
        run_bands(work, rows, ranges, none);
    } else {
        run_images(work, ranges, none);
    }
}

}  // namespace

template <typename T>
void convolve(const ConvolutionWeight& weight, const ConvolutionCall<T>& call, int threads, Isa isa) {
    const ConvolutionShape& shape = weight.shape;
    ImageRanges<T> ranges(call, shape.in * call.height * call.width, isa);
    ImagesWithNone none(call.images);
    auto* const run = shape.depthwise()      ? convolve_depthwise<T>
                      : weight.together == 4 ? convolve_in<T, std::uint8_t>
                                             : convolve_in<T, std::int16_t>;
    run(weight, call, threads, isa, ranges, none);
    none.fill(call.y, shape.out * shape.rows_of(call.height) * shape.columns_of(call.width));
}

template void convolve<float>(const ConvolutionWeight&, const ConvolutionCall<float>&, int, Isa);
template void convolve<bfloat16>(const ConvolutionWeight&, const ConvolutionCall<bfloat16>&, int, Isa);
template void convolve<float16>(const ConvolutionWeight&, const ConvolutionCall<float16>&, int, Isa);

}  // namespace goldstick
