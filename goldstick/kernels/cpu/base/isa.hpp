// Which instructions the kernels use.
#pragma once

#include <string>

namespace goldstick {

// Each has what those before it have. kAvx512 stands for AVX-512 F, BW, DQ, VL and VNNI, kAmx for tiles of 8-bit integers;
// products with packed weights alone use more than AVX2.
enum class Isa { kScalar, kAvx2, kAvx512, kAmx };

// The best that this processor offers.
Isa best_isa();

// The best, unless GOLDSTICK_ISA asks for less. Throws where it asks for what is unknown or not there.
Isa chosen_isa();

inline bool uses_avx2() { return chosen_isa() != Isa::kScalar; }

// "scalar", "avx2", "avx512" or "amx", and back; what is unknown, or not there, throws, and `asker` is who is told of.
std::string name_of(Isa isa);
Isa isa_named(const std::string& name, const std::string& asker);

}  // namespace goldstick
