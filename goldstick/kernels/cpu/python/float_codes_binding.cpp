// The Python face of the kernels of float codes: shapes and types are checked here, before any pointer is followed.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/floats.hpp"
#include "base/isa.hpp"
#include "codes/float_codes.hpp"
#include "python/float_codes_binding.hpp"
#include "python/shapes.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using goldstick::bfloat16;
using goldstick::float16;

template <typename T, int dimensions>
using Array = nb::ndarray<T, nb::ndim<dimensions>, nb::c_contig, nb::device::cpu>;

goldstick::FloatCodes checked(const Array<const std::int32_t, 2>& packed, const Array<const float, 2>& step,
                              const Array<const float, 1>& table, std::size_t columns, int bits,
                              std::int64_t group_size, const std::string& element) {
    const bool e4m3 = element == "e4m3", e5m2 = element == "e5m2";
    if (bits < 1 || bits > 8 || group_size < 1 || ((e4m3 || e5m2) && bits != 8)) {
        throw std::invalid_argument("a code has 1 to 8 bits, of E4M3 and E5M2 8, and a group 1 column or more");
    }
    const goldstick::Widening widening = e4m3        ? goldstick::Widening::kE4m3
                                         : e5m2      ? goldstick::Widening::kE5m2
                                         : bits == 4 ? goldstick::Widening::kNibbles
                                                     : goldstick::Widening::kTable;
    const std::size_t rows = packed.shape(0), width = (columns * static_cast<std::size_t>(bits) + 31) / 32;
    const std::size_t groups = columns == 0 ? 0 : (columns - 1) / static_cast<std::size_t>(group_size) + 1;
    goldstick::expect_shape("packed", packed, {rows, width});
    goldstick::expect_shape("step", step, {rows, groups});
    if (table.shape(0) != std::size_t{1} << bits) {
        throw std::invalid_argument("the table has another number of values than there are codes");
    }
    return {reinterpret_cast<const std::uint8_t*>(packed.data()), step.data(), table.data(),
            static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns), static_cast<std::int64_t>(width) * 4,
            static_cast<std::int64_t>(groups), group_size, bits, widening};
}

template <typename T, typename Stored>
void dequantize(Array<const std::int32_t, 2> packed, Array<const float, 2> step, Array<const float, 1> table,
                Array<Stored, 2> out, int bits, std::int64_t group_size, const std::string& element, int threads) {
    const goldstick::FloatCodes codes = checked(packed, step, table, out.shape(1), bits, group_size, element);
    goldstick::expect_shape("out", out, {packed.shape(0), out.shape(1)});
    T* const data = reinterpret_cast<T*>(out.data());
    const goldstick::Isa isa = goldstick::chosen_isa();
    nb::gil_scoped_release released;
    goldstick::dequantize_float_codes(codes, data, std::max(threads, 1), isa);
}

void multiply(Array<const std::int32_t, 2> packed, Array<const float, 2> step, Array<const float, 1> table,
              Array<const float, 2> x, Array<float, 2> y, int bits, std::int64_t group_size, const std::string& element, int threads) {
    const goldstick::FloatCodes codes = checked(packed, step, table, x.shape(1), bits, group_size, element);
    goldstick::expect_shape("y", y, {x.shape(0), packed.shape(0)});
    const float* const inputs = x.data();
    float* const outputs = y.data();
    const auto tokens = static_cast<std::int64_t>(x.shape(0));
    const goldstick::Isa isa = goldstick::chosen_isa();
    nb::gil_scoped_release released;
    goldstick::multiply_float_codes(codes, inputs, tokens, outputs, std::max(threads, 1), isa);
}

template <typename T, typename Stored>
void define(nb::module_& module) {
    module.def("dequantize_float_codes", &dequantize<T, Stored>, "packed"_a.noconvert(), "step"_a.noconvert(),
               "table"_a.noconvert(), "out"_a.noconvert(), "bits"_a, "group_size"_a, "element"_a, "threads"_a = 1);
}

}  // namespace

void define_float_codes(nb::module_& module) {
    define<float, float>(module);
    define<bfloat16, std::int16_t>(module);
    define<float16, std::uint16_t>(module);
    module.def("multiply_float_codes", &multiply, "packed"_a.noconvert(), "step"_a.noconvert(), "table"_a.noconvert(),
               "x"_a.noconvert(), "y"_a.noconvert(), "bits"_a, "group_size"_a, "element"_a, "threads"_a = 1);
}
