// vec_avx512.h: one register is the whole vector (AVX-512 F, BW, DQ, VL, VNNI).
#pragma once
#include <immintrin.h>

namespace rb::RB_NS {

constexpr int kLanes = 16;
constexpr int kRegisterRows = 8;  // rows matmul keeps in flight: 8 weight, 8 sum and 8 dot registers of 32
using PF = __m512;
using PI = __m512i;
using PB = __m512i;
using PM = __mmask16;

RB_INLINE PF p_load(const float* x) { return _mm512_loadu_ps(x); }
RB_INLINE void p_store(float* x, PF v) { _mm512_storeu_ps(x, v); }
RB_INLINE PF p_set1(float x) { return _mm512_set1_ps(x); }
RB_INLINE PF p_add(PF a, PF b) { return _mm512_add_ps(a, b); }
RB_INLINE PF p_sub(PF a, PF b) { return _mm512_sub_ps(a, b); }
RB_INLINE PF p_mul(PF a, PF b) { return _mm512_mul_ps(a, b); }
RB_INLINE PF p_div(PF a, PF b) { return _mm512_div_ps(a, b); }
RB_INLINE PF p_sqrt(PF a) { return _mm512_sqrt_ps(a); }
RB_INLINE PF p_fma(PF a, PF b, PF c) { return _mm512_fmadd_ps(a, b, c); }
RB_INLINE PF p_min(PF a, PF b) { return _mm512_min_ps(a, b); }
RB_INLINE PF p_max(PF a, PF b) { return _mm512_max_ps(a, b); }
RB_INLINE PM p_lt(PF a, PF b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
RB_INLINE PF p_select(PM m, PF a, PF b) { return _mm512_mask_blend_ps(m, b, a); }
RB_INLINE PI p_bits(PF a) { return _mm512_castps_si512(a); }
RB_INLINE PF p_float_of(PI a) { return _mm512_castsi512_ps(a); }
RB_INLINE PF p_load_half(const uint16_t* x) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
RB_INLINE void p_store_half(uint16_t* x, PF v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(x), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
RB_INLINE PF p_load_bf16(const uint16_t* x) {
  return p_float_of(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))), 16));
}

RB_INLINE PI pi_set1(int32_t x) { return _mm512_set1_epi32(x); }
RB_INLINE PI pi_load(const int32_t* x) { return _mm512_loadu_si512(x); }
RB_INLINE PI pi_load_u8(const uint8_t* x) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}
RB_INLINE PI pi_load_s8(const int8_t* x) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}
RB_INLINE void pi_store(int32_t* x, PI v) { _mm512_storeu_si512(x, v); }
RB_INLINE PI pi_add(PI a, PI b) { return _mm512_add_epi32(a, b); }
RB_INLINE PI pi_sub(PI a, PI b) { return _mm512_sub_epi32(a, b); }
RB_INLINE PI pi_and(PI a, PI b) { return _mm512_and_si512(a, b); }
RB_INLINE PI pi_max(PI a, PI b) { return _mm512_max_epi32(a, b); }
template <int N>
RB_INLINE PI pi_shl(PI a) {
  return _mm512_slli_epi32(a, N);
}
template <int N>
RB_INLINE PI pi_sar(PI a) {
  return _mm512_srai_epi32(a, N);
}
RB_INLINE PF pi_to_float(PI a) { return _mm512_cvtepi32_ps(a); }
RB_INLINE PI p_to_int(PF x) { return _mm512_cvtps_epi32(x); }
RB_INLINE void pi_store_s8(int8_t* x, PI v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(x), _mm512_cvtepi32_epi8(v));
}
// Lane l with l+8, then l+4, l+2, l+1.
RB_INLINE float p_sum(PF v) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
RB_INLINE float p_largest(PF v) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
RB_INLINE int32_t pi_reduce_max(PI a) { return _mm512_reduce_max_epi32(a); }
RB_INLINE int32_t pi_reduce_add(PI a) { return _mm512_reduce_add_epi32(a); }

