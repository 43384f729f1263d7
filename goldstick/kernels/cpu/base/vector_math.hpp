// e^x from operations that vectorize, the same with any instructions.
#pragma once

#include <limits>

#include "base/floats.hpp"
#include "base/inline.hpp"

namespace goldstick {

// e^x to about one unit in the last place; 0 below −87, where e^x is no normal number, and infinite from 88.3 on.
GOLDSTICK_INLINE float exponential(float x) {
    constexpr float kMagic = 12582912.0f;  // adding 1.5 · 2^23 leaves no room for a fraction
    constexpr float kLeast = -87.0f, kMost = 88.3f;
    const float bounded = x < kLeast ? kLeast : (x > kMost ? kMost : x);
    const float shifted = bounded * 1.44269504f + kMagic;
    const float n = shifted - kMagic;  // round(x / ln 2)
    const float r = (bounded - n * 0.693359375f) - n * -2.12194440e-4f;
    // Minimax over |r| ≤ ln 2 / 2 (the coefficients of Cephes' expf).
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    const float fraction = p * (r * r) + r + 1.0f;
    const float power = float_of((bits_of(shifted) + 127u) << 23);  // the low bits of `shifted` are n
    const float result = x > kMost ? std::numeric_limits<float>::infinity() : fraction * power;
    return x < kLeast ? 0.0f : result;  // NaN is no number up to here, and stays
}

}  // namespace goldstick
