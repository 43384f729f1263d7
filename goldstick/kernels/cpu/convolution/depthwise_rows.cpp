// Depthwise convolutions of images whose channels are last. A thread goes down a band of rows: the rows of codes that the
// kernel reads next are laid into a ring, which stays near, and give one row of the output.
#include "convolution/depthwise_rows.hpp"

#include <algorithm>
#include <vector>

#include "base/buffer.hpp"
#include "convolution/coded_images.hpp"
#include "convolution/past_caches.hpp"

namespace goldstick {
namespace {

constexpr std::int64_t kTogether = 1 << 19;  // numbers of images that are worked on together: they are read twice
constexpr std::int64_t kItems = 4;           // of each thread, of images that are worked on together
constexpr std::int64_t kLeastRows = 4;       // of a band: what two bands read is laid twice

// A call and its sizes.
template <typename T>
struct Rows {
    const ConvolutionWeight& weight;
    const ConvolutionShape& shape;
    const ConvolutionCall<T>& call;
    const RowKernels& kernels;
    Isa isa;
    std::int64_t rows, columns;       // of the output
    std::int64_t padded_columns, slots, depth;  // of the ring of codes; rows of it
    bool past_caches;
    std::int64_t row_codes() const { return padded_columns * slots; }
    bool straight() const { return std::is_same_v<T, float> && !call.coded.codes; }  // whether sums become outputs at once
};

// Memory of one thread.
template <typename T>
class Memory {
public:
    explicit Memory(const Rows<T>& rows)
        : ring((rows.depth + 1) * rows.row_codes() + rows.slots), by(rows.slots), shift(rows.slots),
          line(rows.straight() ? 0 : rows.columns * rows.shape.out),
          natural(std::is_same_v<T, float> ? 0 : rows.shape.in), at(static_cast<std::size_t>(rows.shape.kernel_rows)) {
        std::fill_n(ring.data(), ring.count(), std::int16_t{0});
        std::fill_n(by.data(), by.count(), 0.0f);
        std::fill_n(shift.data(), shift.count(), 0.0f);
    }

    Buffer<std::int16_t> ring;  // [depth][padded column][slot], a row of zeros, and one pixel; zeros on both sides
    Buffer<float> by, shift;    // [slot]
    Buffer<float> line;         // [column][channel], where the output is rounded after
    Buffer<std::int16_t> natural;
    std::vector<const std::int16_t*> at;
};

// The codes of a row of all images' rows. Returns whether all are numbers.
template <typename T>
bool lay_row(const Rows<T>& rows, std::int64_t row, const ImageScale& how, Memory<T>& memory, std::int16_t* to) {
    const std::int64_t channels = rows.shape.in, width = rows.call.width, first = row * width * channels;
    to += rows.shape.left * rows.slots;
    if (rows.call.codes) {
        const auto shift = static_cast<std::int16_t>(kByteShift + static_cast<std::int16_t>(how.zero));
        rows.kernels.lay_bytes(rows.call.codes + first, width, channels, shift, to);
        return true;
    }
    const T* x = rows.call.x + first;
    if constexpr (std::is_same_v<T, float>) {
        return rows.kernels.lay(x, width, channels, how, to);
    } else {
        const std::int64_t block = 2 * rows.kernels.lanes;
        bool numbers = true;
        std::int16_t* const codes = memory.natural.data();
        for (std::int64_t pixel = 0; pixel < width; ++pixel, x += channels, to += rows.slots) {
            numbers &= (rows.isa != Isa::kScalar ? codes_avx2<T, std::int16_t> : codes_scalar<T, std::int16_t>)(x, channels, how, codes);
            for (std::int64_t c = 0; c < channels; ++c) {
                to[c / block * block + slot_of(c % block, rows.kernels.lanes)] = codes[c];
            }
        }
        return numbers;
    }
}

// The rows begin … end of the output of an image. Returns whether all numbers that they were made of are such.
template <typename T>
bool run_band(const Rows<T>& rows, std::int64_t image, std::int64_t begin, std::int64_t end, const ImageScale& how,
              Memory<T>& memory) {
    const ConvolutionShape& shape = rows.shape;
    const ConvolutionCall<T>& call = rows.call;
    const std::int64_t channels = shape.in, within = (shape.kernel_rows - 1) * shape.dilation_rows + 1;
    for (std::int64_t c = 0; c < channels; ++c) {
        memory.by.data()[c] = to_float(call.scale[c]) * how.scale;
        memory.shift.data()[c] = call.bias ? to_float(call.bias[c]) : 0.0f;
    }
    const std::int64_t each = rows.columns * channels;
    bool numbers = true;
    std::int64_t next = 0;  // row of the padded image that is laid next
    for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t first = row * shape.stride_rows;
        for (next = std::max(next, first); next < first + within; ++next) {
            if (next >= shape.top && next < shape.top + call.height) {
                numbers &= lay_row(rows, image * call.height + next - shape.top, how, memory,
                                   memory.ring.data() + next % rows.depth * rows.row_codes());
            }
        }
        for (std::int64_t i = 0; i < shape.kernel_rows; ++i) {
            const std::int64_t wanted = first + i * shape.dilation_rows;
            const bool inside = wanted >= shape.top && wanted < shape.top + call.height;
            memory.at[static_cast<std::size_t>(i)] =
                memory.ring.data() + (inside ? wanted % rows.depth : rows.depth) * rows.row_codes();
        }
        const std::int64_t place = (image * rows.rows + row) * each;
        float* to = memory.line.data();
        if constexpr (std::is_same_v<T, float>) {
            to = rows.straight() ? call.y + place : to;
        }
        rows.kernels.multiply(shape, {memory.at.data(), rows.weight.side_taps.data(), shape.tap_slots(),
                                      rows.slots, rows.columns, channels, memory.by.data(), memory.shift.data(), call.least,
                                      call.most, rows.past_caches, to});
        if (call.coded.codes) {
            numbers &= bytes_of_floats(rows.isa)(to, each, scale_of(call.coded), call.coded.codes + place);
        } else if constexpr (!std::is_same_v<T, float>) {
            for (std::int64_t i = 0; i < each; ++i) store(call.y + place + i, round_to<T>(to[i]));
        }
    }
    return numbers;
}

}  // namespace

