// A convolution whose weight was laid out once: calls hand over addresses of inputs and outputs alone.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>

#include "base/floats.hpp"
#include "base/isa.hpp"
#include "convolution/convolution.hpp"
#include "linear/prepared_linear.hpp"
#include "python/convolution_binding.hpp"
#include "python/shapes.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using goldstick::bfloat16;
using goldstick::float16;

using Packed = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Pair = std::array<std::int64_t, 2>;

class Prepared {
public:
    Prepared(Packed packed, int bits, std::int64_t in, std::int64_t groups, Pair kernel, Pair stride, Pair dilation,
             std::array<std::int64_t, 4> padding, const std::string& activation)
        : rounding_(goldstick::rounding_of(activation)),
          weight_(shape_of(packed, bits, in, groups, kernel, stride, dilation, padding),
                  reinterpret_cast<const std::uint8_t*>(packed.data()), static_cast<std::int64_t>(packed.shape(1)) * 4,
                  bits, goldstick::takes_bytes(rounding_, in / groups * kernel[0] * kernel[1])) {}

    std::int64_t bytes() const {
        return weight_.codes.count() + 4 * weight_.sums.count() + 2 * (weight_.taps.count() + weight_.side_taps.count());
    }

    // y = f(x) ∗ w + bias, between `least` and `most`, for dense x and y. The caller has checked them. With `coded_x`, x are
    // bytes (convolution/coded_images.hpp), and with `coded_y` y are, by the scale and zero behind it. Returns false where
    // GOLDSTICK_BACKEND names another backend, of which nothing is done then, and where what is no number has no code.
    bool run(std::uintptr_t x, std::uintptr_t y, std::uintptr_t scale, std::uintptr_t bias, std::int64_t images,
             std::int64_t height, std::int64_t width, bool x_last, bool y_last, const std::string& precision,
             float input_scale, int input_zero, float least, float most, bool coded_x, bool coded_y, float coded_scale,
             int coded_zero, int threads) const {
        if (goldstick::another_backend_is_named()) {
            return false;
        }
        const goldstick::ConvolutionShape& shape = weight_.shape;
        if (shape.rows_of(height) < 1 || shape.columns_of(width) < 1) {
            throw std::invalid_argument("the kernel is larger than the padded input");
        }
        if (x_last && shape.depthwise() && shape.group_out() != 1) {
            throw std::invalid_argument("with several outputs for each channel, images lie channel by channel");
        }
        if ((shape.depthwise() && x_last != y_last) || ((coded_x || coded_y) && precision != "float32") ||
            (coded_x && !(x_last && rounding_ == goldstick::Rounding::kInt8Tensor)) ||
            (coded_y && !(y_last && coded_scale > 0.0f && std::isfinite(coded_scale)))) {
            throw std::invalid_argument("codes are of floats with a scale for all inputs, channels last");
        }
        const goldstick::Isa isa = goldstick::chosen_isa();
        bool done = true;
        const auto all = [&](auto like) {
            using T = decltype(like);
            const goldstick::ConvolutionCall<T> call{
                coded_x ? nullptr : reinterpret_cast<const T*>(x), coded_y ? nullptr : reinterpret_cast<T*>(y),
                reinterpret_cast<const T*>(scale), reinterpret_cast<const T*>(bias), images, height, width, x_last, y_last,
                rounding_, input_scale, static_cast<float>(input_zero), least, most,
                coded_x ? reinterpret_cast<const std::uint8_t*>(x) : nullptr,
                {coded_y ? reinterpret_cast<std::uint8_t*>(y) : nullptr, coded_scale, static_cast<float>(coded_zero)}};
            nb::gil_scoped_release released;
            done = goldstick::convolve(weight_, call, std::max(threads, 1), isa);
        };
        switch (goldstick::precision_of(precision)) {
            case goldstick::Precision::float32: all(float{}); break;
            case goldstick::Precision::bfloat16: all(bfloat16{}); break;
            case goldstick::Precision::float16: all(float16{}); break;
        }
        return done;
    }

private:
    static goldstick::ConvolutionShape shape_of(const Packed& packed, int bits, std::int64_t in, std::int64_t groups,
                                                const Pair& kernel, const Pair& stride, const Pair& dilation,
                                                const std::array<std::int64_t, 4>& padding) {
        const auto out = static_cast<std::int64_t>(packed.shape(0));
        const auto least = [](const Pair& pair) { return std::min(pair[0], pair[1]); };
        if (bits < 1 || bits > 8 || groups < 1 || in < groups || out < groups || in % groups || out % groups) {
            throw std::invalid_argument("a convolution has 1 to 8 bits, and groups that divide its channels");
        }
        if (least(kernel) < 1 || least(stride) < 1 || least(dilation) < 1 ||
            *std::min_element(padding.begin(), padding.end()) < 0) {
            throw std::invalid_argument("kernels, strides and dilations are 1 or more, and padding is 0 or more");
        }
        const std::int64_t columns = in / groups * kernel[0] * kernel[1];
        if (in == groups && groups > 1 && columns > goldstick::kDepthwisePositions) {
            throw std::invalid_argument("a depthwise kernel has at most 512 positions");
        }
        goldstick::expect_shape("packed", packed,
                                {packed.shape(0), static_cast<std::size_t>((columns * bits + 31) / 32)});
        return {in, out, groups, kernel[0], kernel[1], stride[0], stride[1], dilation[0], dilation[1],
                padding[0], padding[1], padding[2], padding[3]};
    }

    goldstick::Rounding rounding_;
    goldstick::ConvolutionWeight weight_;
};

}  // namespace

void define_convolution(nb::module_& module) {
    nb::class_<Prepared>(module, "PreparedConvolution")
        .def(nb::init<Packed, int, std::int64_t, std::int64_t, Pair, Pair, Pair, std::array<std::int64_t, 4>,
                      const std::string&>(),
             "packed"_a.noconvert(), "bits"_a, "in_channels"_a, "groups"_a, "kernel"_a, "stride"_a, "dilation"_a,
             "padding"_a, "activation"_a)
        .def_prop_ro("bytes", &Prepared::bytes)
        .def("run", &Prepared::run, "x"_a, "y"_a, "scale"_a, "bias"_a, "images"_a, "height"_a, "width"_a,
             "x_last"_a, "y_last"_a, "precision"_a, "input_scale"_a, "input_zero"_a, "least"_a, "most"_a, "coded_x"_a,
             "coded_y"_a, "coded_scale"_a, "coded_zero"_a, "threads"_a);
}
