// The Python face of the quantized product: shapes and types are checked here, before any pointer is followed.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/floats.hpp"
#include "linear/linear.hpp"
#include "python/coding_arguments.hpp"
#include "python/linear_binding.hpp"
#include "python/shapes.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using goldstick::bfloat16;
using goldstick::float16;

template <typename T, int dimensions>
using Array = nb::ndarray<T, nb::ndim<dimensions>, nb::c_contig, nb::device::cpu>;

// `Stored` is how an element crosses the border (bfloat16 travels as int16, float16 as uint16), `T` how the kernel sees it.
template <typename T, typename Stored>
void quantized_linear(Array<const Stored, 2> x, Array<const std::int32_t, 2> packed, Array<const Stored, 2> scale,
                      nb::object zero_or_none, nb::object bias_or_none, Array<Stored, 2> y, int bits,
                      std::int64_t group_size, const std::string& activation, float input_scale, int input_zero,
                      int threads, const std::string& isa, nb::object table, int middle, float unit,
                      nb::object global_scale) {
    static_assert(sizeof(T) == sizeof(Stored));
    const std::size_t tokens = x.shape(0), columns = x.shape(1), rows = packed.shape(0);
    if (bits < 1 || bits > 8) {
        throw std::invalid_argument("bits is " + std::to_string(bits) + ", expected 1 to 8");
    }
    if (group_size < 1) {
        throw std::invalid_argument("group_size is " + std::to_string(group_size) + ", expected 1 or more");
    }
    const std::size_t width = (columns * static_cast<std::size_t>(bits) + 31) / 32;
    const std::size_t groups = columns == 0 ? 0 : (columns - 1) / static_cast<std::size_t>(group_size) + 1;
    goldstick::expect_shape("packed", packed, {rows, width});
    goldstick::expect_shape("scale", scale, {rows, groups});
    goldstick::expect_shape("y", y, {tokens, rows});
    goldstick::LinearCall<T> call{};
    Array<const float, 2> zero;
    if (!zero_or_none.is_none()) {
        if (!nb::try_cast<Array<const float, 2>>(zero_or_none, zero, false)) {
            throw nb::type_error("zero must be a dense matrix of float32");
        }
        goldstick::expect_shape("zero", zero, {rows, groups});
        call.zero = zero.data();
    }
    Array<const Stored, 1> bias;
    if (!bias_or_none.is_none()) {
        if (!nb::try_cast<Array<const Stored, 1>>(bias_or_none, bias, false)) {
            throw nb::type_error("bias must be a dense vector of the type of x");
        }
        if (bias.shape(0) != rows) {
            throw std::invalid_argument("bias has " + std::to_string(bias.shape(0)) + " entries, expected " +
                                        std::to_string(rows));
        }
        call.bias = reinterpret_cast<const T*>(bias.data());
    }
    call.x = reinterpret_cast<const T*>(x.data());
    call.packed = reinterpret_cast<const std::uint8_t*>(packed.data());
    call.scale = reinterpret_cast<const T*>(scale.data());
    call.y = reinterpret_cast<T*>(y.data());
    call.tokens = static_cast<std::int64_t>(tokens);
    call.rows = static_cast<std::int64_t>(rows);
    call.columns = static_cast<std::int64_t>(columns);
    call.row_bytes = static_cast<std::int64_t>(width) * 4;
    call.groups = static_cast<std::int64_t>(groups);
    call.group_size = group_size;
    call.bits = bits;
    call.coding = goldstick::coding_of(table, bits, middle, unit);
    goldstick::set_global_scale(call, global_scale, rows);
    call.rounding = goldstick::rounding_of(activation);
    call.input_scale = input_scale;
    call.input_zero = static_cast<float>(input_zero);
    const goldstick::Isa wanted = goldstick::isa_named(isa, "isa");
    nb::gil_scoped_release released;
    goldstick::quantized_linear(call, std::max(threads, 1), wanted);
}

// All words of an array, folded into one: what a benchmark compares a kernel's reading with.
std::uint32_t read_words(Array<const std::int32_t, 2> words, int threads) {
    const std::int32_t* data = words.data();
    const auto count = static_cast<std::int64_t>(words.shape(0) * words.shape(1));
    std::uint32_t folded = 0;
    nb::gil_scoped_release released;
#pragma omp parallel for simd schedule(static) reduction(^ : folded) num_threads(std::max(threads, 1))
    for (std::int64_t i = 0; i < count; ++i) {
        folded ^= static_cast<std::uint32_t>(data[i]);
    }
    return folded;
}

template <typename T, typename Stored>
void define(nb::module_& module) {
    module.def("quantized_linear", &quantized_linear<T, Stored>, "x"_a.noconvert(), "packed"_a.noconvert(),
               "scale"_a.noconvert(), "zero"_a.none(), "bias"_a.none(), "y"_a.noconvert(), "bits"_a, "group_size"_a,
               "activation"_a = "", "input_scale"_a = 0.0f, "input_zero"_a = 0, "threads"_a = 1,
               "isa"_a = "scalar", "table"_a.none() = nb::none(), "middle"_a = 0, "unit"_a = 1.0f,
               "global_scale"_a.none() = nb::none());
}

}  // namespace

void define_quantized_linear(nb::module_& module) {
    define<float, float>(module);
    define<bfloat16, std::int16_t>(module);
    define<float16, std::uint16_t>(module);
    module.def("read_words", &read_words, "words"_a.noconvert(), "threads"_a = 1);
}
