// The kernels for scalar. Flags: native/isa.cmake.
#include "cpu/probe_tables.h"
#include "cpu/tables.h"

#define RB_ONE_LANE
#define RB_NS scalar
#define RB_VEC "cpu/vec_scalar.h"
#include "cpu/kernels.h"
#include "cpu/probe.h"

const rb_kernel* rb::scalar_table() { return rb::scalar::kTable; }
const rb::Probes* rb::scalar_probes() { return &rb::scalar::kProbes; }