const RowKernels& row_kernels(Isa isa) {
#if defined(__x86_64__)
    if (isa != Isa::kScalar) {
        return isa >= Isa::kAvx512 ? kRowsAvx512 : kRowsAvx2;
    }
#endif
    return kRowsScalar;
}

template <typename T>
void convolve_rows(const ConvolutionWeight& weight, const ConvolutionCall<T>& call, int threads, Isa isa,
                   ImageRanges<T>& ranges, ImagesWithNone& none) {
    const ConvolutionShape& shape = weight.shape;
    const RowKernels& kernels = row_kernels(isa);
    const std::int64_t block = 2 * kernels.lanes, slots = (shape.in + block - 1) / block * block;
    const Rows<T> rows{weight, shape, call, kernels, isa, shape.rows_of(call.height),
                       shape.columns_of(call.width), call.width + shape.left + shape.right, slots,
                       (shape.kernel_rows - 1) * shape.dilation_rows + 1, goes_past_caches(shape, call)};
    const std::int64_t together = std::max<std::int64_t>(1, kTogether / ranges.numbers());
    const std::int64_t wanted = threads > 1 ? (kItems * threads + together - 1) / together : 1;  // bands of an image
    const std::int64_t band = std::max((rows.rows + wanted - 1) / wanted, std::min(kLeastRows, rows.rows));
    const std::int64_t bands = (rows.rows + band - 1) / band;
    const bool apart = ranges.apart(threads);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Memory<T> memory(rows);
#pragma omp for schedule(dynamic) nowait
        for (std::int64_t image = 0; image < (apart ? call.images : 0); ++image) {
            ranges.find_alone(image);
            none.note(image, run_band(rows, image, 0, rows.rows, ranges.scale(image), memory));
        }
        for (std::int64_t first = apart ? call.images : 0; first < call.images; first += together) {
            const std::int64_t last = std::min(call.images, first + together);
            ranges.find(first, last);
#pragma omp for schedule(dynamic) nowait
            for (std::int64_t item = first * bands; item < last * bands; ++item) {
                const std::int64_t image = item / bands, begin = item % bands * band;
                const std::int64_t end = std::min(begin + band, rows.rows);
                none.note(image, run_band(rows, image, begin, end, ranges.scale(image), memory));
            }
        }
        wait_for_stores();
    }
}

template void convolve_rows<float>(const ConvolutionWeight&, const ConvolutionCall<float>&, int, Isa,
                                   ImageRanges<float>&, ImagesWithNone&);
template void convolve_rows<bfloat16>(const ConvolutionWeight&, const ConvolutionCall<bfloat16>&, int, Isa,
                                      ImageRanges<bfloat16>&, ImagesWithNone&);
template void convolve_rows<float16>(const ConvolutionWeight&, const ConvolutionCall<float16>&, int, Isa,
                                     ImageRanges<float16>&, ImagesWithNone&);

}  // namespace goldstick
