// The Python face of a decoder block. Its layers were checked when they were prepared; arrays come as addresses, and the
// one caller, kernels/decoder_block.py, has checked their types, shapes and strides.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

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

// One token of each sequence, and the cache of one block: of all sequences, or of each.
struct Token {
    Address x, cos, sin;
    std::int64_t batch, angle_stride;
};
// As goldstick::Cached, and for both: tokens that are there, those before them, and channels turned together.
using Side = std::tuple<int, Address, Address, Address, std::int64_t, std::int64_t, Address, std::int64_t, std::int64_t>;
using Filled = std::tuple<Side, Side, std::int64_t, std::int64_t, std::int64_t>;

goldstick::Cached cached(const Side& side) {
    const auto& [coding, data, token_scale, scale, capacity, scale_capacity, before, batch_stride, head_stride] = side;
    return {static_cast<goldstick::CacheCoding>(coding), at<void>(data), at<float>(token_scale), at<const float>(scale),
            capacity, scale_capacity, at<const void>(before), batch_stride, head_stride};
}

// Whether a cache is what C++ can write a token to: of codes a scale for each channel, or room for those of the token.
bool has_room(const Side& side, std::int64_t filled, std::int64_t before) {
    const auto& [coding, data, token_scale, scale, capacity, scale_capacity, first, batch_stride, head_stride] = side;
    if (coding < 0 || coding > static_cast<int>(goldstick::CacheCoding::int4) || filled < 0 || filled >= capacity) {
        return false;
    }
    if (before < 0 || (before > 0 && first == 0)) {
        return false;
    }
    return coding == 0 || (token_scale != 0 ? filled < scale_capacity : scale != 0);
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

    goldstick::Precision precision() const { return layers_.output->precision(); }
    std::int64_t width() const { return layers_.output->rows(); }

    template <typename T>
    goldstick::BlockCall<T> call(const Token& token, const std::vector<Filled>& caches) const {
        std::vector<goldstick::Place> places;
        const auto sequences = token.batch / static_cast<std::int64_t>(caches.size());
        for (const auto& [keys, values, filled, before, turned] : caches) {
            const auto first = static_cast<std::int64_t>(places.size()) * sequences;
            places.push_back({cached(keys), cached(values), filled, before, turned, first, sequences});
        }
        return {layers_, nullptr, nullptr, at<const T>(attention_norm_), at<const T>(feed_norm_), attention_epsilon_,
                feed_epsilon_, at<const T>(token.cos), at<const T>(token.sin), std::move(places),
                token.batch, heads_, kv_heads_, channels_, token.angle_stride, scaling_};
    }

private:
    goldstick::BlockLayers layers_;
    nb::list projections_;
    Address attention_norm_, feed_norm_;
    float attention_epsilon_, feed_epsilon_;
    std::int64_t heads_, kv_heads_, channels_;
    float scaling_;
};

template <typename T>
void run_as(const std::vector<const PreparedBlock*>& blocks, const Token& token, const std::vector<std::vector<Filled>>& caches,
            Address y,
            int threads) {
    std::vector<goldstick::BlockCall<T>> calls;
    const T* x = at<const T>(token.x);
    T* to = at<T>(y);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        calls.push_back(blocks[i]->call<T>(token, caches[i]));
        calls.back().x = x;
        calls.back().y = to;
        x = to;
        to += token.batch * blocks[i]->width();
    }
    goldstick::decoder_blocks<T>(calls, threads, goldstick::uses_avx2());
}

// Blocks that follow each other; y is [blocks, batch, width], and `caches` has a list for each, with a tuple for
// all sequences or one for each. Returns false, and does nothing, where GOLDSTICK_BACKEND names another backend.
bool run(nb::list prepared, Address x, Address y, std::int64_t batch, Address cos, Address sin, std::int64_t angle_stride,
         nb::list caches, int threads) {
    if (goldstick::another_backend_is_named()) {
        return false;
    }
    std::vector<const PreparedBlock*> blocks;
    std::vector<std::vector<Filled>> states;
    for (nb::handle one : prepared) {
        blocks.push_back(&nb::cast<const PreparedBlock&>(one));
        if (blocks.back()->precision() != blocks[0]->precision() || blocks.back()->width() != blocks[0]->width()) {
            throw std::invalid_argument("blocks that follow each other have one width and compute in one type");
        }
    }
    for (nb::handle one : caches) {
        auto& places = states.emplace_back();
        for (nb::handle place : nb::cast<nb::list>(one)) {
            const auto& [keys, values, filled, before, turned] = places.emplace_back(nb::cast<Filled>(place));
            if (!has_room(keys, filled, before) || !has_room(values, filled, before)) {
                throw std::invalid_argument("there is no room for another token");
            }
            if (std::get<0>(keys) != std::get<0>(values) || turned < 0 || (turned & (turned - 1)) != 0) {
                throw std::invalid_argument("keys and values of a cache are stored alike");
            }
        }
        if (places.size() != 1 && static_cast<std::int64_t>(places.size()) != batch) {
            throw std::invalid_argument("a block has one cache for all sequences, or one for each");
        }
    }
    if (blocks.empty() || states.size() != blocks.size()) {
        throw std::invalid_argument("every block has a cache");
    }
    nb::gil_scoped_release released;
    const auto run = goldstick::choose(blocks[0]->precision(), &run_as<float>, &run_as<bfloat16>, &run_as<float16>);
    run(blocks, {x, cos, sin, batch, angle_stride}, states, y, std::max(threads, 1));
    return true;
}

}  // namespace

void define_decoder_block(nb::module_& module) {
    nb::class_<PreparedBlock>(module, "PreparedBlock")
        .def(nb::init<nb::list, const PreparedLinear&, const PreparedLinear&, const PreparedLinear&, Address,
                      Address, float, float, std::int64_t, std::int64_t, std::int64_t, float>(),
             nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(), "qkv"_a,
             "output"_a, "gate_up"_a, "down"_a, "attention_norm"_a, "feed_norm"_a, "attention_epsilon"_a,
             "feed_epsilon"_a, "heads"_a, "kv_heads"_a, "channels"_a, "scaling"_a);
    module.def("run_blocks", &run, "blocks"_a, "x"_a, "y"_a, "batch"_a, "cos"_a, "sin"_a, "angle_stride"_a, "caches"_a,
               "threads"_a);
}
