// How the codes of a block of columns lie in its bytes.
#pragma once

#include <cstdint>

namespace goldstick {

enum class Shape {
    kNibbles,         // 64 codes of 4 bits in 32 bytes
    kHalfNibbles,     // 32 codes of 4 bits in 16 bytes, for groups as short as that
    kQuarterNibbles,  // 16 in 8 bytes, likewise
    kBytes,           // 32 codes of 8 bits in 32 bytes; codes of other widths are widened to their integers first
    kHalfBytes,       // 16 in 16 bytes, for groups as short as that
    // Prepacked alone, and put together to bytes as they are read: words of four low bits first, then one of high bits.
    kSixes,  // 16 codes of 6 bits in 12 bytes
    kFives,  // 32 codes of 5 bits in 20 bytes
    kPairs,  // 16 codes of 2 bits in 4 bytes
};

constexpr bool in_nibbles(Shape shape) {
    return shape == Shape::kNibbles || shape == Shape::kHalfNibbles || shape == Shape::kQuarterNibbles;
}

constexpr bool is_split(Shape shape) {
    return shape == Shape::kSixes || shape == Shape::kFives || shape == Shape::kPairs;
}

// Lanes of 32 bits of a block, once it is put together.
constexpr int lanes_of(Shape shape) {
    switch (shape) {
        case Shape::kQuarterNibbles: return 2;
        case Shape::kHalfNibbles:
        case Shape::kHalfBytes:
        case Shape::kSixes:
        case Shape::kPairs: return 4;
        default: return 8;
    }
}

// Words of 32 bits that it is stored in.
constexpr int words_of(Shape shape) {
    return shape == Shape::kSixes ? 3 : shape == Shape::kFives ? 5 : shape == Shape::kPairs ? 1 : lanes_of(shape);
}

// Codes of a lane.
constexpr int lane_codes_of(Shape shape) { return in_nibbles(shape) ? 8 : 4; }

// Where the four codes of lane `d` lie in the words of a split block: bits `shift` and above of each byte of word `word`.
struct Part {
    int word, shift, mask;
};
constexpr Part low_bits(Shape shape, int d) {
    return shape == Shape::kPairs ? Part{0, 2 * d, 3} : Part{d / 2, d % 2 * 4, 15};
}
constexpr Part high_bits(Shape shape, int d) {  // which go above four low ones
    return shape == Shape::kSixes ? Part{2, 2 * d, 3} : Part{4, d, 1};
}

}  // namespace goldstick
