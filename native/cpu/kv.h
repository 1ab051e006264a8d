// kv.h: where a position's keys and values lie in the paged cache, and what a stored element stands for.
//
// Three forms with one interface: keys of a block are [head_dim][16 positions], values [16 positions][head_dim], so that a load is
// sixteen neighbours in both. An int8 head has its f16 scales behind it: [ceil(head_dim / 32)][16 positions].
#pragma once
#include <assert.h>

#include "cpu/layout.h"
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

struct FloatKV {
  static constexpr bool kScaled = false;
  static constexpr int kBytes = 4;
  static inline __attribute__((always_inline)) F load16(const uint8_t* x) {
    return load(reinterpret_cast<const float*>(x));
  }
};

struct ByteKV {
  static constexpr bool kScaled = true;
  static constexpr int kBytes = 1;
  static inline __attribute__((always_inline)) F load16(const uint8_t* x) {
    return load_s8(reinterpret_cast<const int8_t*>(x));
  }
};

// f16 scales of group g of a head: one for each of the block's positions.
RB_INLINE F kv_scales(const uint8_t* head, int head_dim, int g) {
  return load_half(reinterpret_cast<const uint16_t*>(head + (head_dim + 2 * g) * kBlock));
}

// Keys in int8 are turned by a Hadamard matrix before they are stored, and queries with them: H H = n, so (H q / n) . (H k) = q . k,
// and one large element, which would take the others of its group their precision, is spread over all. Butterflies over the largest
// power of two n that divides head_dim, halves first.
RB_INLINE int hadamard_size(int head_dim) { return head_dim & -head_dim; }

static inline void hadamard(float* x, int head_dim) {
  for (int half = hadamard_size(head_dim) / 2; half > 0; half /= 2) {
    for (int i = 0; i < head_dim; i += 2 * half) {
      for (int j = i; j < i + half; ++j) {
        const float a = x[j], b = x[j + half];
        x[j] = a + b;
        x[j + half] = a - b;
      }
    }
  }
}

// Sixteen of them side by side, x[head_dim][16], divided by n.
static inline void hadamard_lanes(float* x, int head_dim) {
  const int n = hadamard_size(head_dim);
  for (int half = n / 2; half > 0; half /= 2) {
    for (int i = 0; i < head_dim; i += 2 * half) {
      for (int j = i; j < i + half; ++j) {
        float *to = x + 16 * j, *other = to + 16 * half;
        const F a = load(to), b = load(other);
        store(to, add(a, b));
        store(other, sub(a, b));
      }
    }
  }
  const F by = set1(1.0f / static_cast<float>(n));
  for (int d = 0; d < head_dim; ++d) store(x + 16 * d, mul(load(x + 16 * d), by));
}

RB_INLINE int64_t block_of(const rb_step* step, int32_t sequence, int32_t position, int32_t blocks) {
  const int32_t block = step->tables[static_cast<int64_t>(sequence) * step->table_stride + position / kBlock];
  assert(block >= 0 && block < blocks);
  return block;
}

}  // namespace rb::RB_NS
