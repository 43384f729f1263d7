#pragma once

#include <nanobind/nanobind.h>

// Adds PreparedBlock, a decoder block for one token a sequence, to the module.
void define_decoder_block(nanobind::module_& module);
