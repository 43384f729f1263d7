// Eight floats that are worked on together: one register with AVX2, two without, the same operations in both.
#pragma once

#include <cstdint>

namespace goldstick {

#if defined(__GNUC__)
typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));

inline __attribute__((always_inline)) const Eight& eight_at(const float* from) {
    return *reinterpret_cast<const Eight*>(from);
}
inline __attribute__((always_inline)) Eight& eight_at(float* from) { return *reinterpret_cast<Eight*>(from); }
#else
struct Eight {
    float lanes[8];
    friend Eight operator+(const Eight& a, const Eight& b) {
        Eight sum;
        for (int i = 0; i < 8; ++i) sum.lanes[i] = a.lanes[i] + b.lanes[i];
        return sum;
    }
    friend Eight operator*(const Eight& a, const Eight& b) {
        Eight product;
        for (int i = 0; i < 8; ++i) product.lanes[i] = a.lanes[i] * b.lanes[i];
        return product;
    }
    friend Eight operator*(const Eight& a, float b) {
        Eight product;
        for (int i = 0; i < 8; ++i) product.lanes[i] = a.lanes[i] * b;
        return product;
    }
    Eight& operator+=(const Eight& other) { return *this = *this + other; }
    float operator[](int lane) const { return lanes[lane]; }
};

inline const Eight& eight_at(const float* from) { return *reinterpret_cast<const Eight*>(from); }
inline Eight& eight_at(float* from) { return *reinterpret_cast<Eight*>(from); }
#endif

}  // namespace goldstick
