#pragma once

#include <nanobind/nanobind.h>

void define_convolution(nanobind::module_& module);
