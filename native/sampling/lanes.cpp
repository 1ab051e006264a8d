#include "sampling/lanes.h"

#include <bit>
#include <cfloat>
#include <cstring>
#include <limits>

namespace rebar::sampling {
namespace {

#define RB_INLINE static inline __attribute__((always_inline))

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLeastExponent = -87.3f;  // exp of it is the last normal float: 2^-126

// Sixteen lanes as 16 / W vectors of W: compilers take vectors wider than the machine's apart into scalars. Lane l of
// the sixteen is element l % W of vector l / W, so that W changes the speed and nothing else. Vectors travel by
// reference: by value their calling convention would depend on the instruction set.
template <int W>
struct Vec {
  typedef float F __attribute__((vector_size(4 * W)));
  typedef int32_t I __attribute__((vector_size(4 * W)));
  typedef uint64_t U __attribute__((vector_size(4 * W)));
  static constexpr int kParts = kLanes / W;
};

template <int W, class V>
RB_INLINE bool any(const V& mask) {
  typename Vec<W>::U m;
  std::memcpy(&m, &mask, sizeof m);
  uint64_t bits = 0;
  for (int i = 0; i < W / 2; ++i) bits |= m[i];
  return bits != 0;
}

// exp(t) = 2^n exp(r), n = round(t / ln 2), r = t - n ln 2 in two parts whose first product is exact (n has 7 bits, the
// part 9). Polynomial of degree 7 after Moshier's Cephes expf: relative error under 2^-23 on |r| <= ln 2 / 2.
template <int W>
RB_INLINE void exponential(const typename Vec<W>::F& t, typename Vec<W>::F& out) {
  typename Vec<W>::F low = {}, power, zero = {};
  low += kLeastExponent;
  const typename Vec<W>::I normal = t >= kLeastExponent;  // false for NaN, which so becomes 0
  const typename Vec<W>::F x = normal ? t : low;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer
  const typename Vec<W>::F shifted = x * 1.44269504088896341f + magic;
  const typename Vec<W>::F n = shifted - magic;
  const typename Vec<W>::F r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  typename Vec<W>::F p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.0f;
  typename Vec<W>::I exponent;
  std::memcpy(&exponent, &shifted, sizeof exponent);
  exponent = (exponent - std::bit_cast<int32_t>(magic) + 127) << 23;
  std::memcpy(&power, &exponent, sizeof power);
  out = normal ? p * power : zero;
}

RB_INLINE float tree(const float* lanes) {
  float lane[kLanes];
  std::memcpy(lane, lanes, sizeof lane);
  for (int32_t half = kLanes / 2; half > 0; half /= 2)
    for (int32_t i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
}

// The sixteen values at p, or, at the end of an unpadded row, a copy of what is left, filled up with -inf.
RB_INLINE const float* sixteen(const float* p, int32_t left, float* tail) {
  if (left >= kLanes) return p;
  for (int32_t i = 0; i < kLanes; ++i) tail[i] = i < left ? p[i] : -kInfinity;
  return tail;
}

RB_INLINE Best reduce(const float* value, const int32_t* index, bool nan) {
  Best best{value[0], index[0], nan};
  for (int32_t lane = 1; lane < kLanes; ++lane) {
    const bool tie_won = value[lane] == best.value && index[lane] >= 0 && index[lane] < best.id;
    if (value[lane] > best.value || tie_won) best = {value[lane], index[lane], nan};
  }
  return best;
}

template <int W>
RB_INLINE Best best_body(const float* in, int32_t n) {
  using F = typename Vec<W>::F;
  using I = typename Vec<W>::I;
  constexpr int parts = Vec<W>::kParts;
  const F most = F{} + FLT_MAX;
  float tail[kLanes];
  F value[parts];
  I index[parts], id[parts], nan = {};
  for (int p = 0; p < parts; ++p) {
    value[p] = F{} - kInfinity;
    index[p] = I{} - 1;
    for (int i = 0; i < W; ++i) id[p][i] = p * W + i;
  }
  for (int32_t i = 0; i < n; i += kLanes) {
    const float* const from = sixteen(in + i, n - i, tail);
    for (int p = 0; p < parts; ++p) {
      F raw;
      std::memcpy(&raw, from + p * W, sizeof raw);
      nan |= raw != raw;
      const F x = raw > FLT_MAX ? most : raw;
      const I better = x > value[p];
      value[p] = better ? x : value[p];
      index[p] = better ? id[p] : index[p];
      id[p] += kLanes;
    }
  }
  float values[kLanes];
  int32_t ids[kLanes];
  std::memcpy(values, value, sizeof values);
  std::memcpy(ids, index, sizeof ids);
  return reduce(values, ids, any<W>(nan));
}

template <int W>
RB_INLINE bool copy_body(const float* in, int32_t n, float* out) {
  using F = typename Vec<W>::F;
  const F most = F{} + FLT_MAX;
  float tail[kLanes];
  typename Vec<W>::I nan = {};
  for (int32_t i = 0; i < n; i += kLanes) {
    const float* const from = sixteen(in + i, n - i, tail);
    for (int p = 0; p < Vec<W>::kParts; ++p) {
      F x;
      std::memcpy(&x, from + p * W, sizeof x);
      nan |= x != x;
      x = x > FLT_MAX ? most : x;
      std::memcpy(out + i + p * W, &x, sizeof x);
    }
  }
  return !any<W>(nan);
}

template <int W>
RB_INLINE float weigh_block(const float* x, int32_t n, float max, float scale, float* w) {
  using F = typename Vec<W>::F;
  F sum[Vec<W>::kParts] = {};
  for (int32_t i = 0; i < n; i += kLanes) {
    for (int p = 0; p < Vec<W>::kParts; ++p) {
      F v, e;
      std::memcpy(&v, x + i + p * W, sizeof v);
      exponential<W>((v - max) * scale, e);
      sum[p] += e;
      if (w != nullptr) std::memcpy(w + i + p * W, &e, sizeof e);
    }
  }
  float lanes[kLanes];
  std::memcpy(lanes, sum, sizeof lanes);
  return tree(lanes);
}

template <int W>
RB_INLINE double weigh_body(const float* x, int32_t n, float max, float scale, float* w, float* sums) {
  const int32_t end = padded(n);
  double total = 0.0;
  for (int32_t first = 0; first < end; first += kBlock) {
    const int32_t count = end - first < kBlock ? end - first : kBlock;
    const float sum = weigh_block<W>(x + first, count, max, scale, w == nullptr ? nullptr : w + first);
    sums[first / kBlock] = sum;
    total += static_cast<double>(sum);
  }
  return total;
}

template <int W>
RB_INLINE int32_t gather_body(const float* v, int32_t n, float least, int32_t first, Candidate* out) {
  int32_t count = 0;
  for (int32_t i = 0; i < n; i += kLanes) {
    typename Vec<W>::I mask = {};
    for (int p = 0; p < Vec<W>::kParts; ++p) {
      typename Vec<W>::F x;
      std::memcpy(&x, v + i + p * W, sizeof x);
      mask |= x >= least;
    }
    if (!any<W>(mask)) continue;
    for (int32_t lane = 0; lane < kLanes; ++lane) {  // without a branch: which of the sixteen pass cannot be foreseen
      out[count] = {v[i + lane], first + i + lane};
      count += v[i + lane] >= least ? 1 : 0;
    }
  }
  return count;
}

#define RB_LANES(suffix, W, attribute)                                                                        \
  attribute Best best_##suffix(const float* in, int32_t n) { return best_body<W>(in, n); }                    \
  attribute bool copy_##suffix(const float* in, int32_t n, float* out) { return copy_body<W>(in, n, out); }   \
  attribute double weigh_##suffix(const float* x, int32_t n, float max, float scale, float* w, float* sums) { \
    return weigh_body<W>(x, n, max, scale, w, sums);                                                          \
  }                                                                                                           \
  attribute int32_t gather_##suffix(const float* v, int32_t n, float least, int32_t first, Candidate* out) {  \
    return gather_body<W>(v, n, least, first, out);                                                           \
  }                                                                                                           \
  const Lanes suffix##_lanes{#suffix, best_##suffix, copy_##suffix, weigh_##suffix, gather_##suffix};

RB_LANES(portable, 4, )
#if defined(__x86_64__)
RB_LANES(avx2, 8, __attribute__((target("avx2"))))
RB_LANES(avx512, 16, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))
#endif