// Four times half of each register is added to the other half while two become one: 45 instructions for 16 registers, where 16
// reductions of one register take 130. Lane g of the result belongs to v[g].
#define RB_TRANSPOSED_REDUCTION
RB_INLINE PI pi_swap_pairs(PI v) { return _mm512_shuffle_epi32(v, _MM_PERM_CDAB); }
struct PiMax {
  static inline __attribute__((always_inline)) PI of(PI a, PI b) { return _mm512_max_epi32(a, b); }
};
struct PiAdd {
  static inline __attribute__((always_inline)) PI of(PI a, PI b) { return _mm512_add_epi32(a, b); }
};
template <class Op>
RB_INLINE PI pi_halves(PI a, PI b) {  // 256-bit halves: a, b
  return Op::of(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee));
}
template <class Op>
RB_INLINE PI pi_quarters(PI a, PI b) {  // 128-bit quarters: lower and upper half of a, then of b
  return Op::of(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
}
template <class Op>
RB_INLINE PI pi_reduce_each(const PI* v) {
  PI u[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) u[i] = pi_quarters<Op>(pi_halves<Op>(v[i], v[i + 4]), pi_halves<Op>(v[i + 8], v[i + 12]));
  const PI a = Op::of(_mm512_unpacklo_epi64(u[0], u[1]), _mm512_unpackhi_epi64(u[0], u[1]));
  const PI b = Op::of(_mm512_unpacklo_epi64(u[2], u[3]), _mm512_unpackhi_epi64(u[2], u[3]));
  const PF c = _mm512_castsi512_ps(a), d = _mm512_castsi512_ps(b);
  return Op::of(_mm512_castps_si512(_mm512_shuffle_ps(c, d, 0x88)), _mm512_castps_si512(_mm512_shuffle_ps(c, d, 0xdd)));
}

// v[i] lane j <-> v[j] lane i: pairs and quadruples of rows within 128 bits, then the quarters change places.
#define RB_TRANSPOSED_FLOATS
RB_INLINE void p_transpose(PF* v) {
  PF b[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512d low = _mm512_castps_pd(_mm512_unpacklo_ps(v[i], v[i + 1])),
                  high = _mm512_castps_pd(_mm512_unpackhi_ps(v[i], v[i + 1])),
                  next_low = _mm512_castps_pd(_mm512_unpacklo_ps(v[i + 2], v[i + 3])),
                  next_high = _mm512_castps_pd(_mm512_unpackhi_ps(v[i + 2], v[i + 3]));
    b[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, next_low));
    b[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, next_low));
    b[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high, next_high));
    b[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high, next_high));
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const PF even = _mm512_shuffle_f32x4(b[c], b[c + 4], 0x88), odd = _mm512_shuffle_f32x4(b[c], b[c + 4], 0xdd),
             last_even = _mm512_shuffle_f32x4(b[c + 8], b[c + 12], 0x88),
             last_odd = _mm512_shuffle_f32x4(b[c + 8], b[c + 12], 0xdd);
    v[c] = _mm512_shuffle_f32x4(even, last_even, 0x88);
    v[c + 4] = _mm512_shuffle_f32x4(odd, last_odd, 0x88);
    v[c + 8] = _mm512_shuffle_f32x4(even, last_even, 0xdd);
    v[c + 12] = _mm512_shuffle_f32x4(odd, last_odd, 0xdd);
  }
}

RB_INLINE PB pb_load(const uint8_t* x) { return _mm512_loadu_si512(x); }
RB_INLINE PB pb_set4(const int8_t* x) {
  int32_t v;
  __builtin_memcpy(&v, x, 4);
  return _mm512_set1_epi32(v);
}
RB_INLINE PB pb_set1(uint8_t x) { return _mm512_set1_epi8(static_cast<char>(x)); }
RB_INLINE PB pb_and(PB a, PB b) { return _mm512_and_si512(a, b); }
RB_INLINE PB pb_or(PB a, PB b) { return _mm512_or_si512(a, b); }
template <int N>
RB_INLINE PB pb_shr(PB a) {
  return _mm512_srli_epi16(a, N);
}
template <int N>
RB_INLINE PB pb_shl(PB a) {
  return _mm512_slli_epi16(a, N);
}
RB_INLINE PB pb_fifth(uint64_t bits, int) { return _mm512_maskz_mov_epi8(bits, _mm512_set1_epi8(16)); }

constexpr int kByteOffset = 128;  // dpbusd takes unsigned weights: Q8_0 enters as it is stored
RB_INLINE PB pb_wide(PB stored) { return stored; }
template <int MaxQ>
RB_INLINE PI pb_dot(PI acc, PB w, PB a) {
  return _mm512_dpbusd_epi32(acc, w, a);
}

}  // namespace rb::RB_NS
