// kv.h: where a position's keys and values lie in the paged cache, and what a stored element stands for.
//
// Two forms with one interface: keys of a block are [head_dim][16 positions], values [16 positions][head_dim], so that a load is
// sixteen neighbours in both. An int8 head has its f16 scales behind it: [ceil(head_dim / 32)][16 positions].
#pragma once
#include <assert.h>

#include "cpu/rows.h"

namespace rb::RB_NS {

constexpr int kBlock = 16;           // positions of a block: one vector of scores
constexpr int kGroup = RB_KV_GROUP;  // dimensions that share a scale

struct HalfKV {
  static constexpr bool kScaled = false;
  static constexpr int kBytes = 2;  // an element
  static inline __attribute__((always_inline)) F load16(const uint8_t* x) {
    return load_half(reinterpret_cast<const uint16_t*>(x));
  }
};

struct ByteKV {
  static constexpr bool kScaled = true;
  static constexpr int kBytes = 1;
  static inline __attribute__((always_inline)) F load16(const uint8_t* x) {
    return load_s8(reinterpret_cast<const int8_t*>(x));
  }
};

RB_INLINE int64_t kv_head_bytes(int32_t type, int64_t head_dim) {
  return type == RB_KV_F16 ? head_dim * kBlock * 2 : head_dim * kBlock + (head_dim + kGroup - 1) / kGroup * kBlock * 2;
}

// f16 scales of group g of a head: one for each of the block's positions.
RB_INLINE F kv_scales(const uint8_t* head, int head_dim, int g) {
  return load_half(reinterpret_cast<const uint16_t*>(head + (head_dim + 2 * g) * kBlock));
}

RB_INLINE int64_t block_of(const rb_step* step, int32_t sequence, int32_t position, int32_t blocks) {
  const int32_t block = step->tables[static_cast<int64_t>(sequence) * step->table_stride + position / kBlock];
  assert(block >= 0 && block < blocks);
  return block;
}

}  // namespace rb::RB_NS
