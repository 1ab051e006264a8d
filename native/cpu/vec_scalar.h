// vec_scalar.h: one lane at a time, for machines without a known vector unit and as the plainest form of the arithmetic.
#pragma once
#include "cpu/half.h"

namespace rb::RB_NS {

constexpr int kLanes = 1;
constexpr int kRegisterRows = 2;  // rows matmul keeps in flight
using PF = float;
using PI = int32_t;
using PB = uint32_t;  // the four bytes of a lane, first in the low end
using PM = bool;

RB_INLINE PF p_load(const float* x) { return *x; }
RB_INLINE void p_store(float* x, PF v) { *x = v; }
RB_INLINE PF p_set1(float x) { return x; }
RB_INLINE PF p_add(PF a, PF b) { return a + b; }
RB_INLINE PF p_sub(PF a, PF b) { return a - b; }
RB_INLINE PF p_mul(PF a, PF b) { return a * b; }
RB_INLINE PF p_div(PF a, PF b) { return a / b; }
RB_INLINE PF p_sqrt(PF a) { return __builtin_sqrtf(a); }
RB_INLINE PF p_fma(PF a, PF b, PF c) { return __builtin_fmaf(a, b, c); }
RB_INLINE PF p_min(PF a, PF b) { return a < b ? a : b; }
RB_INLINE PF p_max(PF a, PF b) { return a > b ? a : b; }
RB_INLINE PM p_lt(PF a, PF b) { return a < b; }
RB_INLINE PF p_select(PM m, PF a, PF b) { return m ? a : b; }
RB_INLINE PI p_bits(PF a) { return static_cast<int32_t>(bits_of(a)); }
RB_INLINE PF p_float_of(PI a) { return float_of(static_cast<uint32_t>(a)); }
RB_INLINE PF p_float_of(PB a) { return float_of(a); }
RB_INLINE PF p_load_half(const uint16_t* x) { return f16_to_f32(*x); }
RB_INLINE void p_store_half(uint16_t* x, PF v) { *x = f32_to_f16(v); }
RB_INLINE PF p_load_bf16(const uint16_t* x) { return bf16_to_f32(*x); }

RB_INLINE PI pi_set1(int32_t x) { return x; }
RB_INLINE PI pi_load(const int32_t* x) { return *x; }
RB_INLINE PI pi_load_u8(const uint8_t* x) { return *x; }
RB_INLINE PI pi_load_s8(const int8_t* x) { return *x; }
RB_INLINE void pi_store(int32_t* x, PI v) { *x = v; }
RB_INLINE PI pi_add(PI a, PI b) { return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b)); }
RB_INLINE PI pi_sub(PI a, PI b) { return static_cast<int32_t>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b)); }
RB_INLINE PI pi_and(PI a, PI b) { return a & b; }
RB_INLINE PI pi_max(PI a, PI b) { return a > b ? a : b; }
template <int N>
RB_INLINE PI pi_shl(PI a) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) << N);
}
template <int N>
RB_INLINE PI pi_sar(PI a) {
  return a >> N;
}
RB_INLINE PF pi_to_float(PI a) { return static_cast<float>(a); }
// Nearest even for |x| < 2^22: adding 1.5 x 2^23 leaves the integer in the last places.
RB_INLINE PI p_to_int(PF x) { return pi_sub(p_bits(x + 0x1.8p23f), p_bits(0x1.8p23f)); }
RB_INLINE void pi_store_s8(int8_t* x, PI v) { *x = static_cast<int8_t>(v); }
RB_INLINE float p_sum(PF v) { return v; }
RB_INLINE float p_largest(PF v) { return v; }
RB_INLINE int32_t pi_reduce_max(PI a) { return a; }
RB_INLINE int32_t pi_reduce_add(PI a) { return a; }

RB_INLINE PB pb_load(const uint8_t* x) {
  PB v;
  memcpy(&v, x, 4);
  return v;
}
RB_INLINE PB pb_set4(const int8_t* x) { return pb_load(reinterpret_cast<const uint8_t*>(x)); }
RB_INLINE PB pb_set1(uint8_t x) { return 0x01010101u * x; }
RB_INLINE PB pb_and(PB a, PB b) { return a & b; }
RB_INLINE PB pb_or(PB a, PB b) { return a | b; }
template <int N>
RB_INLINE PB pb_shr(PB a) {
  return a >> N;
}
template <int N>
RB_INLINE PB pb_shl(PB a) {
  return a << N;
}
RB_INLINE PB pb_fifth(uint64_t bits, int part) {
  const uint32_t b = static_cast<uint32_t>(bits >> (4 * part));
  return (b & 1u) << 4 | (b & 2u) << 11 | (b & 4u) << 18 | (b & 8u) << 25;
}

constexpr int kByteOffset = 128;  // Q8_0 weights enter the dot product as they are stored
RB_INLINE PB pb_wide(PB stored) { return stored; }
template <int MaxQ>
RB_INLINE PI pb_dot(PI acc, PB w, PB a) {
  for (int i = 0; i < 4; ++i) acc += static_cast<int32_t>(w >> 8 * i & 255u) * static_cast<int8_t>(a >> 8 * i & 255u);
  return acc;
}

}  // namespace rb::RB_NS
