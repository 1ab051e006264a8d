// probe.h: what this machine gives, measured on the project's own pool: reading, arithmetic, launches.
//
// The law: each call is one timed launch (or a stretch of them); repeating, choosing sizes and making sense of the seconds is the
// caller's business (hal/measure.py). All threads take part or the seconds say so: nothing is estimated.
#pragma once
#include <cstdint>

#include "pool.h"

namespace rb {

enum class Arithmetic { kDot, kFma };

struct Work {
  double seconds;
  int64_t operations;  // of all threads; a multiply-add counts two
};

// Seconds in which the first `threads` threads read `nbytes` bytes `rounds` times, each its own slice again and again.
// nbytes is a multiple of threads * kProbeBlock. Throws std::invalid_argument for a missing instruction set and odd sizes.
double probe_read(Pool& pool, int32_t isa, const void* data, int64_t nbytes, int threads, int64_t rounds, bool ahead);
Work probe_arithmetic(Pool& pool, int32_t isa, Arithmetic kind, int threads, int64_t rounds);
// Seconds of `count` launches, one after another, of as many empty tasks as the pool has threads.
double probe_launches(Pool& pool, int64_t count);
// Seconds of one launch whose tasks wait for each other: until every thread of the pool has been at work. At most about 10 ms,
// should another process hold a core.
double probe_meeting(Pool& pool);

}  // namespace rb
