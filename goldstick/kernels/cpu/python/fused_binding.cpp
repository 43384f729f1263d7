// The Python face of what lies between the products. Calls are many and small, so arrays come as addresses: their
// callers, kernels/fused.py, hadamard_op.py, attention.py and rotary.py, have checked types, shapes and strides.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "decode/attention.hpp"
#include "decode/cache_numbers.hpp"
#include "base/floats.hpp"
#include "decode/fused.hpp"
#include "linear/hadamard.hpp"
#include "python/fused_binding.hpp"
#include "base/isa.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using goldstick::bfloat16;
using goldstick::choose;
using goldstick::float16;
using goldstick::precision_of;
using Address = std::uintptr_t;

template <typename T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

template <typename T>
void norm_of(Address x, Address weight, Address y, std::int64_t rows, std::int64_t columns, float epsilon,
             int threads) {
    goldstick::rms_norm<T>({at<const T>(x), at<const T>(weight), at<T>(y), rows, columns, epsilon}, threads,
                           goldstick::uses_avx2());
}

void rms_norm(Address x, Address weight, Address y, std::int64_t rows, std::int64_t columns, float epsilon,
              const std::string& precision, int threads) {
    const auto run = choose(precision_of(precision), norm_of<float>, norm_of<bfloat16>, norm_of<float16>);
    run(x, weight, y, rows, columns, epsilon, std::max(threads, 1));
}

template <typename T>
void gate_of(Address x, Address y, std::int64_t rows, std::int64_t columns, int threads) {
    goldstick::gated_silu<T>({at<const T>(x), at<T>(y), rows, columns}, threads, goldstick::uses_avx2());
}

void gated_silu(Address x, Address y, std::int64_t rows, std::int64_t columns, const std::string& precision,
                int threads) {
    const auto run = choose(precision_of(precision), gate_of<float>, gate_of<bfloat16>, gate_of<float16>);
    run(x, y, rows, columns, std::max(threads, 1));
}

template <typename T>
void hadamard_of(Address x, Address y, std::int64_t blocks, std::int64_t size, int threads) {
    goldstick::hadamard<T>({at<const T>(x), at<T>(y), blocks, size}, threads, goldstick::chosen_isa());
}

void hadamard(Address x, Address y, std::int64_t blocks, std::int64_t size, const std::string& precision, int threads) {
    if (size < goldstick::kSmallestTransform || size > goldstick::kLargestTransform || (size & (size - 1)) != 0) {
        throw std::invalid_argument("size is " + std::to_string(size) + ", expected a power of two from 8 to 32768");
    }
    const auto run = choose(precision_of(precision), hadamard_of<float>, hadamard_of<bfloat16>, hadamard_of<float16>);
    run(x, y, blocks, size, std::max(threads, 1));
}

void check_heads(std::int64_t heads, std::int64_t kv_heads, std::int64_t channels) {
    if (kv_heads < 1 || heads < 1 || heads % kv_heads != 0 || heads / kv_heads > goldstick::kMostGrouped) {
        throw std::invalid_argument("heads have to be a multiple of kv_heads, up to 64 times as many");
    }
    if (channels < 2 || channels % 2 != 0) {
        throw std::invalid_argument("a head has an even number of channels");
    }
}

template <typename T>
void rotate_of(Address x, Address cos, Address sin, Address q, Address keys, Address values, std::int64_t batch,
               std::int64_t heads, std::int64_t kv_heads, std::int64_t channels, std::int64_t angle_stride,
               std::int64_t batch_stride, std::int64_t head_stride) {
    check_heads(heads, kv_heads, channels);
    goldstick::rotate<T>({at<const T>(x), at<const T>(cos), at<const T>(sin), at<T>(q), at<T>(keys), at<T>(values), batch,
                          heads, kv_heads, channels, angle_stride, batch_stride, head_stride},
                         goldstick::uses_avx2());
}

void rotate(Address x, Address cos, Address sin, Address q, Address keys, Address values, std::int64_t batch,
            std::int64_t heads, std::int64_t kv_heads, std::int64_t channels, std::int64_t angle_stride,
            std::int64_t batch_stride, std::int64_t head_stride, const std::string& precision) {
    const auto run = choose(precision_of(precision), rotate_of<float>, rotate_of<bfloat16>, rotate_of<float16>);
    run(x, cos, sin, q, keys, values, batch, heads, kv_heads, channels, angle_stride, batch_stride, head_stride);
}

