// Defines the kernels of float codes in a module.
#pragma once

#include <nanobind/nanobind.h>

void define_float_codes(nanobind::module_& module);
