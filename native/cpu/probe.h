// probe.h: the probes' loops in vec.h's registers; included once by each isa_*.cpp.
//
// The law: nothing here can be dropped, hoisted or merged. Every operand of the arithmetic passes through `opaque`, which costs
// no instruction and of which the compiler knows nothing; a read is noinline, keeps what it loaded, and clobbers memory.
#pragma once
#include "cpu/probe_tables.h"
#include "cpu/vec.h"

namespace rb::RB_NS {

#if defined(__x86_64__)
#define RB_IN_VECTOR "+x"
#elif defined(__aarch64__)
#define RB_IN_VECTOR "+w"
#else
#define RB_IN_VECTOR "+m"
#endif
template <class T>
RB_INLINE void opaque(T& x) {
  __asm__ volatile("" : RB_IN_VECTOR(x));
}
RB_INLINE void opaque(int32_t& x) { __asm__ volatile("" : "+r"(x)); }
RB_INLINE void opaque(uint32_t& x) { __asm__ volatile("" : "+r"(x)); }
#undef RB_IN_VECTOR

static const Probe& probe_of(const rb_args* args) { return *reinterpret_cast<const Probe*>(args); }
static int64_t probe_tasks(const rb_args* args, const rb_step*) { return probe_of(args).tasks; }
static size_t probe_scratch(const rb_args*, int32_t) { return 0; }

// Four streams at once: prefetchers stop at the end of a 4 KiB page and begin anew, so one stream leaves the memory idle at each
// border (measured on Zen 4: 19 GB/s with one stream, 23 with four; 22 and 28 with large pages). 1 KiB ahead is the best distance there.
constexpr int kStreams = 4;
constexpr int64_t kAhead = 1024, kStep = kProbeBlock / kStreams;

template <bool Ahead>
__attribute__((noinline)) static void read_once(const uint8_t* from, int64_t nbytes) {
  const int64_t stream = nbytes / kStreams;
  B sum[4] = {set1_bytes(0), set1_bytes(0), set1_bytes(0), set1_bytes(0)};
  for (int64_t i = 0; i < stream; i += kStep) {
    for (int s = 0; s < kStreams; ++s) {
      const uint8_t* at = from + s * stream + i;
      RB_UNROLL for (int j = 0; j < kStep / 64; ++j) {
        if constexpr (Ahead) __builtin_prefetch(at + kAhead + 64 * j);
        sum[j % 4] = bit_or(sum[j % 4], load_bytes(at + 64 * j));
      }
    }
  }
  B all = bit_or(bit_or(sum[0], sum[1]), bit_or(sum[2], sum[3]));
  RB_PARTS opaque(all.p[i]);
  __asm__ volatile("" ::: "memory");
}

template <bool Ahead>
static void probe_read(const rb_args* args, const rb_step*, int64_t begin, int64_t end, void*) {
  const Probe& p = probe_of(args);
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t r = 0; r < p.rounds; ++r) read_once<Ahead>(p.data + t * p.slice, p.slice);
  }
}

// A dot product or multiply-add has a latency of 4 or 5 and at most two ports: 10 chains keep both busy, 12 with their two operands
// and a constant still fit 16 registers.
constexpr int kChains = 12;

static void probe_dot(const rb_args* args, const rb_step*, int64_t begin, int64_t end, void*) {
  const int8_t ones[4] = {1, 1, 1, 1};
  PB w = pb_set1(1), a = pb_set4(ones);
  PI sum[kChains];
  for (int c = 0; c < kChains; ++c) sum[c] = pi_set1(0);
  for (int64_t r = 0; r < probe_of(args).rounds * (end - begin); ++r) {
    RB_UNROLL for (int c = 0; c < kChains; ++c) {
      opaque(a);
      sum[c] = pb_dot<63>(sum[c], w, a);
    }
    opaque(w);
  }
  for (int c = 0; c < kChains; ++c) opaque(sum[c]);
}

static void probe_fma(const rb_args* args, const rb_step*, int64_t begin, int64_t end, void*) {
  PF a = p_set1(0.5f), b = p_set1(0.25f);
  PF sum[kChains];
  for (int c = 0; c < kChains; ++c) sum[c] = p_set1(0.0f);
  for (int64_t r = 0; r < probe_of(args).rounds * (end - begin); ++r) {
    opaque(a), opaque(b);
    RB_UNROLL for (int c = 0; c < kChains; ++c) sum[c] = p_fma(a, b, sum[c]);
  }
  for (int c = 0; c < kChains; ++c) opaque(sum[c]);
}

constexpr Probes kProbes = {
    {"read", probe_tasks, probe_read<false>, probe_scratch},
    {"read_ahead", probe_tasks, probe_read<true>, probe_scratch},
    {"dot", probe_tasks, probe_dot, probe_scratch},
    {"fma", probe_tasks, probe_fma, probe_scratch},
    kChains * kLanes * 8,
    kChains * kLanes * 2,
};

}  // namespace rb::RB_NS
