// The Python face of a decoder block. Its layers were checked when they were prepared; arrays come as addresses, and the
// one caller, kernels/decoder_block.py, has checked their types, shapes and strides.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <stdexcept>

#include "decode/attention.hpp"
#include "decode/decoder_block.hpp"
#include "python/decoder_block_binding.hpp"
#include "base/floats.hpp"
#include "base/isa.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using goldstick::bfloat16;
using goldstick::float16;
using goldstick::PreparedLinear;
using Address = std::uintptr_t;

template <typename T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

class PreparedBlock {
public:
    // `qkv` is a list of layers; they stay alive as long as this does.
    PreparedBlock(nb::list qkv, const PreparedLinear& output, const PreparedLinear& gate_up,
                  const PreparedLinear& down, Address attention_norm, Address feed_norm, float attention_epsilon,
                  float feed_epsilon, std::int64_t heads, std::int64_t kv_heads, std::int64_t channels, float scaling)
        : layers_{{}, &output, &gate_up, &down},
          projections_(qkv),
          attention_norm_(attention_norm),
          feed_norm_(feed_norm),
          attention_epsilon_(attention_epsilon),
          feed_epsilon_(feed_epsilon),
          heads_(heads),
          kv_heads_(kv_heads),
          channels_(channels),
          scaling_(scaling) {
        const std::int64_t width = output.rows();
        if (kv_heads < 1 || heads < 1 || heads % kv_heads != 0 || heads / kv_heads > goldstick::kMostGrouped ||
            channels < 2 || channels % 2 != 0) {
            throw std::invalid_argument("heads have to be a multiple of kv_heads, with an even number of channels");
        }
        std::int64_t rows = 0;
        bool fit = true, alike = true;
        for (nb::handle one : qkv) {
            const auto& layer = nb::cast<const PreparedLinear&>(one);
            layers_.qkv.push_back(&layer);
            rows += layer.rows();
            fit = fit && layer.columns() == width;
            alike = alike && layer.precision() == output.precision();
        }
        if (!fit || gate_up.columns() != width || down.rows() != width ||
            rows != (heads + 2 * kv_heads) * channels || output.columns() != heads * channels ||
            gate_up.rows() != 2 * down.columns()) {
            throw std::invalid_argument("the layers of a block do not fit each other");
        }
        if (!alike || output.precision() != gate_up.precision() || output.precision() != down.precision()) {
            throw std::invalid_argument("the layers of a block compute in different types");
        }
    }

    // Returns false, and does nothing, where GOLDSTICK_BACKEND names another backend.
    bool run(Address x, Address y, std::int64_t batch, Address cos, Address sin, std::int64_t angle_stride, Address keys,
             Address values, std::int64_t capacity, std::int64_t filled, int threads) const {
        if (goldstick::another_backend_is_named()) {
            return false;
        }
        if (filled < 0 || filled >= capacity) {
            throw std::invalid_argument("there is no room for another token");
        }
        nb::gil_scoped_release released;
        const auto run = goldstick::choose(layers_.output->precision(), &PreparedBlock::run_as<float>,
                                           &PreparedBlock::run_as<bfloat16>, &PreparedBlock::run_as<float16>);
        (this->*run)(x, y, batch, cos, sin, angle_stride, keys, values, capacity, filled, std::max(threads, 1));
        return true;
    }

private:
    template <typename T>
    void run_as(Address x, Address y, std::int64_t batch, Address cos, Address sin, std::int64_t angle_stride,
                Address keys, Address values, std::int64_t capacity, std::int64_t filled, int threads) const {
        goldstick::decoder_block<T>(
            {layers_, at<const T>(x), at<T>(y), at<const T>(attention_norm_), at<const T>(feed_norm_),
             attention_epsilon_, feed_epsilon_, at<const T>(cos), at<const T>(sin), at<T>(keys), at<T>(values), batch,
             heads_, kv_heads_, channels_, angle_stride, capacity, filled, scaling_},
            threads, goldstick::uses_avx2());
    }

    goldstick::BlockLayers layers_;
    nb::list projections_;
    Address attention_norm_, feed_norm_;
    float attention_epsilon_, feed_epsilon_;
    std::int64_t heads_, kv_heads_, channels_;
    float scaling_;
};

}  // namespace

void define_decoder_block(nb::module_& module) {
    nb::class_<PreparedBlock>(module, "PreparedBlock")
        .def(nb::init<nb::list, const PreparedLinear&, const PreparedLinear&, const PreparedLinear&, Address,
                      Address, float, float, std::int64_t, std::int64_t, std::int64_t, float>(),
             nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(), "qkv"_a,
             "output"_a, "gate_up"_a, "down"_a, "attention_norm"_a, "feed_norm"_a, "attention_epsilon"_a,
             "feed_epsilon"_a, "heads"_a, "kv_heads"_a, "channels"_a, "scaling"_a)
        .def("run", &PreparedBlock::run, "x"_a, "y"_a, "batch"_a, "cos"_a, "sin"_a, "angle_stride"_a, "keys"_a,
             "values"_a, "capacity"_a, "filled"_a, "threads"_a);
}