template <typename T>
void attend_token_of(Address x, Address cos, Address sin, Address q, Address out, Address keys, Address values,
                     std::int64_t batch, std::int64_t heads, std::int64_t kv_heads, std::int64_t channels,
                     std::int64_t angle_stride, std::int64_t capacity, std::int64_t filled, float scaling, int threads) {
    check_heads(heads, kv_heads, channels);
    if (filled < 0 || filled >= capacity) {
        throw std::invalid_argument("there is no room for another token");
    }
    const bool use_avx2 = goldstick::uses_avx2();
    nb::gil_scoped_release released;
    const auto floats = [&](Address data) {
        return goldstick::Cached{goldstick::CacheCoding::none, at<void>(data), nullptr, nullptr, capacity, 0, nullptr, 0, 0};
    };
    goldstick::attend_token<T>({at<const T>(x), at<const T>(cos), at<const T>(sin), at<T>(q), at<T>(out), nullptr,
                                floats(keys), floats(values), batch, heads, kv_heads, channels, angle_stride, filled, 0, 0,
                                scaling},
                               std::max(threads, 1), use_avx2);
}

void attend_token(Address x, Address cos, Address sin, Address q, Address out, Address keys, Address values,
                  std::int64_t batch, std::int64_t heads, std::int64_t kv_heads, std::int64_t channels,
                  std::int64_t angle_stride, std::int64_t capacity, std::int64_t filled, float scaling,
                  const std::string& precision, int threads) {
    const auto run = choose(precision_of(precision), attend_token_of<float>, attend_token_of<bfloat16>,
                            attend_token_of<float16>);
    run(x, cos, sin, q, out, keys, values, batch, heads, kv_heads, channels, angle_stride, capacity, filled, scaling,
        threads);
}

void check_turned(std::int64_t turned, std::int64_t channels) {
    if (turned != 0 && ((turned & (turned - 1)) != 0 || turned < 1 || channels % turned != 0)) {
        throw std::invalid_argument("channels are turned together by a power of two that divides them");
    }
}

// Tokens, which CacheCoding they have, and of keys and values each: address, address of the tokens' scales (or 0),
// strides of batch and head of both.
using Strides = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
using Given = std::tuple<std::int64_t, int, Address, Address, Strides, Address, Address, Strides>;

goldstick::Run run_of(Address data, Address scale, const Strides& strides, int coding) {
    if (coding < 0 || coding > static_cast<int>(goldstick::CacheCoding::int4)) {
        throw std::invalid_argument("there is no coding of number " + std::to_string(coding));
    }
    return {at<const void>(data),  at<const float>(scale), std::get<0>(strides), std::get<1>(strides),
            std::get<2>(strides), std::get<3>(strides),   static_cast<goldstick::CacheCoding>(coding)};
}

template <typename T>
void attend_of(Address q, Address out, const std::vector<Given>& runs, Address key_scale, Address value_scale,
               std::int64_t batch, std::int64_t heads, std::int64_t kv_heads, std::int64_t channels,
               std::int64_t q_stride, std::int64_t turned, float scaling, int threads) {
    check_heads(heads, kv_heads, channels);
    check_turned(turned, channels);
    if (runs.size() > goldstick::kRuns) {
        throw std::invalid_argument("a cache has up to three runs of tokens");
    }
    goldstick::AttentionCall<T> call{};
    std::int64_t total = 0;
    for (std::size_t r = 0; r < runs.size(); ++r) {
        const auto& [tokens, coding, keys, key_token, key_strides, values, value_token, value_strides] = runs[r];
        call.tokens[r] = tokens;
        call.keys[r] = run_of(keys, key_token, key_strides, coding);
        call.values[r] = run_of(values, value_token, value_strides, coding);
        total += tokens;
    }
    if (total < 1) {
        throw std::invalid_argument("there is no token to attend to");
    }
    call.q = at<const T>(q);
    call.out = at<T>(out);
    call.key_scale = at<const float>(key_scale);
    call.value_scale = at<const float>(value_scale);
    call.batch = batch;
    call.heads = heads;
    call.kv_heads = kv_heads;
    call.channels = channels;
    call.q_stride = q_stride;
    call.turned = turned;
    call.scaling = scaling;
    const bool use_avx2 = goldstick::uses_avx2();
    nb::gil_scoped_release released;
    goldstick::attend(call, std::max(threads, 1), use_avx2);
}

