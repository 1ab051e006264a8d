// lanes.h: the passes of the sampler that look at the whole vocabulary.
//
// The law: every pass is element by element over 16 lanes, multiply-adds are not fused, and every sum has the order
// written here. So the portable, AVX2 and AVX-512 builds of the one source give the same bits, and libm is never asked.
#pragma once
#include <cstdint>

namespace rebar::sampling {

inline constexpr int32_t kLanes = 16;
inline constexpr int32_t kBlock =
    1024;  // ids per partial sum: 64 additions a lane keep the float error under 64 * 2^-24

// Elements of a buffer for n values: whole vectors, so that passes need no tail.
inline int32_t padded(int32_t n) { return (n + kLanes - 1) / kLanes * kLanes; }
inline int32_t blocks(int32_t n) { return (n + kBlock - 1) / kBlock; }

struct Candidate {
  float value;
  int32_t id;
};

struct Best {
  float value;  // -inf when every value is
  int32_t id;   // lowest id that has it; -1 when every value is -inf
  bool nan;     // a NaN stands in the row; value and id mean nothing then
};

struct Lanes {
  const char* name;
  // The greatest of in[0..n), +inf read as FLT_MAX. `in` needs no padding.
  Best (*best)(const float* in, int32_t n);
  // out[0..padded(n)) = in, +inf as FLT_MAX, the padding -inf. False when a NaN was met.
  bool (*copy)(const float* in, int32_t n, float* out);
  // w[i] = exp((x[i] - max) * scale), 0 below exp(-87.3); padded(n) elements; w may be null. sums[b]: sum of block b,
  // 16 lanes over ascending i in float, lanes as a binary tree. Returns the sum of sums, ascending, in double.
  double (*weigh)(const float* x, int32_t n, float max, float scale, float* w, float* sums);
  // Appends {v[i], first + i} for v[i] >= least, i ascending in 0..padded(n), to out, which has room for one more
  // than pass; returns how many.
  int32_t (*gather)(const float* v, int32_t n, float least, int32_t first, Candidate* out);
};

// "portable", "avx2" or "avx512"; null where this build or machine lacks it. best_lanes: the fastest there is.
const Lanes* lanes_named(const char* name);
const Lanes& best_lanes();

// exp(t) for t <= 0, the same bits as weigh: 0 below -87.3 and for NaN.
float exp_of(float t);
// Natural logarithm of a finite x > 0 in double, within 2 ulp; own code so that bits do not depend on libm.
double log_of(double x);

}  // namespace rebar::sampling
