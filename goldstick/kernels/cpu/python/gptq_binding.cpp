// The Python face of the column loop: shapes and types are checked here, before any pointer is followed.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "codes/dequantize.hpp"
#include "calibration/gptq.hpp"
#include "python/gptq_binding.hpp"
#include "python/shapes.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T>
using Array = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Groups = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void gptq_block(Array<const double> weight, Array<const double> factor, Array<const float> scale,
                nb::object zero_or_none, Groups group, Array<std::uint8_t> codes, Array<double> errors, int bits,
                const std::string& precision, int threads, bool use_avx2, bool minimums, nb::object edges_or_none,
                nb::object table_or_none, bool sign, bool zero_sign) {
    const std::size_t rows = weight.shape(0), width = weight.shape(1), groups = scale.shape(1);
    if (bits < 1 || bits > 8) {
        throw std::invalid_argument("bits is " + std::to_string(bits) + ", expected 1 to 8");
    }
    goldstick::expect_shape("factor", factor, {width, width});
    goldstick::expect_shape("scale", scale, {rows, groups});
    goldstick::expect_shape("codes", codes, {rows, width});
    goldstick::expect_shape("errors", errors, {rows, width});
    if (group.shape(0) != width) {
        throw std::invalid_argument("group has " + std::to_string(group.shape(0)) + " entries, expected " +
                                    std::to_string(width));
    }
    for (std::size_t j = 0; j < width; ++j) {
        if (group.data()[j] < 0 || group.data()[j] >= static_cast<std::int64_t>(groups)) {
            throw std::invalid_argument("column " + std::to_string(j) + " is in group " +
                                        std::to_string(group.data()[j]) + " of " + std::to_string(groups));
        }
    }
    goldstick::GptqBlock block{};
    Array<const float> zero;
    if (!zero_or_none.is_none()) {
        if (!nb::try_cast<Array<const float>>(zero_or_none, zero, false)) {
            throw nb::type_error("zero must be a dense float32 matrix");
        }
        goldstick::expect_shape("zero", zero, {rows, groups});
        block.zero = zero.data();
    }
    block.minimums = minimums;
    if (minimums && !block.zero) {
        throw std::invalid_argument("minimums are missing");
    }
    Numbers edges, table;
    if (edges_or_none.is_none() != table_or_none.is_none()) {
        throw std::invalid_argument("edges and table go together");
    }
    if (!table_or_none.is_none()) {
        if (!nb::try_cast<Numbers>(edges_or_none, edges, false) || !nb::try_cast<Numbers>(table_or_none, table, false)) {
            throw nb::type_error("edges and table must be dense float32 vectors");
        }
        const std::size_t values = (std::size_t{1} << bits) >> (sign ? 1 : 0);
        if (bits > 4 || table.shape(0) != std::size_t{1} << bits || edges.shape(0) >= values) {
            throw std::invalid_argument("a table has 2^bits values, 16 at most, and fewer edges");
        }
        block.edges = edges.data();
        block.table = table.data();
        block.edge_count = static_cast<int>(edges.shape(0));
        block.sign = sign;
        block.zero_sign = zero_sign;
    }
    block.weight = weight.data();
    block.factor = factor.data();
    block.scale = scale.data();
    block.group = group.data();
    block.codes = codes.data();
    block.errors = errors.data();
    block.rows = static_cast<std::int64_t>(rows);
    block.width = static_cast<std::int64_t>(width);
    block.groups = static_cast<std::int64_t>(groups);
    block.bits = bits;
    block.precision = goldstick::precision_of(precision);
    if (use_avx2 && !goldstick::has_avx2()) {
        throw std::invalid_argument("this processor has no avx2");
    }
    nb::gil_scoped_release released;
    goldstick::solve_gptq_block(block, std::max(threads, 1), use_avx2);
}

}  // namespace

void define_gptq_block(nb::module_& module) {
    module.def("gptq_block", &gptq_block, "weight"_a.noconvert(), "factor"_a.noconvert(), "scale"_a.noconvert(),
               "zero"_a.none(), "group"_a.noconvert(), "codes"_a.noconvert(), "errors"_a.noconvert(), "bits"_a,
               "precision"_a, "threads"_a = 1, "use_avx2"_a = false, "minimums"_a = false,
               "edges"_a.none() = nb::none(), "table"_a.none() = nb::none(), "sign"_a = false, "zero_sign"_a = false);
}
