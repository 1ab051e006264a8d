// The kernels for avx512. Flags: native/isa.cmake.
#include "cpu/tables.h"

#if defined(__x86_64__)
#define RB_NS avx512
#define RB_VEC "cpu/vec_avx512.h"
#include "cpu/kernels.h"

const rb_kernel* rb::avx512_table() { return rb::avx512::kTable; }
#else
const rb_kernel* rb::avx512_table() { return nullptr; }
#endif
