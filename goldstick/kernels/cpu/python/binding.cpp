// The Python face of the kernels: shapes and types are checked here, before any pointer is followed.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "codes/dequantize.hpp"
#include "python/convolution_binding.hpp"
#include "python/decoder_block_binding.hpp"
#include "python/unchanged_binding.hpp"
#include "python/float_codes_binding.hpp"
#include "python/fits_binding.hpp"
#include "python/fused_binding.hpp"
#include "python/gptq_binding.hpp"
#include "base/isa.hpp"
#include "python/linear_binding.hpp"
#include "python/prepared_binding.hpp"
#include "python/products_binding.hpp"
#include "python/ranges_binding.hpp"
#include "python/shapes.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using goldstick::bfloat16;
using goldstick::float16;

template <typename T>
using Array = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// `Stored` is how an element crosses the border (bfloat16 travels as int16, float16 as uint16), `T` how the kernel sees it.
template <typename T, typename Stored>
void dequantize_rows(Array<const std::int32_t> packed, Array<const Stored> scale,
                     nb::object zero_or_none, Array<Stored> out, int bits, std::int64_t group_size, int threads,
                     nb::object units_or_none) {
    static_assert(sizeof(T) == sizeof(Stored));
    const std::size_t rows = out.shape(0), columns = out.shape(1);
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
    goldstick::Matrix<T> matrix{};
    Array<const Stored> zero;
    if (!zero_or_none.is_none()) {
        if (!nb::try_cast<Array<const Stored>>(zero_or_none, zero, false)) {
            throw nb::type_error("zero must be a dense matrix of the type of the scale");
        }
        goldstick::expect_shape("zero", zero, {rows, groups});
        matrix.zero = reinterpret_cast<const T*>(zero.data());
    }
    nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu> units;
    if (!units_or_none.is_none()) {
        if (!nb::try_cast(units_or_none, units, false)) {
            throw nb::type_error("units must be dense float32 of three dimensions");
        }
        goldstick::expect_shape("units", units, {rows, matrix.zero ? std::size_t{2} : std::size_t{1}, units.shape(2)});
        if (units.shape(2) == 0 || groups % units.shape(2) != 0) {
            throw std::invalid_argument("groups do not divide into superblocks");
        }
        matrix.units = units.data();
        matrix.superblocks = static_cast<std::int64_t>(units.shape(2));
    }
    matrix.packed = reinterpret_cast<const std::uint32_t*>(packed.data());
    matrix.scale = reinterpret_cast<const T*>(scale.data());
    matrix.out = reinterpret_cast<T*>(out.data());
    matrix.rows = static_cast<std::int64_t>(rows);
    matrix.columns = static_cast<std::int64_t>(columns);
    matrix.width = static_cast<std::int64_t>(width);
    matrix.groups = static_cast<std::int64_t>(groups);
    matrix.group_size = group_size;
    matrix.bits = bits;
    const bool use_avx2 = goldstick::uses_avx2();
    nb::gil_scoped_release released;
    goldstick::dequantize_matrix(matrix, std::max(threads, 1), use_avx2);
}

template <typename T, typename Stored>
void define_dequantize_rows(nb::module_& module) {
    module.def("dequantize_rows", &dequantize_rows<T, Stored>, "packed"_a.noconvert(), "scale"_a.noconvert(),
               "zero"_a.none(), "out"_a.noconvert(), "bits"_a, "group_size"_a, "threads"_a = 1,
               "units"_a.none() = nb::none());
}

}  // namespace

NB_MODULE(_C, module) {
    nb::set_leak_warnings(false);  // a process may end without a last collection, and says nothing of it
    module.doc() = "CPU kernels of goldstick. Import torch first, so that both share one OpenMP runtime.";
    define_dequantize_rows<float, float>(module);
    define_dequantize_rows<bfloat16, std::int16_t>(module);
    define_dequantize_rows<float16, std::uint16_t>(module);
    define_float_codes(module);
    define_gptq_block(module);
    define_fused(module);
    define_add_products(module);
    define_quantized_linear(module);
    define_prepared_linear(module);
    define_decoder_block(module);
    define_unchanged(module);
    define_convolution(module);
    define_search_ranges(module);
    define_fit_blocks(module);
    module.def("isa", [] { return goldstick::name_of(goldstick::chosen_isa()); });
}