void attend(Address q, Address out, const std::vector<Given>& runs, Address key_scale, Address value_scale,
            std::int64_t batch, std::int64_t heads, std::int64_t kv_heads, std::int64_t channels,
            std::int64_t q_stride, std::int64_t turned, float scaling, const std::string& precision, int threads) {
    const auto run = choose(precision_of(precision), attend_of<float>, attend_of<bfloat16>, attend_of<float16>);
    run(q, out, runs, key_scale, value_scale, batch, heads, kv_heads, channels, q_stride, turned, scaling, threads);
}

template <typename T>
void write_numbers_of(const goldstick::Run& run, Address scale, Address out, std::int64_t batch, std::int64_t kv_heads,
                      std::int64_t tokens, std::int64_t channels, std::int64_t turned, int threads) {
    const bool use_avx2 = goldstick::uses_avx2();
    nb::gil_scoped_release released;
    goldstick::write_numbers<T>({run, at<const float>(scale), at<T>(out), batch, kv_heads, tokens, channels, turned},
                                std::max(threads, 1), use_avx2);
}

void cache_numbers(int coding, Address codes, Address token_scale, const Strides& strides, Address scale, Address out,
                   std::int64_t batch, std::int64_t kv_heads, std::int64_t tokens, std::int64_t channels,
                   std::int64_t turned, const std::string& precision, int threads) {
    const goldstick::Run run = run_of(codes, token_scale, strides, coding);
    if (run.coding == goldstick::CacheCoding::none || (token_scale == 0 && scale == 0)) {
        throw std::invalid_argument("codes have scales");
    }
    check_turned(turned, channels);
    const auto write = choose(precision_of(precision), write_numbers_of<float>, write_numbers_of<bfloat16>,
                              write_numbers_of<float16>);
    write(run, scale, out, batch, kv_heads, tokens, channels, turned, threads);
}

}  // namespace

void define_fused(nb::module_& module) {
    module.def("rms_norm", &rms_norm, "x"_a, "weight"_a, "y"_a, "rows"_a, "columns"_a, "epsilon"_a, "precision"_a,
               "threads"_a);
    module.def("gated_silu", &gated_silu, "x"_a, "y"_a, "rows"_a, "columns"_a, "precision"_a, "threads"_a);
    module.def("hadamard", &hadamard, "x"_a, "y"_a, "blocks"_a, "size"_a, "precision"_a, "threads"_a);
    module.def("rotate", &rotate, "x"_a, "cos"_a, "sin"_a, "q"_a, "keys"_a, "values"_a, "batch"_a, "heads"_a,
               "kv_heads"_a, "channels"_a, "angle_stride"_a, "batch_stride"_a, "head_stride"_a, "precision"_a);
    module.def("attend_token", &attend_token, "x"_a, "cos"_a, "sin"_a, "q"_a, "out"_a, "keys"_a, "values"_a, "batch"_a,
               "heads"_a, "kv_heads"_a, "channels"_a, "angle_stride"_a, "capacity"_a, "filled"_a, "scaling"_a,
               "precision"_a, "threads"_a);
    module.def("cache_numbers", &cache_numbers, "coding"_a, "codes"_a, "token_scale"_a, "strides"_a, "scale"_a, "out"_a,
               "batch"_a, "kv_heads"_a, "tokens"_a, "channels"_a, "turned"_a, "precision"_a, "threads"_a);
    module.def("attend", &attend, "q"_a, "out"_a, "runs"_a, "key_scale"_a, "value_scale"_a, "batch"_a, "heads"_a,
               "kv_heads"_a, "channels"_a, "q_stride"_a, "turned"_a, "scaling"_a, "precision"_a, "threads"_a);
}
