// The kernels for avx2. Flags: native/isa.cmake.
#include "cpu/tables.h"

#if defined(__x86_64__)
#define RB_NS avx2
#define RB_VEC "cpu/vec_avx2.h"
#include "cpu/kernels.h"

const rb_kernel* rb::avx2_table() { return rb::avx2::kTable; }
#else
const rb_kernel* rb::avx2_table() { return nullptr; }
#endif
