// Depthwise convolutions: each output channel reads one channel, whose codes are laid down and used while they are near.
#include <algorithm>
#include <vector>

#include "base/buffer.hpp"
#include "base/work_queue.hpp"
#include "convolution/convolution.hpp"
#include "convolution/image_codes.hpp"

namespace goldstick {
namespace {

constexpr std::int64_t kBeyond = 64;      // what a vector may read behind a plane
constexpr std::int64_t kFlatBelow = 64;   // rows shorter than this run on into each other

// y = sum · by + shift for a row of pixels.
template <typename T>
GOLDSTICK_INLINE void finish_row(const std::int32_t* sums, std::int64_t count, float by, float shift, T* y) {
    for (std::int64_t i = 0; i < count; ++i) store(y + i, round_to<T>(static_cast<float>(sums[i]) * by + shift));
}
template <typename T>
GOLDSTICK_AVX2 void finish_avx2(const std::int32_t* sums, std::int64_t count, float by, float shift, T* y) {
    finish_row(sums, count, by, shift, y);
}
template <typename T>
void finish_scalar(const std::int32_t* sums, std::int64_t count, float by, float shift, T* y) {
    finish_row(sums, count, by, shift, y);
}

}  // namespace

template <typename T>
void convolve_depthwise(const ConvolutionWeight& weight, const ConvolutionCall<T>& call, int threads, Isa isa) {
    const ConvolutionShape& shape = weight.shape;
    const std::int64_t rows = shape.rows_of(call.height), columns = shape.columns_of(call.width);
    const std::int64_t padded_rows = call.height + shape.top + shape.bottom;
    const std::int64_t padded_columns = call.width + shape.left + shape.right;
    const std::int64_t pixels = call.height * call.width, planes = call.images * shape.in;
    const bool flat = shape.stride_rows == 1 && shape.stride_columns == 1 && shape.dilation_columns == 1 &&
                      columns < kFlatBelow && isa != Isa::kScalar;
    const std::int64_t step = flat ? padded_columns : columns;  // from a row of sums to the next
    auto* const found = isa != Isa::kScalar ? largest_avx2<T> : largest_scalar<T>;
    auto* const round = isa != Isa::kScalar ? codes_avx2<T> : codes_scalar<T>;
    auto* const finish = isa != Isa::kScalar ? finish_avx2<T> : finish_scalar<T>;
    PlaneKernel* multiply = plane_scalar;
#if defined(__x86_64__)
    if (isa != Isa::kScalar) {
        multiply = plane_avx2;
    }
#endif
    std::vector<std::int32_t> largest(static_cast<std::size_t>(planes), 0);
    const bool given = call.rounding == Rounding::kInt8Tensor;
    WorkQueue queue(planes, 1, 4 * threads);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static)
        for (std::int64_t plane = 0; plane < (given ? 0 : planes); ++plane) {
            largest[static_cast<std::size_t>(plane)] = found(call.x + plane * pixels, pixels);
        }
#pragma omp for schedule(static)
        for (std::int64_t image = 0; image < call.images; ++image) {  // the first of an image's gets that of all
            const auto first = largest.begin() + image * shape.in;
            *first = *std::max_element(first, first + shape.in);
        }
        const Buffer<std::int16_t> codes(padded_rows * padded_columns + kBeyond);
        const Buffer<std::int32_t> sums(rows * step + kBeyond);
        std::fill_n(codes.data(), codes.count(), std::int16_t{0});
        for (std::int64_t plane = 0, stop = 0; plane < stop || queue.take(plane, stop); ++plane) {
            const std::int64_t image = plane / shape.in, channel = plane % shape.in;
            ImageScale how = image_scale(call, largest[static_cast<std::size_t>(image * shape.in)]);
            const T* const x = call.x + plane * pixels;
            bool numbers = true;
            for (std::int64_t row = 0; row < call.height; ++row) {
                numbers &= round(x + row * call.width, call.width, how,
                      codes.data() + (row + shape.top) * padded_columns + shape.left);
            }
            if (given && !numbers) {
                how = image_scale(call, kNoNumber);
            }
            const Plane read{codes.data(), padded_columns, flat ? 1 : rows,
                             flat ? (rows - 1) * padded_columns + columns : columns};
            for (std::int64_t i = 0; i < shape.group_out(); ++i) {
                const std::int64_t out = channel * shape.group_out() + i;
                multiply(shape, weight.taps.data() + out * shape.kernel_rows * shape.tap_pairs() * 2, read, sums.data());
                const float by = to_float(call.scale[out]) * how.scale, shift = call.bias ? to_float(call.bias[out]) : 0.0f;
                T* const y = call.y + (image * shape.out + out) * rows * columns;
                for (std::int64_t row = 0; row < rows; ++row) {
                    finish(sums.data() + row * step, columns, by, shift, y + row * columns);
                }
            }
        }
    }
}

template void convolve_depthwise<float>(const ConvolutionWeight&, const ConvolutionCall<float>&, int, Isa);
template void convolve_depthwise<bfloat16>(const ConvolutionWeight&, const ConvolutionCall<bfloat16>&, int, Isa);
template void convolve_depthwise<float16>(const ConvolutionWeight&, const ConvolutionCall<float16>&, int, Isa);

}  // namespace goldstick
