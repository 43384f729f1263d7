// Depthwise convolutions: each output channel reads one channel, whose codes are laid down as a plane and used while they
// are near. Of images with the channels last, sixteen planes are laid down together.
#include <algorithm>
#include <vector>

#include "base/buffer.hpp"
#include "base/work_queue.hpp"
#include "convolution/convolution.hpp"
#include "convolution/image_codes.hpp"
#include "convolution/transpose.hpp"

namespace goldstick {
namespace {

constexpr std::int64_t kBeyond = 64;     // what a vector may read behind a plane
constexpr std::int64_t kFlatBelow = 64;  // rows shorter than this run on into each other
constexpr std::int64_t kPixels = 64;     // pixels of a row that are turned over together
constexpr std::int64_t kRange = 1 << 14; // numbers whose largest is found at once

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
    std::int16_t* codes;  // [channels][padded row][padded column], zeros around them
    std::int32_t* sums;   // [row][step]
    float* values;        // [kRows][row][column]; of channels that are last
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

// One channel of an image that lies channel by channel.
template <bool wide, typename T>
GOLDSTICK_INLINE void run_channel(const Planes<T>& planes, std::int64_t image, std::int64_t channel, ImageScale how,
                                  const Memory& memory) {
    const ConvolutionShape& shape = planes.shape;
    const ConvolutionCall<T>& call = planes.call;
    const T* const x = call.x + (image * shape.in + channel) * call.height * call.width;
    bool numbers = true;
    for (std::int64_t row = 0; row < call.height; ++row) {
        numbers &= codes_for<wide>(x + row * call.width, call.width, how,
                                   memory.codes + (row + shape.top) * planes.padded_columns + shape.left);
    }
    how = numbers ? how : image_scale(call, kNoNumber);
    for (std::int64_t i = 0; i < shape.group_out(); ++i) {
        const std::int64_t out = channel * shape.group_out() + i;
        multiply_plane<wide>(planes, out, memory.codes, memory.sums);
        const float by = to_float(call.scale[out]) * how.scale, shift = call.bias ? to_float(call.bias[out]) : 0.0f;
        T* GOLDSTICK_RESTRICT y = call.y + (image * shape.out + out) * planes.rows * planes.columns;
        for (std::int64_t row = 0; row < planes.rows; ++row, y += planes.columns) {
            const std::int32_t* const sums = memory.sums + row * planes.step;
            for (std::int64_t t = 0; t < planes.columns; ++t) {
                store(y + t, round_to<T>(static_cast<float>(sums[t]) * by + shift));
            }
        }
    }
}

// Some neighbouring channels of an image whose channels are last; each is read by one output channel.
template <bool wide, typename T>
GOLDSTICK_INLINE void run_channels(const Planes<T>& planes, std::int64_t image, std::int64_t first, std::int64_t count,
                                   ImageScale how, const Memory& memory) {
    const ConvolutionShape& shape = planes.shape;
    const ConvolutionCall<T>& call = planes.call;
    const T* const x = call.x + image * call.height * call.width * shape.in + first;
    std::int16_t turned[kPixels * kRows];
    bool numbers[kRows] = {true, true, true, true, true, true, true, true,
                           true, true, true, true, true, true, true, true};
    for (std::int64_t row = 0; row < call.height; ++row) {
        for (std::int64_t begin = 0; begin < call.width; begin += kPixels) {
            const std::int64_t pixels = std::min(kPixels, call.width - begin);
            for (std::int64_t t = 0; t < pixels; ++t) {
                const T* const pixel = x + (row * call.width + begin + t) * shape.in;
                if (!codes_for<wide>(pixel, count, how, turned + t * kRows)) {
                    for (std::int64_t i = 0; i < count; ++i) {
                        numbers[i] = numbers[i] && to_float(pixel[i]) == to_float(pixel[i]);
                    }
                }
            }
            std::int16_t* const to = memory.codes + (row + shape.top) * planes.padded_columns + shape.left + begin;
            turn<wide>(turned, kRows, pixels, count, to, planes.codes() + kBeyond);
        }
    }
    const std::int64_t all = planes.rows * planes.columns;
    for (std::int64_t i = 0; i < count; ++i) {
        multiply_plane<wide>(planes, first + i, memory.codes + i * (planes.codes() + kBeyond), memory.sums);
        const float scale = numbers[i] ? how.scale : image_scale(call, kNoNumber).scale;
        const float by = to_float(call.scale[first + i]) * scale;
        const float shift = call.bias ? to_float(call.bias[first + i]) : 0.0f;
        float* GOLDSTICK_RESTRICT values = memory.values + i * all;
        for (std::int64_t row = 0; row < planes.rows; ++row, values += planes.columns) {
            const std::int32_t* const sums = memory.sums + row * planes.step;
            for (std::int64_t t = 0; t < planes.columns; ++t) {
                values[t] = round_to<T>(static_cast<float>(sums[t]) * by + shift);
            }
        }
    }
    T* const y = call.y + image * all * shape.out + first;
    if constexpr (std::is_same_v<T, float>) {
        turn<wide>(memory.values, all, count, all, y, shape.out);
    } else {
        for (std::int64_t t = 0; t < all; ++t) {
            for (std::int64_t i = 0; i < count; ++i) store(y + t * shape.out + i, memory.values[i * all + t]);
        }
    }
}

#if defined(__x86_64__)

GOLDSTICK_AVX2 inline __m256i at(const std::int16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

// The same with AVX2: pixel by pixel, sixteen channels side by side, two taps at a time. Of 32 bits there are a channel's
// two codes, first those of the channels 0 … 3 and 8 … 11.
template <typename T>
GOLDSTICK_AVX2 void run_side_by_side(const Planes<T>& planes, std::int64_t image, std::int64_t first,
                                     std::int64_t count, const ImageScale& how, const Memory& memory) {
    const ConvolutionShape& shape = planes.shape;
    const ConvolutionCall<T>& call = planes.call;
    const std::int64_t positions = shape.positions(), pairs = (positions + 1) / 2;
    std::vector<std::int16_t> taps(static_cast<std::size_t>(pairs * 2 * kRows), 0);
    std::vector<std::int64_t> offsets(static_cast<std::size_t>(pairs * 2), 0);
    for (std::int64_t position = 0; position < positions; ++position) {
        const std::int64_t i = position / shape.kernel_columns, j = position % shape.kernel_columns;
        offsets[static_cast<std::size_t>(position)] =
            (i * shape.dilation_rows * planes.padded_columns + j * shape.dilation_columns) * kRows;
        for (std::int64_t c = 0; c < count; ++c) {
            const std::int64_t half = c / 4 % 2, lane = c / 8 * 4 + c % 4;
            taps[static_cast<std::size_t>(((position / 2 * 2 + half) * 8 + lane) * 2 + position % 2)] =
                planes.weight.taps.data()[((first + c) * shape.kernel_rows + i) * shape.tap_pairs() * 2 + j];
        }
    }
    const T* const x = call.x + image * call.height * call.width * shape.in + first;
    T together[kPixels * kRows] = {};
    bool numbers[kRows] = {true, true, true, true, true, true, true, true,
                           true, true, true, true, true, true, true, true};
    for (std::int64_t row = 0; row < call.height; ++row) {
        std::int16_t* q = memory.codes + ((row + shape.top) * planes.padded_columns + shape.left) * kRows;
        const T* pixel = x + row * call.width * shape.in;
        for (std::int64_t begin = 0; begin < call.width; begin += kPixels) {
            const std::int64_t pixels = std::min(kPixels, call.width - begin);
            for (std::int64_t t = 0; t < pixels; ++t, pixel += shape.in) {
                std::copy_n(pixel, count, together + t * kRows);
            }
            if (!codes_avx2(together, pixels * kRows, how, q + begin * kRows)) {
                for (std::int64_t i = 0; i < pixels * kRows; ++i) {
                    numbers[i % kRows] = numbers[i % kRows] && to_float(together[i]) == to_float(together[i]);
                }
            }
        }
    }
    alignas(32) float by[kRows] = {}, shift[kRows] = {};
    for (std::int64_t c = 0; c < count; ++c) {
        by[c] = to_float(call.scale[first + c]) * (numbers[c] ? how.scale : image_scale(call, kNoNumber).scale);
        shift[c] = call.bias ? to_float(call.bias[first + c]) : 0.0f;
    }
    T* y = call.y + image * planes.rows * planes.columns * shape.out + first;
    for (std::int64_t row = 0; row < planes.rows; ++row) {
        const std::int16_t* q = memory.codes + row * shape.stride_rows * planes.padded_columns * kRows;
        for (std::int64_t column = 0; column < planes.columns; ++column, q += shape.stride_columns * kRows, y += shape.out) {
            __m256i low = _mm256_setzero_si256(), high = low;
            for (std::int64_t pair = 0; pair < pairs; ++pair) {
                const __m256i one = at(q + offsets[static_cast<std::size_t>(2 * pair)]);
                const __m256i other = at(q + offsets[static_cast<std::size_t>(2 * pair + 1)]);
                const std::int16_t* const both = taps.data() + pair * 2 * kRows;
                low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(one, other), at(both)));
                high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(one, other), at(both + kRows)));
            }
            const __m256 sums[] = {_mm256_cvtepi32_ps(_mm256_permute2x128_si256(low, high, 0x20)),
                                   _mm256_cvtepi32_ps(_mm256_permute2x128_si256(low, high, 0x31))};
            alignas(32) float values[kRows];
            for (int half = 0; half < 2; ++half) {
                const __m256 scaled = _mm256_mul_ps(sums[half], _mm256_load_ps(by + 8 * half));
                _mm256_store_ps(values + 8 * half, _mm256_add_ps(scaled, _mm256_load_ps(shift + 8 * half)));
            }
            if (count == kRows) {
                for (std::int64_t c = 0; c < kRows; ++c) store(y + c, round_to<T>(values[c]));
            } else {
                for (std::int64_t c = 0; c < count; ++c) store(y + c, round_to<T>(values[c]));
            }
        }
    }
}

