// Adds `quantized_linear` and `read_words` to the module.
#pragma once

#include <nanobind/nanobind.h>

void define_quantized_linear(nanobind::module_& module);
