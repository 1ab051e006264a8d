// unpack.h: sixteen outputs of a packed matrix of any format as float rows, the values that layout.h's unpack_row gives.
//
// Quants stand input by input with the outputs side by side; four bytes a lane are turned as one float would be, so that each output's
// inputs follow each other, and are converted afterwards.
#pragma once
#include "cpu/matmul_group.h"

namespace rb::RB_NS {

// Inputs begin.. of a tile to out[output * stride], `count` of them, rounded up to 16: zero behind k.
template <int Type>
RB_INLINE void unpack_float_tile(const uint8_t* tile, int64_t k, int64_t begin, int64_t count, float* out,
                                 int64_t stride) {
  for (int64_t i = 0; i < count; i += 16) {
    F v[16];
    const int64_t left = k - begin - i;
    if (left >= 16) {
      RB_UNROLL for (int j = 0; j < 16; ++j) v[j] =
          load_weights<Type>(tile + (begin + i + j) * kFormats[Type].packed_bytes);
    } else {
      for (int j = 0; j < 16; ++j)
        v[j] = j < left ? load_weights<Type>(tile + (begin + i + j) * kFormats[Type].packed_bytes) : set1(0.0f);
    }
    transpose(v);
    RB_UNROLL for (int j = 0; j < 16; ++j) store(out + j * stride + i, v[j]);
  }
}

template <int Type>
RB_INLINE F quant_values(const uint8_t* q) {
  using T = Traits<Type, false>;
  const bool is_signed = T::shape.wide && kByteOffset == 0;
  const F value = is_signed ? load_s8(reinterpret_cast<const int8_t*>(q)) : load_u8(q);
  return T::offset != 0 ? sub(value, set1(static_cast<float>(T::offset))) : value;
}

template <int Type>
RB_INLINE void unpack_group(const uint8_t* block, const uint8_t* group, float* out, int64_t stride) {
  using T = Traits<Type, false>;
  Group g;
  load_quants<Type>(group, g.w);
  load_scales<Type>(block, group, g);
  F turned[16];
  RB_UNROLL for (int s = 0; s < 8; ++s) turned[s] = float_bits(g.w[s]), turned[s + 8] = set1(0.0f);
  transpose(turned);
  float d[2][16], m[16];
  store(d[0], g.d[0]);
  store(d[1], T::halves ? g.d[1] : g.d[0]);
  if constexpr (T::minimum) store(m, g.m);
  for (int j = 0; j < 16; ++j) {
    uint8_t q[64];
    store(reinterpret_cast<float*>(q), turned[j]);
    RB_UNROLL for (int h = 0; h < 2; ++h) {
      const F value = quant_values<Type>(q + 16 * h), scale = set1(d[h][j]);
      store(out + j * stride + 16 * h, T::minimum ? fma(scale, value, set1(m[j])) : mul(scale, value));
    }
  }
}

// begin and count are multiples of 32.
template <int Type>
RB_INLINE void unpack_block_tile(const uint8_t* tile, int64_t begin, int64_t count, float* out, int64_t stride) {
  constexpr int per_block = kFormats[Type].block / 32;
  constexpr TileShape shape = kTiles[Type];
  for (int64_t i = 0; i < count; i += 32) {
    const int64_t g = (begin + i) / 32;
    const uint8_t* block = tile + g / per_block * kFormats[Type].packed_bytes;
    unpack_group<Type>(block, block + shape.first_group + g % per_block * shape.group_bytes, out + i, stride);
  }
}

using UnpackTile = void (*)(const uint8_t* tile, int64_t k, int64_t begin, int64_t count, float* out, int64_t stride);

template <int Type>
static void unpack_tile(const uint8_t* tile, int64_t k, int64_t begin, int64_t count, float* out, int64_t stride) {
  if constexpr (is_float(Type))
    unpack_float_tile<Type>(tile, k, begin, count, out, stride);
  else
    unpack_block_tile<Type>(tile, begin, count, out, stride);
}

static UnpackTile unpack_of(int32_t type) {
  static constexpr UnpackTile table[RB_WEIGHT_TYPES] = {
      unpack_tile<RB_F32>,  unpack_tile<RB_F16>,  unpack_tile<RB_BF16>, unpack_tile<RB_Q8_0>,
      unpack_tile<RB_Q4_0>, unpack_tile<RB_Q4_1>, unpack_tile<RB_Q5_0>, unpack_tile<RB_Q5_1>,
      unpack_tile<RB_Q4_K>, unpack_tile<RB_Q5_K>, unpack_tile<RB_Q6_K>};
  return table[type];
}

}  // namespace rb::RB_NS
