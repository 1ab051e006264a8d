// Kernels over images for scalar. Flags: native/isa.cmake.
#define RB_ONE_LANE
#define RB_NS scalar
#define RB_VEC "cpu/vec_scalar.h"
#include "cpu/image/all.h"