#endif

template <typename T>
using Runner = void(const Planes<T>&, std::int64_t image, std::int64_t first, std::int64_t count, const ImageScale& how,
                 const Memory&);

template <typename T>
GOLDSTICK_AVX2 void run_avx2(const Planes<T>& planes, std::int64_t image, std::int64_t first, std::int64_t count,
                             const ImageScale& how, const Memory& memory) {
#if defined(__x86_64__)
    if (planes.call.channels_last) {
        return run_side_by_side(planes, image, first, count, how, memory);
    }
#endif
    run_channel<true>(planes, image, first, how, memory);
}
template <typename T>
void run_scalar(const Planes<T>& planes, std::int64_t image, std::int64_t first, std::int64_t count,
                const ImageScale& how, const Memory& memory) {
    if (planes.call.channels_last) {
        return run_channels<false>(planes, image, first, count, how, memory);
    }
    run_channel<false>(planes, image, first, how, memory);
}

}  // namespace

template <typename T>
void convolve_depthwise(const ConvolutionWeight& weight, const ConvolutionCall<T>& call, int threads, Isa isa) {
    const Planes<T> planes = planes_of(weight, call, isa);
    const ConvolutionShape& shape = weight.shape;
    const std::int64_t together = call.channels_last ? kRows : 1, blocks = (shape.in + together - 1) / together;
    const std::int64_t numbers = shape.in * call.height * call.width, ranges = (numbers + kRange - 1) / kRange;
    const bool given = call.rounding == Rounding::kInt8Tensor;
    auto* const found = isa != Isa::kScalar ? largest_avx2<T> : largest_scalar<T>;
    Runner<T>* const run = isa != Isa::kScalar ? run_avx2<T> : run_scalar<T>;
    std::vector<std::int32_t> parts(static_cast<std::size_t>(call.images * ranges), 0);
    std::vector<std::int32_t> largest(static_cast<std::size_t>(call.images), 0);
    WorkQueue queue(call.images * blocks, 1, 4 * threads);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        if (!given) {
#pragma omp for schedule(static)
            for (std::int64_t range = 0; range < call.images * ranges; ++range) {
                const std::int64_t image = range / ranges, first = range % ranges * kRange;
                parts[static_cast<std::size_t>(range)] =
                    found(call.x + image * numbers + first, std::min(kRange, numbers - first));
            }
#pragma omp for schedule(static)
            for (std::int64_t image = 0; image < call.images; ++image) {
                const auto first = parts.begin() + image * ranges;
                largest[static_cast<std::size_t>(image)] = *std::max_element(first, first + ranges);
            }
        }
        const Buffer<std::int16_t> codes(together * (planes.codes() + kBeyond));
        const Buffer<std::int32_t> sums(planes.sums() + kBeyond);
        const Buffer<float> values(call.channels_last ? kRows * planes.rows * planes.columns : 0);
        std::fill_n(codes.data(), codes.count(), std::int16_t{0});
        const Memory memory{codes.data(), sums.data(), values.data()};
        for (std::int64_t item = 0, stop = 0; item < stop || queue.take(item, stop); ++item) {
            const std::int64_t image = item / blocks, first = item % blocks * together;
            const ImageScale how = image_scale(call, largest[static_cast<std::size_t>(image)]);
            run(planes, image, first, std::min(together, shape.in - first), how, memory);
        }
    }
}

template void convolve_depthwise<float>(const ConvolutionWeight&, const ConvolutionCall<float>&, int, Isa);
template void convolve_depthwise<bfloat16>(const ConvolutionWeight&, const ConvolutionCall<bfloat16>&, int, Isa);
template void convolve_depthwise<float16>(const ConvolutionWeight&, const ConvolutionCall<float16>&, int, Isa);

}  // namespace goldstick
