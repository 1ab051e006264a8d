// The kernels for neon. Flags: native/isa.cmake.
#include "cpu/probe_tables.h"
#include "cpu/tables.h"

#if defined(__aarch64__)
#define RB_NS neon
#define RB_VEC "cpu/vec_neon.h"
#include "cpu/kernels.h"
#include "cpu/probe.h"

const rb_kernel* rb::neon_table() { return rb::neon::kTable; }
const rb::Probes* rb::neon_probes() { return &rb::neon::kProbes; }
#else
const rb_kernel* rb::neon_table() { return nullptr; }
const rb::Probes* rb::neon_probes() { return nullptr; }
#endif
