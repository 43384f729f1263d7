#pragma once

#include <nanobind/nanobind.h>

void define_unchanged(nanobind::module_& module);
