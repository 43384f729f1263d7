// The integers that codes stand for: here, and in codes_avx2.hpp and avx512.hpp for vectors, is where one becomes the other.
#pragma once

#include <cstdint>

namespace goldstick {

// What a code is: u itself, less 2^(bits − 1) where a weight has no zeros; or an entry of a table of bytes, less `middle`,
// in units of `unit`. So a small float is an integer as well: FP4 (E2M1) is 0 … 24, less 12, times a half.
class Coding {
public:
    Coding() = default;  // of no bits
    explicit Coding(int bits);
    Coding(int bits, const std::uint8_t* table, std::int32_t middle, float unit);  // [2^bits]

    // The integer of a code.
    std::uint8_t operator[](unsigned code) const { return is_table ? entries[code] : static_cast<std::uint8_t>(code); }

    bool is_table = false;
    std::int32_t middle = 0;  // the integer that stands for 0
    int width = 0;            // bits of the largest integer
    float unit = 1.0f;        // what sums are multiplied by
    alignas(16) std::uint8_t entries[128] = {};
};

}  // namespace goldstick
