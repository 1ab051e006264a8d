// The kernels for neon. Flags: native/isa.cmake.
#include "cpu/tables.h"

#if defined(__aarch64__)
#define RB_NS neon
#define RB_VEC "cpu/vec_neon.h"
#include "cpu/kernels.h"

const rb_kernel* rb::neon_table() { return rb::neon::kTable; }
#else
const rb_kernel* rb::neon_table() { return nullptr; }
#endif