bool runs_here(const char* name) {
#if defined(__x86_64__)
  if (std::strcmp(name, "avx2") == 0) return __builtin_cpu_supports("avx2");
  if (std::strcmp(name, "avx512") == 0)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
  return std::strcmp(name, "portable") == 0;
}

const Lanes* const kLanesFastestFirst[] = {
#if defined(__x86_64__)
    &avx512_lanes, &avx2_lanes,
#endif
    &portable_lanes};

}  // namespace

const Lanes* lanes_named(const char* name) {
  for (const Lanes* lanes : kLanesFastestFirst)
    if (std::strcmp(lanes->name, name) == 0) return runs_here(name) ? lanes : nullptr;
  return nullptr;
}

const Lanes& best_lanes() {
  for (const Lanes* lanes : kLanesFastestFirst)
    if (runs_here(lanes->name)) return *lanes;
  return portable_lanes;
}

float exp_of(float t) {
  const Vec<4>::F in = {t, t, t, t};
  Vec<4>::F out;
  exponential<4>(in, out);
  return out[0];
}

// x = 2^e m, m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1), s^2 <= 0.0295: eleven terms reach
// 2^-58.
double log_of(double x) {
  uint64_t bits = std::bit_cast<uint64_t>(x);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0), q = s * s;
  double series = 1.0 / 23.0;
  for (int k = 21; k >= 1; k -= 2) series = series * q + 1.0 / k;
  const double e = static_cast<double>(exponent);
  return e * 0.693147180369123816490 + (2.0 * s * series + e * 1.90821492927058770002e-10);
}

}  // namespace rebar::sampling
