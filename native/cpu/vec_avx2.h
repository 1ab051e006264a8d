// vec_avx2.h: two registers make the vector (AVX2, FMA, F16C).
#pragma once
#include <immintrin.h>

namespace rb::RB_NS {

constexpr int kLanes = 8;
constexpr int kRegisterRows = 4;  // rows matmul keeps in flight: more rows would only spill
using PF = __m256;
using PI = __m256i;
using PB = __m256i;
using PM = __m256;

RB_INLINE PF p_load(const float* x) { return _mm256_loadu_ps(x); }
RB_INLINE void p_store(float* x, PF v) { _mm256_storeu_ps(x, v); }
RB_INLINE PF p_set1(float x) { return _mm256_set1_ps(x); }
RB_INLINE PF p_add(PF a, PF b) { return _mm256_add_ps(a, b); }
RB_INLINE PF p_sub(PF a, PF b) { return _mm256_sub_ps(a, b); }
RB_INLINE PF p_mul(PF a, PF b) { return _mm256_mul_ps(a, b); }
RB_INLINE PF p_div(PF a, PF b) { return _mm256_div_ps(a, b); }
RB_INLINE PF p_sqrt(PF a) { return _mm256_sqrt_ps(a); }
RB_INLINE PF p_fma(PF a, PF b, PF c) { return _mm256_fmadd_ps(a, b, c); }
RB_INLINE PF p_min(PF a, PF b) { return _mm256_min_ps(a, b); }
RB_INLINE PF p_max(PF a, PF b) { return _mm256_max_ps(a, b); }
RB_INLINE PM p_lt(PF a, PF b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
RB_INLINE PF p_select(PM m, PF a, PF b) { return _mm256_blendv_ps(b, a, m); }
RB_INLINE PI p_bits(PF a) { return _mm256_castps_si256(a); }
RB_INLINE PF p_float_of(PI a) { return _mm256_castsi256_ps(a); }
RB_INLINE __m128i load_16(const void* x) { return _mm_loadu_si128(static_cast<const __m128i*>(x)); }
RB_INLINE PF p_load_half(const uint16_t* x) { return _mm256_cvtph_ps(load_16(x)); }
RB_INLINE void p_store_half(uint16_t* x, PF v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(x), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
RB_INLINE PF p_load_bf16(const uint16_t* x) {
  return p_float_of(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(x)), 16));
}

RB_INLINE PI pi_set1(int32_t x) { return _mm256_set1_epi32(x); }
RB_INLINE PI pi_load(const int32_t* x) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)); }
RB_INLINE PI pi_load_u8(const uint8_t* x) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x)));
}
RB_INLINE PI pi_load_s8(const int8_t* x) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x)));
}
RB_INLINE void pi_store(int32_t* x, PI v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(x), v); }
RB_INLINE PI pi_add(PI a, PI b) { return _mm256_add_epi32(a, b); }
RB_INLINE PI pi_sub(PI a, PI b) { return _mm256_sub_epi32(a, b); }
RB_INLINE PI pi_and(PI a, PI b) { return _mm256_and_si256(a, b); }
RB_INLINE PI pi_max(PI a, PI b) { return _mm256_max_epi32(a, b); }
template <int N>
RB_INLINE PI pi_shl(PI a) {
  return _mm256_slli_epi32(a, N);
}
template <int N>
RB_INLINE PI pi_sar(PI a) {
  return _mm256_srai_epi32(a, N);
}
RB_INLINE PF pi_to_float(PI a) { return _mm256_cvtepi32_ps(a); }
RB_INLINE PI p_to_int(PF x) { return _mm256_cvtps_epi32(x); }
RB_INLINE void pi_store_s8(int8_t* x, PI v) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(x), _mm_packs_epi16(words, words));
}
// Lane l with l+4, then l+2, l+1.
RB_INLINE float p_sum(PF v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
RB_INLINE float p_largest(PF v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
RB_INLINE int32_t pi_reduce_max(PI a) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}
RB_INLINE int32_t pi_reduce_add(PI a) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

RB_INLINE PB pb_load(const uint8_t* x) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)); }
RB_INLINE PB pb_set4(const int8_t* x) {
  int32_t v;
  __builtin_memcpy(&v, x, 4);
  return _mm256_set1_epi32(v);
}
RB_INLINE PB pb_set1(uint8_t x) { return _mm256_set1_epi8(static_cast<char>(x)); }
RB_INLINE PB pb_and(PB a, PB b) { return _mm256_and_si256(a, b); }
RB_INLINE PB pb_or(PB a, PB b) { return _mm256_or_si256(a, b); }
template <int N>
RB_INLINE PB pb_shr(PB a) {
  return _mm256_srli_epi16(a, N);
}
template <int N>
RB_INLINE PB pb_shl(PB a) {
  return _mm256_slli_epi16(a, N);
}
// Every byte gets the byte that holds its bit, then only that bit is kept and compared.
RB_INLINE PB pb_fifth(uint64_t x, int part) {
  const __m256i spread =
      _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ull));
  const __m256i own =
      _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int32_t>(x >> (32 * part))), spread), bit);
  return _mm256_and_si256(_mm256_cmpeq_epi8(own, bit), _mm256_set1_epi8(16));
}

// maddubs adds two products in 16 bits and saturates: 2 x 63 x 127 = 16002 fits, 2 x 255 x 127 does not. So weights of 8 bits are made
// signed (the offset is gone) and their sign is moved to the activation: 2 x 128 x 127 = 32512 fits.
constexpr int kByteOffset = 0;
RB_INLINE PB pb_wide(PB stored) { return _mm256_xor_si256(stored, _mm256_set1_epi8(static_cast<char>(0x80))); }
template <int MaxQ>
RB_INLINE PI pb_dot(PI acc, PB w, PB a) {
  const __m256i pairs =
      MaxQ > 127 ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w)) : _mm256_maddubs_epi16(w, a);
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

}  // namespace rb::RB_NS
