// vec_neon.h: four registers make the vector (aarch64 Advanced SIMD with the byte dot product).
#pragma once
#include <arm_neon.h>

namespace rb::RB_NS {

constexpr int kLanes = 4;
constexpr int kRegisterRows = 4;  // rows matmul keeps in flight: a group alone fills the 32 registers
using PF = float32x4_t;
using PI = int32x4_t;
using PB = uint8x16_t;
using PM = uint32x4_t;

RB_INLINE PF p_load(const float* x) { return vld1q_f32(x); }
RB_INLINE void p_store(float* x, PF v) { vst1q_f32(x, v); }
RB_INLINE PF p_set1(float x) { return vdupq_n_f32(x); }
RB_INLINE PF p_add(PF a, PF b) { return vaddq_f32(a, b); }
RB_INLINE PF p_sub(PF a, PF b) { return vsubq_f32(a, b); }
RB_INLINE PF p_mul(PF a, PF b) { return vmulq_f32(a, b); }
RB_INLINE PF p_div(PF a, PF b) { return vdivq_f32(a, b); }
RB_INLINE PF p_sqrt(PF a) { return vsqrtq_f32(a); }
RB_INLINE PF p_fma(PF a, PF b, PF c) { return vfmaq_f32(c, a, b); }
RB_INLINE PF p_min(PF a, PF b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
RB_INLINE PF p_max(PF a, PF b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
RB_INLINE PM p_lt(PF a, PF b) { return vcltq_f32(a, b); }
RB_INLINE PF p_select(PM m, PF a, PF b) { return vbslq_f32(m, a, b); }
RB_INLINE PI p_bits(PF a) { return vreinterpretq_s32_f32(a); }
RB_INLINE PF p_float_of(PI a) { return vreinterpretq_f32_s32(a); }
RB_INLINE PF p_float_of(PB a) { return vreinterpretq_f32_u8(a); }
RB_INLINE PF p_load_half(const uint16_t* x) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x))); }
RB_INLINE void p_store_half(uint16_t* x, PF v) { vst1_u16(x, vreinterpret_u16_f16(vcvt_f16_f32(v))); }
RB_INLINE PF p_load_bf16(const uint16_t* x) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(x), 16)); }

RB_INLINE uint32_t load_4(const void* x) {
  uint32_t v;
  __builtin_memcpy(&v, x, 4);
  return v;
}
RB_INLINE PI pi_set1(int32_t x) { return vdupq_n_s32(x); }
RB_INLINE PI pi_load(const int32_t* x) { return vld1q_s32(x); }
RB_INLINE PI pi_load_u8(const uint8_t* x) {
  return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(load_4(x))))));
}
RB_INLINE PI pi_load_s8(const int8_t* x) { return vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(load_4(x))))); }
RB_INLINE void pi_store(int32_t* x, PI v) { vst1q_s32(x, v); }
RB_INLINE PI pi_add(PI a, PI b) { return vaddq_s32(a, b); }
RB_INLINE PI pi_sub(PI a, PI b) { return vsubq_s32(a, b); }
RB_INLINE PI pi_and(PI a, PI b) { return vandq_s32(a, b); }
RB_INLINE PI pi_max(PI a, PI b) { return vmaxq_s32(a, b); }
template <int N>
RB_INLINE PI pi_shl(PI a) {
  return vshlq_n_s32(a, N);
}
template <int N>
RB_INLINE PI pi_sar(PI a) {
  return vshrq_n_s32(a, N);
}
RB_INLINE PF pi_to_float(PI a) { return vcvtq_f32_s32(a); }
RB_INLINE PI p_to_int(PF x) { return vcvtnq_s32_f32(x); }
RB_INLINE void pi_store_s8(int8_t* x, PI v) {
  const int8x8_t bytes = vmovn_s16(vcombine_s16(vmovn_s32(v), vmovn_s32(v)));
  const uint32_t four = vget_lane_u32(vreinterpret_u32_s8(bytes), 0);
  __builtin_memcpy(x, &four, 4);
}
// Lane l with l+2, then l+1.
RB_INLINE float p_sum(PF v) {
  const float32x2_t s = vadd_f32(vget_low_f32(v), vget_high_f32(v));
  return vget_lane_f32(s, 0) + vget_lane_f32(s, 1);
}
RB_INLINE float p_largest(PF v) { return vmaxvq_f32(v); }
RB_INLINE int32_t pi_reduce_max(PI a) { return vmaxvq_s32(a); }
RB_INLINE int32_t pi_reduce_add(PI a) { return vaddvq_s32(a); }

RB_INLINE PB pb_load(const uint8_t* x) { return vld1q_u8(x); }
RB_INLINE PB pb_set4(const int8_t* x) { return vreinterpretq_u8_u32(vdupq_n_u32(load_4(x))); }
RB_INLINE PB pb_set1(uint8_t x) { return vdupq_n_u8(x); }
RB_INLINE PB pb_and(PB a, PB b) { return vandq_u8(a, b); }
RB_INLINE PB pb_or(PB a, PB b) { return vorrq_u8(a, b); }
template <int N>
RB_INLINE PB pb_shr(PB a) {
  return vshrq_n_u8(a, N);
}
template <int N>
RB_INLINE PB pb_shl(PB a) {
  return vshlq_n_u8(a, N);
}
RB_INLINE PB pb_fifth(uint64_t x, int part) {
  static constexpr uint8_t bit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint8_t low = static_cast<uint8_t>(x >> (16 * part)), high = static_cast<uint8_t>(x >> (16 * part + 8));
  return vandq_u8(vtstq_u8(vcombine_u8(vdup_n_u8(low), vdup_n_u8(high)), vld1q_u8(bit)), vdupq_n_u8(16));
}

// sdot is signed by signed: weights of 8 bits are made signed and the offset is gone, narrower ones are positive anyway.
constexpr int kByteOffset = 0;
RB_INLINE PB pb_wide(PB stored) { return veorq_u8(stored, vdupq_n_u8(0x80)); }
template <int MaxQ>
RB_INLINE PI pb_dot(PI acc, PB w, PB a) {
  return vdotq_s32(acc, vreinterpretq_s8_u8(w), vreinterpretq_s8_u8(a));
}

}  // namespace rb::RB_NS
