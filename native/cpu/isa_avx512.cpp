// The kernels for avx512. Flags: native/isa.cmake.
#include "cpu/probe_tables.h"
#include "cpu/tables.h"

#if defined(__x86_64__)
#define RB_NS avx512
#define RB_VEC "cpu/vec_avx512.h"
#include "cpu/kernels.h"
#include "cpu/probe.h"

const rb_kernel* rb::avx512_table() { return rb::avx512::kTable; }
const rb::Probes* rb::avx512_probes() { return &rb::avx512::kProbes; }
#else
const rb_kernel* rb::avx512_table() { return nullptr; }
const rb::Probes* rb::avx512_probes() { return nullptr; }
#endif
