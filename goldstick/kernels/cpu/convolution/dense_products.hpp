// The products of some pixels of an image whose codes were laid, and what becomes of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "base/buffer.hpp"
#include "convolution/coded_images.hpp"
#include "convolution/convolution.hpp"
#include "convolution/outputs.hpp"
#include "convolution/pixel_codes.hpp"

namespace goldstick {
namespace {

constexpr std::int64_t kFewPixels = 12;         // what AVX-512 multiplies at once
constexpr std::int64_t kSmallWeight = 1 << 14;  // bytes

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
    // Whether the codes of an image are read where they lie.
    bool as_given() const {
        return sizeof(Code) == 1 && call.codes && !shape.padded() && shape.in % kWithin == 0 && shape.slots(kWithin) == shape.in;
    }
    Band<Code> given(std::int64_t image, std::int64_t begin, std::int64_t end) const {
        const std::int64_t first = (image * call.height + begin * shape.stride_rows) * call.width * shape.in;
        return {image, begin, end, reinterpret_cast<Code*>(const_cast<std::uint8_t*>(call.codes + first))};
    }
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

// What a thread keeps for itself.
template <typename T, typename Code>
struct Memory {
    explicit Memory(const Work<T, Code>& work)
        : factors(work.weight), outputs(work.call.coded.codes ? kConvolutionPixels * work.shape.out : 0), near(work.call) {
        near.y = outputs.data(), near.y_last = true;
    }

    Factors factors;
    Buffer<T> outputs;        // of which codes are made: [pixel][out]
    ConvolutionCall<T> near;  // whose outputs these are
    Code several[(kRows + 4) * kSegment] = {};
};

// Codes of the outputs of some pixels and channels. Returns whether all are numbers.
template <typename T, typename Code>
bool round_outputs(const Work<T, Code>& work, const T* outputs, std::int64_t first, std::int64_t count,
                   std::int64_t channel, std::int64_t channels) {
    bool numbers = true;
    if constexpr (std::is_same_v<T, float>) {
        const std::int64_t out = work.shape.out;
        auto* const to_bytes = bytes_of_floats(work.isa);
        const ImageScale how = scale_of(work.call.coded);
        std::uint8_t* to = work.call.coded.codes + first * out;
        if (channels == out) {
            return to_bytes(outputs, count * out, how, to);
        }
        for (std::int64_t t = 0; t < count; ++t, outputs += out, to += out) {
            numbers &= to_bytes(outputs + channel, channels, how, to + channel);
        }
    }
    return numbers;
}

// Returns whether all outputs of which codes are made are numbers.
template <typename T, typename Code>
bool multiply(const Work<T, Code>& work, const Band<Code>& band, const Part& part, const ImageScale& how,
              Memory<T, Code>& memory) {
    const ConvolutionShape& shape = work.shape;
    Factors& factors = memory.factors;
    factors.set(work.call, how.scale, kept_as<Code>(0, how), part.first_block, part.last_block);
    const std::int64_t slots = shape.slots(work.kWithin), row_codes = shape.stride_rows * work.padded_columns * slots;
    auto* const tiles = tiles_of<Code>(work.isa);
    auto* const write = work.isa == Isa::kScalar   ? write_scalar<T>
                        : work.isa >= Isa::kAvx512 ? write_avx512<T>
                                                   : write_avx2<T>;
    alignas(64) float sums[2 * kConvolutionPixels * kRows] = {};
    const bool pairs = work.isa >= Isa::kAvx512;  // of blocks, which share what is read of the pixels
    const bool coded = work.call.coded.codes;
    const ConvolutionCall<T>& call = coded ? memory.near : work.call;
    const Code* pixels[kConvolutionPixels];
    std::int64_t several = evenly(part.end - part.begin, pixels_of(work));
    if (pairs && !call.y_last) {
        several = (several + kRows - 1) / kRows * kRows;  // whole lines of outputs
    }
    const std::int64_t all = work.rows * work.columns, first_of_band = band.image * all + band.begin * work.columns;
    bool numbers = true;
    std::int64_t row = part.begin / work.columns, column = part.begin % work.columns;
    for (std::int64_t first = part.begin; first < part.end; first += several) {
        const std::int64_t count = std::min(several, part.end - first);
        for (std::int64_t t = 0; t < count; ++t) {
            pixels[t] = band.codes + row * row_codes + column * shape.stride_columns * slots;
            if (++column == work.columns) {
                column = 0, ++row;
            }
        }
        const std::int64_t place = first_of_band + first, to = coded ? 0 : place;  // of the first output
        for (std::int64_t block = part.first_block, next; block < part.last_block; block = next) {
            next = block + (pairs && (block + 1) % shape.blocks_of_group() != 0 ? 2 : 1);
            next = std::min(next, part.last_block);
            const std::int64_t channel = shape.first_channel(block), channels = shape.end_channel(next - 1) - channel;
            const std::int64_t from = block / shape.blocks_of_group() * shape.group_slots(work.kWithin);
            PixelOutputs outputs{nullptr, shape.out, factors.finish(block)};
            if constexpr (std::is_same_v<T, float>) {
                outputs.y = call.y + to * shape.out + channel;
            }
            tiles({work.weight.codes.data() + block * work.weight.block_codes(), next - block, work.weight.block_codes(),
                   work.runs, pixels, from, factors.begin(block), count, channels, sums,
                   work.at_once ? &outputs : nullptr});
            for (std::int64_t one = block; one < next && !work.at_once; ++one) {
                write(call, factors.finish(one), shape.out, all,
                      {to / all, to % all, count, shape.first_channel(one), shape.channels_of(one),
                       sums + (one - block) * kConvolutionPixels * kRows});
            }
        }
        if (coded) {
            const std::int64_t channel = shape.first_channel(part.first_block);
            numbers &= round_outputs(work, call.y, place, count, channel, shape.end_channel(part.last_block - 1) - channel);
        }
    }
    return numbers;
}

}  // namespace
}  // namespace goldstick
