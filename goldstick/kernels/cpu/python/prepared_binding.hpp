// Adds `prepare_linear` to the module.
#pragma once

#include <nanobind/nanobind.h>

void define_prepared_linear(nanobind::module_& module);
