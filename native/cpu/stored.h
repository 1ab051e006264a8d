// stored.h: one row's 32 inputs out of a stored block, in the plainest form: a byte a quant, scales as they stand.
//
// Facts of the block formats: ggml's quantized types as written in the GGUF specification and gguf-py's quants module.
#pragma once
#include <stdint.h>
#include <string.h>

#include "cpu/layout.h"

namespace rb {

struct StoredGroup {
  uint8_t q[32];    // unsigned quants (Q8_0: +128)
  uint16_t d, m;    // f16 bits: scale and minimum (K formats: d and dmin of the super-block)
  uint8_t sc, mn;   // K formats: scale (Q6_K: of inputs 0..15, signed) and minimum of the group
  uint8_t sc_high;  // Q6_K: scale of inputs 16..31, signed
};

inline uint16_t u16_at(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }

// Elements j and j + 16 share a byte.
inline void nibbles(const uint8_t* p, uint8_t* q) {
  for (int j = 0; j < 16; ++j) {
    q[j] = p[j] & 15;
    q[j + 16] = p[j] >> 4;
  }
}

inline void add_fifth_bits(const uint8_t* p, uint8_t* q) {
  for (int j = 0; j < 32; ++j) q[j] = static_cast<uint8_t>(q[j] | (p[j / 8] >> j % 8 & 1) << 4);
}

// 6-bit scales and minima of 8 groups in 12 bytes: the low halves whole in bytes 0-7, the upper groups' high bits above them.
inline void k_scales(const uint8_t* p, int g, StoredGroup& out) {
  if (g < 4) {
    out.sc = p[g] & 63;
    out.mn = p[g + 4] & 63;
  } else {
    out.sc = static_cast<uint8_t>((p[g + 4] & 15) | p[g - 4] >> 6 << 4);
    out.mn = static_cast<uint8_t>(p[g + 4] >> 4 | p[g] >> 6 << 4);
  }
}

// Groups 2c and 2c+1 are the low and high nibbles of the same 32 bytes.
inline void k_nibbles(const uint8_t* p, int g, uint8_t* q) {
  for (int j = 0; j < 32; ++j) q[j] = p[g / 2 * 32 + j] >> (g % 2 * 4) & 15;
}

inline void q6_group(const uint8_t* b, int g, StoredGroup& out) {
  const uint8_t *low = b + g / 4 * 64 + g % 2 * 32, *high = b + 128 + g / 4 * 32;
  const int quarter = g % 4;
  for (int j = 0; j < 32; ++j) {
    out.q[j] = static_cast<uint8_t>((low[j] >> (quarter / 2 * 4) & 15) | (high[j] >> (2 * quarter) & 3) << 4);
  }
  out.sc = b[192 + 2 * g];
  out.sc_high = b[193 + 2 * g];
  out.d = u16_at(b + 208);
}

// Group g (32 inputs) of a stored row of a block format.
inline StoredGroup stored_group(int32_t type, const uint8_t* row, int64_t g) {
  const Format& f = kFormats[type];
  const int groups = f.block / 32, in = static_cast<int>(g % groups);
  const uint8_t* b = row + g / groups * f.stored_bytes;
  StoredGroup out{};
  out.d = u16_at(b);
  switch (type) {
    case RB_Q8_0:
      for (int j = 0; j < 32; ++j) out.q[j] = b[2 + j] ^ 0x80;
      break;
    case RB_Q4_0:
      nibbles(b + 2, out.q);
      break;
    case RB_Q4_1:
      out.m = u16_at(b + 2);
      nibbles(b + 4, out.q);
      break;
    case RB_Q5_0:
      nibbles(b + 6, out.q);
      add_fifth_bits(b + 2, out.q);
      break;
    case RB_Q5_1:
      out.m = u16_at(b + 2);
      nibbles(b + 8, out.q);
      add_fifth_bits(b + 4, out.q);
      break;
    case RB_Q4_K:
      out.m = u16_at(b + 2);
      k_scales(b + 4, in, out);
      k_nibbles(b + 16, in, out.q);
      break;
    case RB_Q5_K:
      out.m = u16_at(b + 2);
      k_scales(b + 4, in, out);
      k_nibbles(b + 48, in, out.q);
      for (int j = 0; j < 32; ++j) out.q[j] = static_cast<uint8_t>(out.q[j] | (b[16 + j] >> in & 1) << 4);
      break;
    default:
      q6_group(b, in, out);  // RB_Q6_K
  }
  return out;
}

}  // namespace rb
