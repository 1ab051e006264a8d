// probe_tables.h: loops that do one thing only, to learn what this machine can give; a table per instruction set.
#pragma once
#include "rebar.h"

namespace rb {

// What a probe works on. The launch's arguments stand first: the pool's pointer to them is a pointer to the whole.
struct Probe {
  rb_args args;         // unused
  int32_t tasks;        // one a thread
  const uint8_t* data;  // read probes: task t reads slice bytes from t * slice on, `rounds` times
  int64_t slice;        // a multiple of kProbeBlock
  int64_t rounds;
};
constexpr int64_t kProbeBlock = 2048;

struct Probes {
  rb_kernel read;                          // as fast as plain loads go
  rb_kernel read_ahead;                    // the same with prefetches, which help in memory and hinder in caches
  rb_kernel dot;                           // byte dot products, `rounds` times dot_operations
  rb_kernel fma;                           // f32 multiply-adds, `rounds` times fma_operations
  int32_t dot_operations, fma_operations;  // a multiply-add counts two
};
const Probes* scalar_probes();
const Probes* avx2_probes();
const Probes* avx512_probes();
const Probes* neon_probes();

}  // namespace rb
