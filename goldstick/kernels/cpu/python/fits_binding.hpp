// Adds `fit_blocks` to the module.
#pragma once

#include <nanobind/nanobind.h>

void define_fit_blocks(nanobind::module_& module);
