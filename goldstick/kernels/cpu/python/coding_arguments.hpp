// The arguments that say what codes stand for, and what the scales are divided by.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "linear/linear.hpp"
#include "python/shapes.hpp"

namespace goldstick {

// Plain codes where the table is None, else uint8 [2^bits].
inline Coding coding_of(const nanobind::object& table, int bits, int middle, float unit) {
    if (table.is_none()) {
        return Coding(bits);
    }
    nanobind::ndarray<const std::uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu> entries;
    if (!nanobind::try_cast(table, entries, false)) {
        throw nanobind::type_error("table must be a dense vector of uint8");
    }
    expect_shape("table", entries, {std::size_t{1} << bits});
    return Coding(bits, entries.data(), middle, unit);
}

// Set what the scales of a call are divided by, [1] or one for each row, or of superblocks what scales and zeros are
// multiplied by, [rows, 1 or 2, superblocks]. Whoever calls keeps the array alive.
template <typename T>
void set_global_scale(LinearCall<T>& call, const nanobind::object& given, std::size_t rows) {
    if (given.is_none()) {
        return;
    }
    nanobind::ndarray<const float, nanobind::c_contig, nanobind::device::cpu> numbers;
    if (!nanobind::try_cast(given, numbers, false) || (numbers.ndim() != 1 && numbers.ndim() != 3)) {
        throw nanobind::type_error("global_scale must be dense float32, a vector or [rows, 1 or 2, superblocks]");
    }
    if (numbers.ndim() == 1) {
        call.divisor_rows = numbers.shape(0) > 1;
        expect_shape("global_scale", numbers, {call.divisor_rows ? rows : 1});
        call.divisor = numbers.data();
        return;
    }
    expect_shape("global_scale", numbers, {rows, call.zero ? std::size_t{2} : std::size_t{1}, numbers.shape(2)});
    call.superblocks = static_cast<std::int64_t>(numbers.shape(2));
    if (call.superblocks < 1 || call.groups % call.superblocks || call.columns % call.superblocks) {
        throw std::invalid_argument("columns and groups do not divide into " + std::to_string(call.superblocks) +
                                    " superblocks");
    }
    call.units = numbers.data();
}

}  // namespace goldstick
