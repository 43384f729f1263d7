// Which instructions the kernels use.
#pragma once

#include <string>

namespace goldstick {

// "avx2" or "scalar": what the processor offers, unless GOLDSTICK_ISA asks for less. Throws where it asks for what is
// unknown or not there.
std::string chosen_isa();

}  // namespace goldstick
