// vec.h: sixteen lanes of f32, i32 or four bytes, the same arithmetic on every instruction set.
//
// A vector is an array of native registers; RB_VEC names the header of the native operations (prefix p_, pi_, pb_), RB_NS
// the namespace. Every translation unit isa_*.cpp includes this once. Rules that keep the bits equal: fma has one rounding,
// min/max return the second operand when either is NaN, nothing is approximated by a hardware table.
// No standard library here: an inline function of it, compiled for AVX-512 and kept by the linker for all, would not run elsewhere.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define RB_INLINE static inline __attribute__((always_inline))
#include RB_VEC

// Loops over steps and rows are unrolled where the lanes are few instructions; sixteen single lanes stay a loop, or the code explodes.
// So does every loop under sanitizers, and matmul keeps two rows in flight: their checks multiply what there is to compile.
#if defined(RB_ONE_LANE) || defined(RB_SANITIZED)
#define RB_UNROLL _Pragma("GCC unroll 1")
#else
#define RB_UNROLL _Pragma("GCC unroll 16")
#endif

namespace rb::RB_NS {

constexpr int kParts = 16 / kLanes;
#ifdef RB_SANITIZED
constexpr int kPanelRows = 2;
#else
constexpr int kPanelRows = kRegisterRows;
#endif
struct F {
  PF p[kParts];
};  // 16 x f32
struct I {
  PI p[kParts];
};  // 16 x i32
struct B {
  PB p[kParts];
};  // 16 x 4 bytes
struct M {
  PM p[kParts];
};  // 16 truths

#define RB_PARTS RB_UNROLL for (int i = 0; i < kParts; ++i)
#define RB_LIFT1(Out, name, native, A) \
  RB_INLINE Out name(A a) {            \
    Out o;                             \
    RB_PARTS o.p[i] = native(a.p[i]);  \
    return o;                          \
  }
#define RB_LIFT2(Out, name, native, A)        \
  RB_INLINE Out name(A a, A b) {              \
    Out o;                                    \
    RB_PARTS o.p[i] = native(a.p[i], b.p[i]); \
    return o;                                 \
  }
RB_LIFT2(F, add, p_add, F)
RB_LIFT2(F, sub, p_sub, F)
RB_LIFT2(F, mul, p_mul, F)
RB_LIFT2(F, div, p_div, F)
RB_LIFT2(F, min, p_min, F)
RB_LIFT2(F, max, p_max, F)
RB_LIFT2(M, lt, p_lt, F)
RB_LIFT2(I, add, pi_add, I)
RB_LIFT2(I, sub, pi_sub, I)
RB_LIFT2(I, bit_and, pi_and, I)
RB_LIFT2(I, max, pi_max, I)
RB_LIFT2(B, bit_and, pb_and, B)
RB_LIFT2(B, bit_or, pb_or, B)
RB_LIFT1(F, sqrt, p_sqrt, F)
RB_LIFT1(I, bits, p_bits, F)
RB_LIFT1(F, float_bits, p_float_of, I)
RB_LIFT1(F, float_bits, p_float_of, B)
RB_LIFT1(F, to_float, pi_to_float, I)
RB_LIFT1(I, to_int, p_to_int, F)  // round to nearest even, |x| < 2^22
RB_LIFT1(B, wide_bytes, pb_wide, B)
#undef RB_LIFT1
#undef RB_LIFT2

RB_INLINE F fma(F a, F b, F c) {
  F o;
  RB_PARTS o.p[i] = p_fma(a.p[i], b.p[i], c.p[i]);
  return o;
}
RB_INLINE F select(M m, F a, F b) {
  F o;
  RB_PARTS o.p[i] = p_select(m.p[i], a.p[i], b.p[i]);
  return o;
}
RB_INLINE F set1(float x) {
  F o;
  RB_PARTS o.p[i] = p_set1(x);
  return o;
}
RB_INLINE I set1(int32_t x) {
  I o;
  RB_PARTS o.p[i] = pi_set1(x);
  return o;
}
RB_INLINE F load(const float* x) {
  F o;
  RB_PARTS o.p[i] = p_load(x + i * kLanes);
  return o;
}
RB_INLINE void store(float* x, F v) { RB_PARTS p_store(x + i * kLanes, v.p[i]); }
RB_INLINE F load_half(const uint16_t* x) {
  F o;
  RB_PARTS o.p[i] = p_load_half(x + i * kLanes);
  return o;
}
RB_INLINE void store_half(uint16_t* x, F v) { RB_PARTS p_store_half(x + i * kLanes, v.p[i]); }
RB_INLINE F load_bf16(const uint16_t* x) {
  F o;
  RB_PARTS o.p[i] = p_load_bf16(x + i * kLanes);
  return o;
}
RB_INLINE I load(const int32_t* x) {
  I o;
  RB_PARTS o.p[i] = pi_load(x + i * kLanes);
  return o;
}
RB_INLINE F load_u8(const uint8_t* x) {
  F o;
  RB_PARTS o.p[i] = pi_to_float(pi_load_u8(x + i * kLanes));
  return o;
}
RB_INLINE F load_s8(const int8_t* x) {
  F o;
  RB_PARTS o.p[i] = pi_to_float(pi_load_s8(x + i * kLanes));
  return o;
}
RB_INLINE void store_s8(int8_t* x, I v) { RB_PARTS pi_store_s8(x + i * kLanes, v.p[i]); }
template <int N>
RB_INLINE I shl(I a) {
  I o;
  RB_PARTS o.p[i] = pi_shl<N>(a.p[i]);
  return o;
}
template <int N>
RB_INLINE I sar(I a) {
  I o;
  RB_PARTS o.p[i] = pi_sar<N>(a.p[i]);
  return o;
}

// Bytes. Shifts may carry bits across bytes: mask afterwards.
RB_INLINE B load_bytes(const uint8_t* x) {
  B o;
  RB_PARTS o.p[i] = pb_load(x + i * 4 * kLanes);
  return o;
}
RB_INLINE B set1_bytes(uint8_t x) {
  B o;
  RB_PARTS o.p[i] = pb_set1(x);
  return o;
}
template <int N>
RB_INLINE B shr(B a) {
  B o;
  RB_PARTS o.p[i] = pb_shr<N>(a.p[i]);
  return o;
}
template <int N>
RB_INLINE B shl(B a) {
  B o;
  RB_PARTS o.p[i] = pb_shl<N>(a.p[i]);
  return o;
}
// Byte j is 16 where bit j of `x` is set.
RB_INLINE B fifth_bits(const uint8_t* x) {
  uint64_t v;
  memcpy(&v, x, 8);
  B o;
  RB_PARTS o.p[i] = pb_fifth(v, i);
  return o;
}

// init + the dot products of Steps x 4 weights a lane with Steps x 4 activations; exact. Weights are at most MaxQ.
template <int Steps, int MaxQ>
RB_INLINE I dot(I init, const B* w, const int8_t* a) {
  RB_UNROLL for (int s = 0; s < Steps; ++s) {
    const PB four = pb_set4(a + 4 * s);
    RB_PARTS init.p[i] = pb_dot<MaxQ>(init.p[i], w[s].p[i], four);
  }
  return init;
}

// The first n of 16; the other lanes read as zero and are not written.
RB_INLINE F load(const float* x, int n) {
  if (n >= 16) return load(x);
  float t[16] = {};
  memcpy(t, x, static_cast<size_t>(n) * 4);
  return load(t);
}
RB_INLINE void store(float* x, F v, int n) {
  if (n >= 16) return store(x, v);
  float t[16];
  store(t, v);
  memcpy(x, t, static_cast<size_t>(n) * 4);
}

// Binary tree: lane l with l+8, then l+4, l+2, l+1; whole registers first, then p_sum within one.
RB_INLINE float sum_lanes(F v) {
  RB_UNROLL for (int half = kParts / 2; half > 0; half /= 2) {
    RB_UNROLL for (int i = 0; i < half; ++i) v.p[i] = p_add(v.p[i], v.p[i + half]);
  }
  return p_sum(v.p[0]);
}
// Largest lane; a lane that is NaN may be passed over.
RB_INLINE float max_lanes(F v) {
  RB_UNROLL for (int half = kParts / 2; half > 0; half /= 2) {
    RB_UNROLL for (int i = 0; i < half; ++i) v.p[i] = p_max(v.p[i], v.p[i + half]);
  }
  return p_largest(v.p[0]);
}
RB_INLINE int32_t reduce_max(I v) {
  PI m = v.p[0];
  RB_PARTS m = pi_max(m, v.p[i]);
  return pi_reduce_max(m);
}
RB_INLINE int32_t reduce_add(I v) {
  PI s = v.p[0];
  RB_UNROLL for (int i = 1; i < kParts; ++i) s = pi_add(s, v.p[i]);
  return pi_reduce_add(s);
}
RB_INLINE void store(int32_t* x, I v) { RB_PARTS pi_store(x + i * kLanes, v.p[i]); }

// Lane g of the result is the largest (the sum) of the sixteen lanes of v[g].
#ifdef RB_TRANSPOSED_REDUCTION
RB_INLINE I max_each(const I (&v)[16]) { return {{pi_reduce_each<PiMax>(&v[0].p[0])}}; }
RB_INLINE I sum_each(const I (&v)[16]) { return {{pi_reduce_each<PiAdd>(&v[0].p[0])}}; }
#else
RB_INLINE I max_each(const I (&v)[16]) {
  int32_t out[16];
  RB_UNROLL for (int g = 0; g < 16; ++g) out[g] = reduce_max(v[g]);
  return load(out);
}
RB_INLINE I sum_each(const I (&v)[16]) {
  int32_t out[16];
  RB_UNROLL for (int g = 0; g < 16; ++g) out[g] = reduce_add(v[g]);
  return load(out);
}
#endif
// v[i] lane j <-> v[j] lane i.
RB_INLINE void transpose(F (&v)[16]) {
#ifdef RB_TRANSPOSED_FLOATS
  p_transpose(&v[0].p[0]);
#else
  float from[256], to[256];
  RB_UNROLL for (int i = 0; i < 16; ++i) store(from + 16 * i, v[i]);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) to[16 * j + i] = from[16 * i + j];
  }
  RB_UNROLL for (int i = 0; i < 16; ++i) v[i] = load(to + 16 * i);
#endif
}
// The larger of lanes 2i and 2i+1, in both.
RB_INLINE I max_pairs(I v) {
#ifdef RB_TRANSPOSED_REDUCTION
  return {{pi_max(v.p[0], pi_swap_pairs(v.p[0]))}};
#else
  int32_t out[16];
  store(out, v);
  RB_UNROLL for (int i = 0; i < 16; i += 2) out[i] = out[i + 1] = out[i] > out[i + 1] ? out[i] : out[i + 1];
  return load(out);
#endif
}

}  // namespace rb::RB_NS
