// matmul_group.h: sixteen outputs x 32 inputs of any block format, ready for the dot product, and what of the arithmetic all products
// share.
#pragma once
#include "cpu/rows.h"
#include "cpu/tiles.h"

namespace rb::RB_NS {

// Weights come from memory in one stream. One or two rows eat it as fast as the hardware reads ahead (39 of 41 GB/s with two
// threads; asking as well costs a tenth); from three rows on a group takes so long that the hardware stops looking, and its
// lines are asked for 2 KB early, about 80 ns at 25 GB/s: a fifth of the time of eight rows.
constexpr int kPrefetchBytes = 2048, kPrefetchRows = 3;
RB_INLINE void prefetch(const uint8_t* p) { __builtin_prefetch(p, 0, 3); }

// A group of 16 outputs x 32 inputs, ready for the dot product: w[s] holds inputs 4s..4s+3 of every output.
struct Group {
  B w[8];
  F d[2];  // scale of inputs 0..15 and 16..31; only Q6_K tells them apart
  F m;
};

// Whole: activations with one scale for all 32 inputs of a group.
template <int Type, bool Whole>
struct Traits {
  static constexpr TileShape shape = kTiles[Type];
  static constexpr bool minimum = shape.m >= 0;
  static constexpr bool halves = Type == RB_Q6_K;
  static constexpr int max_q = shape.wide ? 255 : shape.upper >= 0 ? 63 : shape.fifth >= 0 ? 31 : 15;
  static constexpr int offset = Type == RB_Q8_0   ? kByteOffset
                                : Type == RB_Q4_0 ? 8
                                : Type == RB_Q5_0 ? 16
                                : Type == RB_Q6_K ? 32
                                                  : 0;
  // Panel bytes of a row's group: 32 quants, two scales (Whole: the scale and -kUnit of them), and the minimum's factor or
  // where dots begin: minus the offsets' part, plus kUnitBits when Whole.
  static constexpr int extras = minimum || Whole ? 1 : 2;
  static constexpr int panel_bytes = 32 + 8 + 4 * extras;
};

// Sixteen outputs' weights for one input, of a format of floats.
template <int Type>
RB_INLINE F load_weights(const uint8_t* w) {
  if constexpr (Type == RB_F32)
    return load(reinterpret_cast<const float*>(w));
  else if constexpr (Type == RB_F16)
    return load_half(reinterpret_cast<const uint16_t*>(w));
  else
    return load_bf16(reinterpret_cast<const uint16_t*>(w));
}

template <int Type>
RB_INLINE void load_quants(const uint8_t* group, B* w) {
  constexpr TileShape t = kTiles[Type];
  if constexpr (t.wide) {
    RB_UNROLL for (int s = 0; s < 8; ++s) w[s] = wide_bytes(load_bytes(group + 64 * s));
    return;
  }
  const B low = set1_bytes(15);
  RB_UNROLL for (int s = 0; s < 4; ++s) {
    const B both = load_bytes(group + 64 * s);
    w[s] = bit_and(both, low);
    w[s + 4] = bit_and(shr<4>(both), low);
  }
  if constexpr (t.fifth >= 0) {
    RB_UNROLL for (int s = 0; s < 8; ++s) w[s] = bit_or(w[s], fifth_bits(group + t.fifth + 8 * s));
  }
  if constexpr (t.upper >= 0) {
    const B two = set1_bytes(0x30);
    RB_UNROLL for (int h = 0; h < 2; ++h) {
      const B upper = load_bytes(group + t.upper + 64 * h);
      w[h] = bit_or(w[h], bit_and(shl<4>(upper), two));
      w[h + 2] = bit_or(w[h + 2], bit_and(shl<2>(upper), two));
      w[h + 4] = bit_or(w[h + 4], bit_and(upper, two));
      w[h + 6] = bit_or(w[h + 6], bit_and(shr<2>(upper), two));
    }
  }
}

template <int Type>
RB_INLINE void load_scales(const uint8_t* block, const uint8_t* group, Group& out) {
  constexpr TileShape t = kTiles[Type];
  const F d = load_half(reinterpret_cast<const uint16_t*>(block + t.d));
  out.d[0] = d;
  if constexpr (t.upper >= 0) {
    out.d[0] = mul(d, load_s8(reinterpret_cast<const int8_t*>(group + t.sc)));
    out.d[1] = mul(d, load_s8(reinterpret_cast<const int8_t*>(group + t.sc + 16)));
  } else if constexpr (t.sc >= 0) {
    out.d[0] = mul(d, load_u8(group + t.sc));
  }
  if constexpr (t.m >= 0) {
    out.m = load_half(reinterpret_cast<const uint16_t*>(block + t.m));
    if constexpr (t.mn >= 0) out.m = sub(set1(0.0f), mul(out.m, load_u8(group + t.mn)));
  }
}

template <class T>
RB_INLINE F add_minimum(F acc, const Group& w, const int32_t* extra) {
  if constexpr (T::minimum) {
    float factor;
    memcpy(&factor, extra, 4);
    acc = fma(w.m, set1(factor), acc);
  }
  return acc;
}

template <bool Whole>
RB_INLINE float minimum_factor(const float* d, const int32_t* sum) {
  if constexpr (Whole) return d[0] * static_cast<float>(sum[0] + sum[1]);
  const float low = d[0] * static_cast<float>(sum[0]);
  return low + d[1] * static_cast<float>(sum[1]);
}

// A dot D that begins at the bits of kUnit = 1.5 2^23 ends as the float kUnit + D, for |D| < 2^22 (it is at most 32 * 128 * 127).
// Scales for 32 inputs have 22 bits, so kUnit dx is exact and fma(kUnit + D, dx, -kUnit dx) is D dx rounded once: what a
// conversion and a product would give, in one instruction of eleven a row and group instead of two of twelve.
constexpr float kUnit = 12582912.0f;
constexpr int32_t kUnitBits = 0x4b400000;

}  // namespace rb::RB_NS
