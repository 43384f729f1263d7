// The Python face of the fits of blocks: shapes and types are checked here, before any pointer is followed.
#include "python/fits_binding.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "calibration/block_fits.hpp"
#include "codes/dequantize.hpp"
#include "python/shapes.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

goldstick::FitKind kind_of(const std::string& name) {
    using goldstick::FitKind;
    if (name == "affine") return FitKind::affine;
    if (name == "symmetric") return FitKind::symmetric;
    if (name == "changes") return FitKind::changes;
    if (name == "positive") return FitKind::positive;
    if (name == "table") return FitKind::table;
    throw std::invalid_argument("no fit is called " + name);
}

void fit_blocks(const std::string& kind, Matrix<const float> x, std::optional<Matrix<const float>> weight, Vector<float> scale,
                std::optional<Vector<float>> minimum, std::optional<Matrix<std::uint8_t>> codes, int code_max,
                Vector<const float> shifts, bool absolute, std::optional<Vector<const float>> table, int threads,
                bool use_avx2) {
    const std::size_t groups = x.shape(0), width = x.shape(1);
    goldstick::BlockFit fit{};
    fit.kind = kind_of(kind);
    if (width < 1 || code_max < 1 || code_max > 255) {
        throw std::invalid_argument("groups have a width, and codes a largest of 1 to 255");
    }
    const bool affine = fit.kind == goldstick::FitKind::affine, entries = fit.kind == goldstick::FitKind::table;
    if (weight.has_value() == (fit.kind == goldstick::FitKind::changes) || minimum.has_value() != affine ||
        codes.has_value() == entries || table.has_value() != entries) {
        throw std::invalid_argument("the arrays do not go with the fit " + kind);
    }
    if (weight) goldstick::expect_shape("weight", *weight, {groups, width});
    if (codes) goldstick::expect_shape("codes", *codes, {groups, width});
    if (scale.shape(0) != groups || (minimum && minimum->shape(0) != groups) || (table && table->shape(0) != 16)) {
        throw std::invalid_argument("there is a scale, and perhaps a minimum, for each group; and a table has 16 values");
    }
    if (use_avx2 && !goldstick::has_avx2()) {
        throw std::invalid_argument("this processor has no avx2");
    }
    fit.x = x.data();
    fit.weight = weight ? weight->data() : nullptr;
    fit.scale = scale.data();
    fit.minimum = minimum ? minimum->data() : nullptr;
    fit.codes = codes ? codes->data() : nullptr;
    fit.shifts = shifts.data();
    fit.table = table ? table->data() : nullptr;
    fit.groups = static_cast<std::int64_t>(groups);
    fit.width = static_cast<std::int64_t>(width);
    fit.tries = static_cast<std::int64_t>(shifts.shape(0));
    fit.code_max = code_max;
    fit.absolute = absolute;
    nb::gil_scoped_release released;
    goldstick::fit_blocks(fit, std::max(threads, 1), use_avx2);
}

}  // namespace

void define_fit_blocks(nb::module_& module) {
    module.def("fit_blocks", &fit_blocks, "kind"_a, "x"_a.noconvert(), "weight"_a.noconvert().none(), "scale"_a.noconvert(),
               "minimum"_a.noconvert().none(), "codes"_a.noconvert().none(), "code_max"_a, "shifts"_a.noconvert(),
               "absolute"_a = false, "table"_a.noconvert().none() = nb::none(), "threads"_a = 1, "use_avx2"_a = false);
}
