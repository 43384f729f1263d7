// A quantized layer whose arrays were checked once.
#pragma once

#include <cstdint>

#include "base/floats.hpp"
#include "linear/linear.hpp"

namespace goldstick {

class PreparedLinear {
public:
    virtual ~PreparedLinear() = default;
    virtual std::int64_t rows() const = 0;
    virtual std::int64_t columns() const = 0;
    virtual Precision precision() const = 0;  // of inputs, outputs and scales

    virtual bool interleaved() const = 0;  // whether it holds a copy of the weight, prepacked for this processor

    // y = f(x) · wᵀ + bias for dense x [tokens, columns] and y [tokens, rows] of the layer's type.
    virtual void multiply(const void* x, void* y, std::int64_t tokens, int threads) const = 0;
};

// One of a known type.
template <typename T>
class PreparedLinearOf : public PreparedLinear {
public:
    Precision precision() const final { return kPrecision<T>; }
    virtual LinearCall<T> call(const T* x, T* y, std::int64_t tokens) const = 0;

    void multiply(const void* x, void* y, std::int64_t tokens, int threads) const final {
        const LinearCall<T> found = call(static_cast<const T*>(x), static_cast<T*>(y), tokens);
        quantized_linear(found, std::max(threads, 1), chosen_isa());
    }
};

// GOLDSTICK_BACKEND names another way to run layers.
bool another_backend_is_named();

}  // namespace goldstick
