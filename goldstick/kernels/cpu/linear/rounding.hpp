// A token's activations in pieces.
#pragma once

#include <cstdint>

#include "linear/linear.hpp"

namespace goldstick {

// Write the chunks first … last of token `token`; the first opens a span.
template <typename T>
void quantize_chunks(const LinearCall<T>& call, const Columns& columns, const Activations& activations, std::int64_t token,
                     std::int64_t first, std::int64_t last, Isa isa);

}  // namespace goldstick
