// Depthwise convolutions of small images that lie channel by channel. As many channels as the kernels of rows take
// together are turned over, go row by row as if channels were last, and are turned back while they are near.
#include "convolution/depthwise_blocks.hpp"

#include <algorithm>
#include <vector>

#include "base/buffer.hpp"
#include "base/work_queue.hpp"
#include "convolution/transpose.hpp"

namespace goldstick {
namespace {

constexpr std::int64_t kLargest = 4096;  // pixels of an image
constexpr std::int64_t kStrip = 256;     // pixels that are turned over at once, and stay near

// A call and its sizes.
struct Blocks {
    const ConvolutionWeight& weight;
    const ConvolutionShape& shape;
    const ConvolutionCall<float>& call;
    const RowKernels& kernels;
    std::int64_t rows, columns;                // of the output
    std::int64_t padded_rows, padded_columns;  // of the codes

    std::int64_t block() const { return 2 * kernels.lanes; }
    std::int64_t blocks() const { return (shape.in + block() - 1) / block(); }
    std::int64_t inputs() const { return call.height * call.width; }
    std::int64_t outputs() const { return rows * columns; }
    // Rows of so many columns that are turned over at once.
    std::int64_t strip(std::int64_t width) const { return std::max<std::int64_t>(1, kStrip / width); }
};

// Memory of one thread.
class Memory {
public:
    explicit Memory(const Blocks& all)
        : codes(((all.padded_rows + 1) * all.padded_columns + 1) * all.block()),
          floats(std::max({kStrip, all.call.width, all.columns}) * all.block()), by(all.block()), shift(all.block()),
          at(static_cast<std::size_t>(all.shape.kernel_rows)) {
        std::fill_n(codes.data(), codes.count(), std::int16_t{0});
        std::fill_n(by.data(), by.count(), 0.0f);
        std::fill_n(shift.data(), shift.count(), 0.0f);
    }

    Buffer<std::int16_t> codes;  // [padded row][padded column][channel], zeros around them, and one pixel
    Buffer<float> floats;        // of a strip: [pixel][channel]
    Buffer<float> by, shift;     // [channel]
    std::vector<const std::int16_t*> at;
};

// A block of channels of an image. Returns whether all its numbers are such.
GOLDSTICK_AVX2 bool run_block(const Blocks& all, std::int64_t image, std::int64_t index, const ImageScale& how,
                              Memory& memory) {
    const ConvolutionShape& shape = all.shape;
    const ConvolutionCall<float>& call = all.call;
    const std::int64_t block = all.block(), first = index * block, channels = std::min(block, shape.in - first);
    for (std::int64_t c = 0; c < channels; ++c) {
        memory.by.data()[c] = call.scale[first + c] * how.scale;
        memory.shift.data()[c] = call.bias ? call.bias[first + c] : 0.0f;
    }
    if (channels < block) {
        std::fill_n(memory.floats.data(), memory.floats.count(), 0.0f);  // what lies there may be no number
    }
    const float* const x = call.x + (image * shape.in + first) * all.inputs();
    float* const y = call.y + (image * shape.out + first) * all.outputs();
    const auto row_at = [&](std::int64_t row) { return memory.codes.data() + row * all.padded_columns * block; };
    bool numbers = true;
    for (std::int64_t begin = 0, end; begin < call.height; begin = end) {
        end = std::min(call.height, begin + all.strip(call.width));
        turn<true>(x + begin * call.width, all.inputs(), channels, (end - begin) * call.width, memory.floats.data(),
                   block);
        for (std::int64_t row = begin; row < end; ++row) {
            numbers &= all.kernels.lay(memory.floats.data() + (row - begin) * call.width * block, call.width, block,
                                       how, row_at(row + shape.top) + shape.left * block);
        }
    }
    const std::int16_t* const taps = all.weight.side_taps.data() + 2 * first;
    for (std::int64_t begin = 0, end; begin < all.rows; begin = end) {
        end = std::min(all.rows, begin + all.strip(all.columns));
        for (std::int64_t row = begin; row < end; ++row) {
            for (std::int64_t i = 0; i < shape.kernel_rows; ++i) {
                memory.at[static_cast<std::size_t>(i)] = row_at(row * shape.stride_rows + i * shape.dilation_rows);
            }
            all.kernels.multiply(shape, {memory.at.data(), taps, shape.tap_slots(), block, all.columns, block,
                                         memory.by.data(), memory.shift.data(), call.least, call.most, false,
                                         memory.floats.data() + (row - begin) * all.columns * block});
        }
        turn<true>(memory.floats.data(), block, (end - begin) * all.columns, channels, y + begin * all.columns,
                   all.outputs());
    }
    return numbers;
}

}  // namespace

bool goes_by_blocks(const ConvolutionShape& shape, const ConvolutionCall<float>& call, Isa isa) {
    return isa != Isa::kScalar && shape.group_out() == 1 && call.height * call.width <= kLargest;
}

void convolve_blocks(const ConvolutionWeight& weight, const ConvolutionCall<float>& call, int threads, Isa isa,
                     ImageRanges<float>& ranges, ImagesWithNone& none) {
    const ConvolutionShape& shape = weight.shape;
    const Blocks all{weight, shape, call, row_kernels(isa), shape.rows_of(call.height), shape.columns_of(call.width),
                        call.height + shape.top + shape.bottom, call.width + shape.left + shape.right};
    const std::int64_t blocks = all.blocks();
    const bool apart = ranges.apart(threads);
    WorkQueue queue(apart ? call.images : call.images * blocks, 1, 4 * threads);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Memory memory(all);
        const auto run = [&](std::int64_t image, std::int64_t index) {
            none.note(image, run_block(all, image, index, ranges.scale(image), memory));
        };
        if (!apart) {
            ranges.find(0, call.images);
        }
        for (std::int64_t item = 0, stop = 0; item < stop || queue.take(item, stop); ++item) {
            if (apart) {
                ranges.find_alone(item);
                for (std::int64_t index = 0; index < blocks; ++index) run(item, index);
            } else {
                run(item / blocks, item % blocks);
            }
        }
    }
}

}  // namespace goldstick
