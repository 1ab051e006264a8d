// Kernels over images for avx2. Flags: native/isa.cmake.
#if defined(__x86_64__)
#define RB_NS avx2
#define RB_VEC "cpu/vec_avx2.h"
#include "cpu/image/all.h"
#endif
