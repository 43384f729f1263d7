#include "linear/coding.hpp"

#include <algorithm>
#include <stdexcept>

namespace goldstick {

Coding::Coding(int bits) : middle(1 << (bits - 1)), width(bits) {}

Coding::Coding(int bits, const std::uint8_t* table, std::int32_t middle, float unit)
    : is_table(true), middle(middle), unit(unit) {
    if (bits < 1 || bits > 7) {
        throw std::invalid_argument("codes of 1 to 7 bits have a table of integers");
    }
    std::copy_n(table, 1 << bits, entries);
    for (unsigned largest = *std::max_element(table, table + (1 << bits)); largest > 0; largest >>= 1) {
        ++width;
    }
}

}  // namespace goldstick
