// A quantized layer whose arrays were checked once: calls hand over addresses of inputs and outputs alone.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

#include "base/floats.hpp"
#include "linear/interleaved.hpp"
#include "base/isa.hpp"
#include "linear/linear.hpp"
#include "python/coding_arguments.hpp"
#include "python/prepared_binding.hpp"
#include "linear/prepared_linear.hpp"
#include "python/shapes.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using goldstick::bfloat16;
using goldstick::float16;

template <typename T, int dimensions>
using Array = nb::ndarray<T, nb::ndim<dimensions>, nb::c_contig, nb::device::cpu>;

// The array of an argument that may be None, and what keeps it alive.
template <typename T, int dimensions>
const T* optional_array(const char* name, nb::object given, nb::object& kept,
                        std::initializer_list<std::size_t> expected) {
    if (given.is_none()) {
        return nullptr;
    }
    Array<const T, dimensions> array;
    if (!nb::try_cast<Array<const T, dimensions>>(given, array, false)) {
        throw nb::type_error((std::string(name) + " is not a dense array of its type on the CPU").c_str());
    }
    goldstick::expect_shape(name, array, expected);
    kept = given;
    return array.data();
}

template <typename T, typename Stored>
class Prepared final : public goldstick::PreparedLinearOf<T> {
public:
    Prepared(Array<const std::int32_t, 2> packed, Array<const Stored, 2> scale, nb::object zero, nb::object bias,
             nb::object input_scale, nb::object input_zero, int bits, std::int64_t columns, std::int64_t group_size,
             const std::string& activation, bool interleaved, const nb::object& table, int middle, float unit,
             const nb::object& global_scale)
        : packed_(packed), scale_(scale) {
        if (bits < 1 || bits > 8 || group_size < 1 || columns < 1) {
            throw std::invalid_argument("a layer has 1 to 8 bits, and columns and groups of 1 or more");
        }
        const std::size_t rows = packed.shape(0);
        const auto width = static_cast<std::size_t>((columns * bits + 31) / 32);
        const auto groups = static_cast<std::size_t>((columns - 1) / group_size + 1);
        goldstick::expect_shape("packed", packed, {rows, width});
        goldstick::expect_shape("scale", scale, {rows, groups});
        call_.rounding = goldstick::rounding_of(activation);
        call_.packed = reinterpret_cast<const std::uint8_t*>(packed.data());
        call_.scale = reinterpret_cast<const T*>(scale.data());
        call_.zero = optional_array<float, 2>("zero", zero, kept_[0], {rows, groups});
        call_.bias = reinterpret_cast<const T*>(optional_array<Stored, 1>("bias", bias, kept_[1], {rows}));
        input_scale_ = reinterpret_cast<const T*>(optional_array<Stored, 1>("input_scale", input_scale, kept_[2], {1}));
        input_zero_ = optional_array<std::int8_t, 1>("input_zero", input_zero, kept_[3], {1});
        if ((input_scale_ != nullptr) != (call_.rounding == goldstick::Rounding::kInt8Tensor)) {
            throw std::invalid_argument("an input scale belongs to the activation 'int8-tensor', and only to it");
        }
        call_.rows = static_cast<std::int64_t>(rows);
        call_.columns = columns;
        call_.row_bytes = static_cast<std::int64_t>(width) * 4;
        call_.groups = static_cast<std::int64_t>(groups);
        call_.group_size = group_size;
        call_.bits = bits;
        call_.coding = goldstick::coding_of(table, bits, middle, unit);
        goldstick::set_global_scale(call_, global_scale, rows);
        kept_[4] = global_scale;
        if (interleaved && goldstick::uses_avx2() && goldstick::Interleaved::pays(call_)) {
            interleaved_ = std::make_unique<goldstick::Interleaved>(call_);
            call_.interleaved = interleaved_.get();
        }
    }

    std::int64_t rows() const override { return call_.rows; }
    std::int64_t columns() const override { return call_.columns; }
    bool interleaved() const override { return interleaved_ != nullptr; }

    goldstick::LinearCall<T> call(const T* x, T* y, std::int64_t tokens) const override {
        goldstick::LinearCall<T> call = call_;
        call.x = x;
        call.y = y;
        call.tokens = tokens;
        call.input_scale = input_scale_ ? goldstick::to_float(*input_scale_) : 0.0f;
        call.input_zero = input_zero_ ? static_cast<float>(*input_zero_) : 0.0f;
        return call;
    }

private:
    Array<const std::int32_t, 2> packed_;
    Array<const Stored, 2> scale_;
    nb::object kept_[5];
    std::unique_ptr<const goldstick::Interleaved> interleaved_;
    goldstick::LinearCall<T> call_{};
    const T* input_scale_;
    const std::int8_t* input_zero_;
};

template <typename T, typename Stored>
void define(nb::module_& module) {
    module.def(
        "prepare_linear",
        [](Array<const std::int32_t, 2> packed, Array<const Stored, 2> scale, nb::object zero, nb::object bias,
           nb::object input_scale, nb::object input_zero, int bits, std::int64_t columns, std::int64_t group_size,
           const std::string& activation, bool interleaved, nb::object table, int middle, float unit,
           nb::object global_scale) -> goldstick::PreparedLinear* {
            return new Prepared<T, Stored>(packed, scale, zero, bias, input_scale, input_zero, bits, columns,
                                           group_size, activation, interleaved, table, middle, unit, global_scale);
        },
        "packed"_a.noconvert(), "scale"_a.noconvert(), "zero"_a.none(), "bias"_a.none(), "input_scale"_a.none(),
        "input_zero"_a.none(), "bits"_a, "columns"_a, "group_size"_a, "activation"_a, "interleaved"_a = false,
        "table"_a.none() = nb::none(), "middle"_a = 0, "unit"_a = 1.0f, "global_scale"_a.none() = nb::none(),
        nb::rv_policy::take_ownership);
}

// y = f(x) · wᵀ + bias for dense x [tokens, columns] and y [tokens, rows] of the layer's type. The caller has checked
// them. Returns false, and does nothing, where GOLDSTICK_BACKEND names another backend.
bool run(const goldstick::PreparedLinear& layer, std::uintptr_t x, std::uintptr_t y, std::int64_t tokens, int threads) {
    if (goldstick::another_backend_is_named()) {
        return false;
    }
    nb::gil_scoped_release released;
    layer.multiply(reinterpret_cast<const void*>(x), reinterpret_cast<void*>(y), tokens, threads);
    return true;
}

}  // namespace

bool goldstick::another_backend_is_named() {
    const char* named = std::getenv("GOLDSTICK_BACKEND");
    return named != nullptr && *named != '\0' && std::string("cpu-integer") != named;
}

void define_prepared_linear(nb::module_& module) {
    nb::class_<goldstick::PreparedLinear>(module, "PreparedLinear")
        .def_prop_ro("interleaved", &goldstick::PreparedLinear::interleaved)
        .def("run", &run, "x"_a, "y"_a, "tokens"_a, "threads"_a);
    define<float, float>(module);
    define<bfloat16, std::int16_t>(module);
    define<float16, std::uint16_t>(module);
}
