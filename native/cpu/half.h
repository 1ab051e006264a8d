// half.h: 16-bit floats <-> f32 in integer arithmetic, the specification of what the hardware does.
//
// To f16: round to nearest even, overflow to infinity, gradual underflow, a NaN stays a quiet NaN with the upper payload.
#pragma once
#include <stdint.h>
#include <string.h>

namespace rb {

static inline uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}

static inline float float_of(uint32_t u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}

static inline float bf16_to_f32(uint16_t b) { return float_of(static_cast<uint32_t>(b) << 16); }

static inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, body = h & 0x7fffu;
  if (body >= 0x7c00u) {  // infinity, or a NaN made quiet
    return float_of(sign | 0x7f800000u | (body & 0x3ffu) << 13 | (body > 0x7c00u ? 0x00400000u : 0u));
  }
  if (body >= 0x0400u) return float_of(sign | ((body << 13) + 0x38000000u));
  const float magnitude = static_cast<float>(body) * 0x1p-24f;  // subnormal: exact
  return float_of(sign | bits_of(magnitude));
}

static inline uint16_t f32_to_f16(float x) {
  const uint32_t u = bits_of(x), body = u & 0x7fffffffu;
  const uint16_t sign = static_cast<uint16_t>(u >> 16 & 0x8000u);
  if (body > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (body >> 13 & 0x3ffu));
  if (body >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and above round to infinity
  if (body >= 0x38800000u) {                       // normal: add half of the last place, minus one when even
    return static_cast<uint16_t>(sign | ((body - 0x38000000u + 0xfffu + (body >> 13 & 1u)) >> 13));
  }
  // Subnormal: adding 0.5 leaves the 24 upper bits, whose last place is 2^-24, rounded to nearest even by the adder.
  return static_cast<uint16_t>(sign | (bits_of(float_of(body) + 0.5f) - 0x3f000000u));
}

}  // namespace rb
