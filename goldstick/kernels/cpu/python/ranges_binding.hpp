// Adds `search_ranges` to the module.
#pragma once

#include <nanobind/nanobind.h>

void define_search_ranges(nanobind::module_& module);
