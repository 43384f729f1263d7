// The Python face of the sums of products: shapes and sizes are checked here, before any pointer is followed.
#include "python/products_binding.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/isa.hpp"
#include "calibration/products.hpp"
#include "python/shapes.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Numbers = nb::ndarray<const std::int16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Sums = nb::ndarray<std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

bool all_small(const Numbers& numbers) {
    const std::int16_t* values = numbers.data();
    std::int16_t least = 0, greatest = 0;
    for (std::size_t index = 0; index < numbers.size(); ++index) {
        least = std::min(least, values[index]);
        greatest = std::max(greatest, values[index]);
    }
    return least >= -goldstick::kLargest && greatest <= goldstick::kLargest;
}

void add_products(Numbers left, Numbers right, Sums sums, int threads, const std::string& isa) {
    if (left.shape(0) != right.shape(0)) {
        throw std::invalid_argument("left has " + std::to_string(left.shape(0)) + " tokens and right " +
                                    std::to_string(right.shape(0)));
    }
    goldstick::expect_shape("sums", sums, {left.shape(1), right.shape(1)});
    const goldstick::Isa instructions = goldstick::isa_named(isa, "isa");
    goldstick::Products products{};
    products.left = left.data();
    products.right = right.data();
    products.sums = sums.data();
    products.tokens = static_cast<std::int64_t>(left.shape(0));
    products.rows = static_cast<std::int64_t>(left.shape(1));
    products.columns = static_cast<std::int64_t>(right.shape(1));
    products.upper = left.data() == right.data() && products.rows == products.columns;
    nb::gil_scoped_release released;
    if (!all_small(left) || (!products.upper && !all_small(right))) {
        throw std::invalid_argument("a number lies outside -8192 ... 8192, which 32-bit sums are safe for");
    }
    goldstick::add_products(products, std::max(threads, 1), instructions);
}

}  // namespace

void define_add_products(nb::module_& module) {
    module.def("add_products", &add_products, "left"_a.noconvert(), "right"_a.noconvert(), "sums"_a.noconvert(),
               "threads"_a = 1, "isa"_a = "scalar");
}
