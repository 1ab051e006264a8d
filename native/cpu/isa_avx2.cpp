// The kernels for avx2. Flags: native/isa.cmake.
#include "cpu/probe_tables.h"
#include "cpu/tables.h"

#if defined(__x86_64__)
#define RB_NS avx2
#define RB_VEC "cpu/vec_avx2.h"
#include "cpu/kernels.h"
#include "cpu/probe.h"

const rb_kernel* rb::avx2_table() { return rb::avx2::kTable; }
const rb::Probes* rb::avx2_probes() { return &rb::avx2::kProbes; }
#else
const rb_kernel* rb::avx2_table() { return nullptr; }
const rb::Probes* rb::avx2_probes() { return nullptr; }
#endif
