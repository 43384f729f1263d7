// Depthwise convolutions: each output channel reads one channel, whose codes are laid down as a plane and used while they
// are near. Images whose channels are last go row by row (depthwise_rows.cpp), small ones that lie channel by channel
// several channels side by side (depthwise_blocks.cpp).
#include <algorithm>
#include <vector>

#include "base/buffer.hpp"
#include "base/work_queue.hpp"
#include "convolution/convolution.hpp"
#include "convolution/depthwise_blocks.hpp"
#include "convolution/depthwise_rows.hpp"
#include "convolution/image_codes.hpp"
#include "convolution/image_ranges.hpp"

namespace goldstick {
namespace {

constexpr std::int64_t kBeyond = 64;     // what a vector may read behind a plane
constexpr std::int64_t kFlatBelow = 64;  // rows shorter than this run on into each other

// A call and its sizes.
template <typename T>
struct Planes {
    const ConvolutionWeight& weight;
    const ConvolutionShape& shape;
    const ConvolutionCall<T>& call;
    std::int64_t rows, columns;                // of the output
    std::int64_t padded_rows, padded_columns;  // of the codes
    bool flat;
    std::int64_t step;  // from a row of sums to the next

    std::int64_t codes() const { return padded_rows * padded_columns; }
    std::int64_t sums() const { return rows * step; }
};

// Memory of one thread.
struct Memory {
    std::int16_t* codes;  // [padded row][padded column], zeros around them
    std::int32_t* sums;   // [row][step]
};

template <typename T>
Planes<T> planes_of(const ConvolutionWeight& weight, const ConvolutionCall<T>& call, Isa isa) {
    const ConvolutionShape& shape = weight.shape;
    const std::int64_t columns = shape.columns_of(call.width), padded = call.width + shape.left + shape.right;
    const bool flat = shape.stride_rows == 1 && shape.stride_columns == 1 && shape.dilation_columns == 1 &&
                      columns < kFlatBelow && isa != Isa::kScalar;
    return {weight, shape, call, shape.rows_of(call.height), columns, call.height + shape.top + shape.bottom,
            padded, flat, flat ? padded : columns};
}

// The sums of one output channel from a plane of codes.
template <bool wide, typename T>
GOLDSTICK_INLINE void multiply_plane(const Planes<T>& planes, std::int64_t out, const std::int16_t* codes,
                                     std::int32_t* sums) {
    const std::int16_t* const taps =
        planes.weight.taps.data() + out * planes.shape.kernel_rows * planes.shape.tap_pairs() * 2;
    const std::int64_t through = (planes.rows - 1) * planes.padded_columns + planes.columns;
    const Plane plane{codes, planes.padded_columns, planes.flat ? 1 : planes.rows,
                      planes.flat ? through : planes.columns};
#if defined(__x86_64__)
    if constexpr (wide) {
        return plane_avx2(planes.shape, taps, plane, sums);
    }
#endif
    plane_scalar(planes.shape, taps, plane, sums);
}

// One channel of an image. Returns whether all its numbers are such.
template <bool wide, typename T>
GOLDSTICK_INLINE bool run_channel(const Planes<T>& planes, std::int64_t image, std::int64_t channel,
                                  const ImageScale& how, const Memory& memory) {
    const ConvolutionShape& shape = planes.shape;
    const ConvolutionCall<T>& call = planes.call;
    const T* const x = call.x + (image * shape.in + channel) * call.height * call.width;
    bool numbers = true;
    for (std::int64_t row = 0; row < call.height; ++row) {
        numbers &= codes_for<wide>(x + row * call.width, call.width, how,
                                   memory.codes + (row + shape.top) * planes.padded_columns + shape.left);
    }
    for (std::int64_t i = 0; i < shape.group_out(); ++i) {
        const std::int64_t out = channel * shape.group_out() + i;
        multiply_plane<wide>(planes, out, memory.codes, memory.sums);
        const float by = to_float(call.scale[out]) * how.scale, shift = call.bias ? to_float(call.bias[out]) : 0.0f;
        T* GOLDSTICK_RESTRICT y = call.y + (image * shape.out + out) * planes.rows * planes.columns;
        for (std::int64_t row = 0; row < planes.rows; ++row, y += planes.columns) {
            const std::int32_t* const sums = memory.sums + row * planes.step;
            for (std::int64_t t = 0; t < planes.columns; ++t) {
                store(y + t, round_to<T>(finished(static_cast<float>(sums[t]), by, shift, call.least, call.most)));
            }
        }
    }
    return numbers;
}

template <typename T>
using Runner = bool(const Planes<T>&, std::int64_t image, std::int64_t channel, const ImageScale& how, const Memory&);

template <typename T>
GOLDSTICK_AVX2 bool run_avx2(const Planes<T>& planes, std::int64_t image, std::int64_t channel, const ImageScale& how,
                             const Memory& memory) {
    return run_channel<true>(planes, image, channel, how, memory);
}
template <typename T>
bool run_scalar(const Planes<T>& planes, std::int64_t image, std::int64_t channel, const ImageScale& how,
                const Memory& memory) {
    return run_channel<false>(planes, image, channel, how, memory);
}

// Images that lie channel by channel.
template <typename T>
void convolve_planes(const ConvolutionWeight& weight, const ConvolutionCall<T>& call, int threads, Isa isa,
                     ImageRanges<T>& ranges, ImagesWithNone& none) {
    const Planes<T> planes = planes_of(weight, call, isa);
    const std::int64_t channels = weight.shape.in;
    Runner<T>* const run = isa != Isa::kScalar ? run_avx2<T> : run_scalar<T>;
    WorkQueue queue(call.images * channels, 1, 4 * threads);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        ranges.find(0, call.images);
        const Buffer<std::int16_t> codes(planes.codes() + kBeyond);
        const Buffer<std::int32_t> sums(planes.sums() + kBeyond);
        std::fill_n(codes.data(), codes.count(), std::int16_t{0});
        const Memory memory{codes.data(), sums.data()};
        for (std::int64_t item = 0, stop = 0; item < stop || queue.take(item, stop); ++item) {
            const std::int64_t image = item / channels;
            none.note(image, run(planes, image, item % channels, ranges.scale(image), memory));
        }
    }
}

}  // namespace

template <typename T>
void convolve_depthwise(const ConvolutionWeight& weight, const ConvolutionCall<T>& call, int threads, Isa isa,
                        ImageRanges<T>& ranges, ImagesWithNone& none) {
    if constexpr (std::is_same_v<T, float>) {
        if (!call.x_last && goes_by_blocks(weight.shape, call, isa)) {
            return convolve_blocks(weight, call, threads, isa, ranges, none);
        }
    }
    (call.x_last ? convolve_rows<T> : convolve_planes<T>)(weight, call, threads, isa, ranges, none);
}

template void convolve_depthwise<float>(const ConvolutionWeight&, const ConvolutionCall<float>&, int, Isa,
                                        ImageRanges<float>&, ImagesWithNone&);
template void convolve_depthwise<bfloat16>(const ConvolutionWeight&, const ConvolutionCall<bfloat16>&, int, Isa,
                                           ImageRanges<bfloat16>&, ImagesWithNone&);
template void convolve_depthwise<float16>(const ConvolutionWeight&, const ConvolutionCall<float16>&, int, Isa,
                                          ImageRanges<float16>&, ImagesWithNone&);

}  // namespace goldstick
