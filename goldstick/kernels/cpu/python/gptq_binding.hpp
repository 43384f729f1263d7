// Adds `gptq_block` to the module.
#pragma once

#include <nanobind/nanobind.h>

void define_gptq_block(nanobind::module_& module);
