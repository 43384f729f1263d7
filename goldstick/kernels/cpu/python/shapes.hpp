// Shapes of arrays that come from Python, checked before any pointer is followed.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace goldstick {

// Refuse an array of another shape than `expected`, by its name.
template <typename Given>
void expect_shape(const char* name, const Given& given, std::initializer_list<std::size_t> expected) {
    std::string found_text, expected_text;
    bool same = given.ndim() == expected.size();
    std::size_t axis = 0;
    for (const std::size_t size : expected) {
        same = same && given.shape(axis) == size;
        found_text += (axis ? ", " : "") + std::to_string(given.shape(axis));
        expected_text += (axis ? ", " : "") + std::to_string(size);
        ++axis;
    }
    if (!same) {
        throw std::invalid_argument(std::string(name) + " has the shape [" + found_text + "], expected [" +
                                    expected_text + "]");
    }
}

}  // namespace goldstick
