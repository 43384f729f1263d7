#include "isa.hpp"

#include <cstdlib>
#include <stdexcept>

#include "dequantize.hpp"

namespace goldstick {

std::string chosen_isa() {
    const std::string best = has_avx2() ? "avx2" : "scalar";
    const char* asked = std::getenv("GOLDSTICK_ISA");
    if (asked == nullptr || *asked == '\0') {
        return best;
    }
    const std::string wanted = asked;
    if (wanted != "avx2" && wanted != "scalar") {
        throw std::invalid_argument("GOLDSTICK_ISA is '" + wanted + "'; it can be 'avx2' or 'scalar'");
    }
    if (wanted == "avx2" && best != "avx2") {
        throw std::invalid_argument("GOLDSTICK_ISA asks for avx2, which this processor does not have");
    }
    return wanted;
}

}  // namespace goldstick
