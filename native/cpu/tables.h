// tables.h: the kernel table of each instruction set; NULL where the build's target does not have it.
#pragma once
#include "rebar.h"

namespace rb {
const rb_kernel* scalar_table();
const rb_kernel* avx2_table();
const rb_kernel* avx512_table();
const rb_kernel* neon_table();
}  // namespace rb
