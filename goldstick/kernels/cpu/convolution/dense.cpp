// Convolutions whose outputs read several channels: codes are laid pixel by pixel, padding included, and the products of
// 16 output channels taken wherever the kernel lies, without a copy for each place. A thread lays a band of an image and
// multiplies it while it is near; where there are too few bands, all threads lay the images, and then share the products.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/buffer.hpp"
#include "base/work_queue.hpp"
#include "convolution/convolution.hpp"
#include "convolution/dense_products.hpp"
#include "convolution/image_ranges.hpp"
#include "convolution/past_caches.hpp"

namespace goldstick {
namespace {

constexpr std::int64_t kItems = 4;            // for each thread
constexpr std::int64_t kNearCodes = 1 << 16;  // of a band
constexpr std::int64_t kTogether = 1 << 19;   // numbers of images that are worked on together
constexpr std::int64_t kLeastPixels = 2 * kConvolutionPixels;  // of a band, or of products that threads share
constexpr std::int64_t kHalo = 4;             // a band reads at least so many times what the next one reads again

std::int64_t parts_of(std::int64_t whole, std::int64_t part) { return (whole + part - 1) / part; }

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
        const Buffer<Code> codes(work.as_given() ? 0 : work.codes_of(rows));
        Memory memory(work);
        for (std::int64_t first = 0; first < images; first += together) {
            const std::int64_t last = std::min(images, first + together);
            ranges.find(first, last);
#pragma omp for schedule(dynamic) nowait
            for (std::int64_t item = first * bands; item < last * bands; ++item) {
                const std::int64_t begin = item % bands * rows, end = std::min(begin + rows, work.rows);
                const Part part{0, (end - begin) * work.columns, 0, work.shape.blocks()};
                const std::int64_t image = item / bands;
                const ImageScale how = ranges.scale(image);
                if (work.as_given()) {
                    none.note(image, multiply(work, work.given(image, begin, end), part, how, memory));
                    continue;
                }
                const Band<Code> band{image, begin, end, codes.data()};
                for (std::int64_t line = 0; line < work.lines.count(band); ++line) {
                    none.note(image, work.lines.lay(band, line, how, memory.several));
                }
                none.note(image, multiply(work, band, part, how, memory));
            }
        }
        wait_for_stores();
    }
}

// All threads together: the codes of all images, then items of their products.
template <typename T, typename Code>
void run_images(const Work<T, Code>& work, ImageRanges<T>& ranges, ImagesWithNone& none) {
    const std::int64_t images = work.call.images, pixels = work.rows * work.columns, all = work.codes_of(work.rows);
    const Buffer<Code> codes(work.as_given() ? 0 : images * all);
    const auto image_of = [&](std::int64_t image) {
        return work.as_given() ? work.given(image, 0, work.rows) : Band<Code>{image, 0, work.rows, codes.data() + image * all};
    };
    const std::int64_t lines = work.as_given() ? 0 : work.lines.count(image_of(0));
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
        Memory memory(work);
#pragma omp for schedule(static)
        for (std::int64_t i = 0; i < images * lines; ++i) {
            const std::int64_t image = i / lines;
            none.note(image, work.lines.lay(image_of(image), i % lines, ranges.scale(image), memory.several));
        }
        for (std::int64_t item = 0, stop = 0; item < stop || queue.take(item, stop); ++item) {
            const std::int64_t image = item / shares / parts, begin = item / shares % parts * part;
            const std::int64_t block = item % shares * blocks;
            none.note(image, multiply(work, image_of(image),
                                      {begin, std::min(begin + part, pixels), block, std::min(block + blocks, every)},
                                      ranges.scale(image), memory));
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
    const bool pixels_last = call.y_last || call.coded.codes;
    const bool vectors = isa >= Isa::kAvx512 || (isa != Isa::kScalar && sizeof(Code) != 1);  // as tiles_of() takes them
    const bool at_once = std::is_same_v<T, float> && pixels_last && spans == 1 && vectors;
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
bool convolve(const ConvolutionWeight& weight, const ConvolutionCall<T>& call, int threads, Isa isa) {
    const ConvolutionShape& shape = weight.shape;
    ImageRanges<T> ranges(call, shape.in * call.height * call.width, isa);
    ImagesWithNone none(call.images);
    auto* const run = shape.depthwise()      ? convolve_depthwise<T>
                      : weight.together == 4 ? convolve_in<T, std::uint8_t>
                                             : convolve_in<T, std::int16_t>;
    run(weight, call, threads, isa, ranges, none);
    if (call.coded.codes) {
        return !none.any();
    }
    none.fill(call.y, shape.out * shape.rows_of(call.height) * shape.columns_of(call.width));
    return true;
}

template bool convolve<float>(const ConvolutionWeight&, const ConvolutionCall<float>&, int, Isa);
template bool convolve<bfloat16>(const ConvolutionWeight&, const ConvolutionCall<bfloat16>&, int, Isa);
template bool convolve<float16>(const ConvolutionWeight&, const ConvolutionCall<float16>&, int, Isa);

}  // namespace goldstick
