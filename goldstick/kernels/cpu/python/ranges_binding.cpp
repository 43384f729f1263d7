// The Python face of the range search: shapes and types are checked here, before any pointer is followed.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "codes/dequantize.hpp"
#include "calibration/ranges.hpp"
#include "python/ranges_binding.hpp"
#include "python/shapes.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T, int dimensions>
using Array = nb::ndarray<T, nb::ndim<dimensions>, nb::c_contig, nb::device::cpu>;

template <int dimensions>
const float* optional_floats(const char* name, nb::object given, std::initializer_list<std::size_t> expected) {
    if (given.is_none()) {
        return nullptr;
    }
    Array<const float, dimensions> array;
    if (!nb::try_cast<Array<const float, dimensions>>(given, array, false)) {
        throw nb::type_error((std::string(name) + " must be dense, float32, on the CPU").c_str());
    }
    goldstick::expect_shape(name, array, expected);
    return array.data();  // the caller's argument keeps it alive
}

void search_ranges(Array<const float, 3> values, Array<const float, 3> scale, nb::object zero, nb::object importance,
                   Array<std::int64_t, 2> best, int bits, int threads, bool use_avx2, int mantissa_bits,
                   float least_normal, float largest, nb::object table, nb::object edges) {
    const std::size_t rows = values.shape(0), groups = values.shape(1), width = values.shape(2);
    const std::size_t candidates = scale.shape(2);
    if (bits < 1 || bits > 8) {
        throw std::invalid_argument("bits is " + std::to_string(bits) + ", expected 1 to 8");
    }
    if (candidates == 0) {
        throw std::invalid_argument("scale holds no candidates");
    }
    goldstick::expect_shape("scale", scale, {rows, groups, candidates});
    goldstick::expect_shape("best", best, {rows, groups});
    goldstick::RangeSearch search{};
    search.zero = optional_floats<3>("zero", zero, {rows, groups, candidates});
    search.importance = optional_floats<2>("importance", importance, {groups, width});
    search.values = values.data();
    search.scale = scale.data();
    search.best = best.data();
    search.rows = static_cast<std::int64_t>(rows);
    search.groups = static_cast<std::int64_t>(groups);
    search.width = static_cast<std::int64_t>(width);
    search.candidates = static_cast<std::int64_t>(candidates);
    search.numbers = goldstick::Numbers{goldstick::NumberKind::integers, bits, mantissa_bits, least_normal, largest,
                                        optional_floats<1>("table", table, {16}), optional_floats<1>("edges", edges, {15})};
    if (table.is_none() != edges.is_none()) {
        throw std::invalid_argument("a table has edges");
    }
    if (!table.is_none()) {
        search.numbers.kind = goldstick::NumberKind::table;
    } else if (largest > 0.0f) {
        search.numbers.kind = goldstick::NumberKind::floats;
        if (mantissa_bits < 0 || mantissa_bits > 10 || !(least_normal >= 1e-30f)) {
            throw std::invalid_argument("floats have 0 to 10 bits of mantissa and a least normal number");
        }
    }
    if (search.numbers.kind != goldstick::NumberKind::integers && !zero.is_none()) {
        throw std::invalid_argument("integers alone have zeros");
    }
    if (use_avx2 && !goldstick::has_avx2()) {
        throw std::invalid_argument("this processor has no avx2");
    }
    nb::gil_scoped_release released;
    goldstick::search_ranges(search, std::max(threads, 1), use_avx2);
}

}  // namespace

void define_search_ranges(nb::module_& module) {
    module.def("search_ranges", &search_ranges, "values"_a.noconvert(), "scale"_a.noconvert(), "zero"_a.none(),
               "importance"_a.none(), "best"_a.noconvert(), "bits"_a, "threads"_a = 1, "use_avx2"_a = false,
               "mantissa_bits"_a = 0, "least_normal"_a = 0.0f, "largest"_a = 0.0f, "table"_a.none() = nb::none(),
               "edges"_a.none() = nb::none());
}
