#include "probe.h"

#include <atomic>
#include <chrono>
#include <stdexcept>

#include "cpu/probe_tables.h"

namespace rb {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

const Probes& probes(int32_t isa) {
  const Probes* found = nullptr;
  if (rb_kernels(isa) != nullptr) {
    if (isa == RB_ISA_SCALAR) found = scalar_probes();
    if (isa == RB_ISA_AVX2) found = avx2_probes();
    if (isa == RB_ISA_AVX512) found = avx512_probes();
    if (isa == RB_ISA_NEON) found = neon_probes();
  }
  if (found == nullptr) throw std::invalid_argument("this machine or build lacks the instruction set");
  return *found;
}

double run_timed(Pool& pool, const rb_kernel& kernel, const Probe& probe) {
  const rb_step step{};
  const auto lock = pool.lock();
  const auto begin = Clock::now();
  pool.run({&kernel, &probe.args, &step});
  return since(begin);
}

void check(const Pool& pool, int threads, int64_t rounds) {
  if (threads < 1 || threads > pool.threads() || rounds < 1)
    throw std::invalid_argument("a probe takes 1 to the pool's threads, and one round or more");
}

int64_t tasks_of(const rb_args* args, const rb_step*) { return reinterpret_cast<const Probe*>(args)->tasks; }
size_t no_scratch(const rb_args*, int32_t) { return 0; }
void nothing(const rb_args*, const rb_step*, int64_t, int64_t, void*) {}
const rb_kernel kNothing{"nothing", tasks_of, nothing, no_scratch};

struct Meeting {
  Probe probe;
  mutable std::atomic<int32_t> missing;
};

// A thread that takes a task does not take the next before all have come, so every thread comes.
void meet(const rb_args* args, const rb_step*, int64_t begin, int64_t end, void*) {
  const auto& missing = reinterpret_cast<const Meeting*>(args)->missing;
  reinterpret_cast<const Meeting*>(args)->missing.fetch_sub(static_cast<int32_t>(end - begin));
  const auto began = Clock::now();
  while (missing.load(std::memory_order_acquire) > 0 && since(began) < 0.01) {
  }
}
const rb_kernel kMeet{"meet", tasks_of, meet, no_scratch};

}  // namespace

double probe_read(Pool& pool, int32_t isa, const void* data, int64_t nbytes, int threads, int64_t rounds, bool ahead) {
  const Probes& p = probes(isa);
  check(pool, threads, rounds);
  if (nbytes <= 0 || nbytes % (threads * kProbeBlock) != 0)
    throw std::invalid_argument("a read probe takes whole blocks for each thread");
  const Probe probe{{}, threads, static_cast<const uint8_t*>(data), nbytes / threads, rounds};
  return run_timed(pool, ahead ? p.read_ahead : p.read, probe);
}

Work probe_arithmetic(Pool& pool, int32_t isa, Arithmetic kind, int threads, int64_t rounds) {
  const Probes& p = probes(isa);
  check(pool, threads, rounds);
  const bool dot = kind == Arithmetic::kDot;
  const double seconds = run_timed(pool, dot ? p.dot : p.fma, {{}, threads, nullptr, 0, rounds});
  return {seconds, threads * rounds * (dot ? p.dot_operations : p.fma_operations)};
}

double probe_launches(Pool& pool, int64_t count) {
  const Probe probe{{}, pool.threads(), nullptr, 0, 1};
  const rb_step step{};
  const auto lock = pool.lock();
  const auto begin = Clock::now();
  for (int64_t i = 0; i < count; ++i) pool.run({&kNothing, &probe.args, &step});
  return since(begin);
}

double probe_meeting(Pool& pool) {
  const Meeting meeting{{{}, pool.threads(), nullptr, 0, 1}, pool.threads()};
  return run_timed(pool, kMeet, meeting.probe);
}

}  // namespace rb
