// Adds the norm, the gated activation and the attention of single tokens to the module.
#pragma once

#include <nanobind/nanobind.h>

void define_fused(nanobind::module_& module);
