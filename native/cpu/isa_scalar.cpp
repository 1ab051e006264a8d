// The kernels for scalar. Flags: native/isa.cmake.
#include "cpu/tables.h"

#define RB_ONE_LANE
#define RB_NS scalar
#define RB_VEC "cpu/vec_scalar.h"
#include "cpu/kernels.h"

const rb_kernel* rb::scalar_table() { return rb::scalar::kTable; }
