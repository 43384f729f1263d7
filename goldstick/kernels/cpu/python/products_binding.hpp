// Adds `add_products` to the module.
#pragma once

#include <nanobind/nanobind.h>

void define_add_products(nanobind::module_& module);
