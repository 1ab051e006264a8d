// Kernels over images for neon. Flags: native/isa.cmake.
#if defined(__aarch64__)
#define RB_NS neon
#define RB_VEC "cpu/vec_neon.h"
#include "cpu/image/all.h"
#endif
