// append.h: the step's keys and values into the paged cache, as f16 (round to nearest even), f32, or int8 with f16 scales.
//
// Rows are different positions, so tasks never write the same element. What is stored is a function of the head's vector alone.
#pragma once
#include "cpu/kv.h"

namespace rb::RB_NS {

// One head of one position in the cache: element d of a key lies kBlock apart from the next, of a value beside it.
struct Slot {
  uint8_t* head;  // the head's part of the block
  int slot;
};

RB_INLINE void put_half_key(const Slot& s, const float* x, int head_dim) {
  uint16_t* to = reinterpret_cast<uint16_t*>(s.head) + s.slot;
  for (int d = 0; d < head_dim; d += 16) {
    uint16_t half[16];
    const int n = head_dim - d < 16 ? head_dim - d : 16;
    store_half(half, load(x + d, n));
    for (int i = 0; i < n; ++i) to[(d + i) * kBlock] = half[i];
  }
}

RB_INLINE void put_float_key(const Slot& s, const float* x, int head_dim) {
  float* to = reinterpret_cast<float*>(s.head) + s.slot;
  for (int d = 0; d < head_dim; ++d) to[d * kBlock] = x[d];
}

RB_INLINE void put_half_value(const Slot& s, const float* x, int head_dim) {
  uint16_t* to = reinterpret_cast<uint16_t*>(s.head) + s.slot * head_dim;
  for (int d = 0; d < head_dim; d += 16) {
    uint16_t half[16];
    store_half(half, load(x + d, head_dim - d));
    memcpy(to + d, half, static_cast<size_t>(head_dim - d < 16 ? head_dim - d : 16) * 2);
  }
}

// Up to 32 dimensions: q and the f16 scale. d = f16(max|x| / 127), q = round_to_nearest_even(x * (1/d)) within -127..127 (a
// subnormal d is coarse). d = 0, q = 0 where all is too small; d = NaN, q = 0 where something is not finite.
RB_INLINE uint16_t quantize_group(const float* x, int n, int8_t* q) {
  const F a = load(x, n), b = n > 16 ? load(x + 16, n - 16) : set1(0.0f);
  const I sign = set1(INT32_MAX);
  const int32_t top = reduce_max(max(bit_and(bits(a), sign), bit_and(bits(b), sign)));
  float largest;
  memcpy(&largest, &top, 4);
  const bool finite = top < 0x7f800000;
  uint16_t half[16];
  store_half(half, set1(finite ? largest / 127.0f : __builtin_nanf("")));
  float scale[16];
  store(scale, load_half(half));
  const float inverse = finite && scale[0] > 0.0f ? 1.0f / scale[0] : 0.0f;
  const F by = set1(inverse), low = set1(-127.0f), high = set1(127.0f);
  const I none = set1(int32_t{0});
  store_s8(q, finite ? to_int(min(max(mul(a, by), low), high)) : none);
  store_s8(q + 16, finite ? to_int(min(max(mul(b, by), low), high)) : none);
  return half[0];
}

RB_INLINE void put_bytes(const Slot& s, const float* x, int head_dim, int stride) {
  int8_t* to = reinterpret_cast<int8_t*>(s.head) + (stride == 1 ? s.slot * head_dim : s.slot);
  uint16_t* scales = reinterpret_cast<uint16_t*>(s.head + head_dim * kBlock) + s.slot;
  for (int d = 0; d < head_dim; d += kGroup, scales += kBlock) {
    int8_t q[kGroup];
    const int n = head_dim - d < kGroup ? head_dim - d : kGroup;
    *scales = quantize_group(x + d, n, q);
    for (int i = 0; i < n; ++i) to[(d + i) * stride] = q[i];
  }
}

// Head `head` of a layer's part of a block (values stand behind all keys). own: [head_dim].
RB_INLINE void append_head(int32_t type, uint8_t* layer, int64_t kv_heads, int64_t head, int head_dim, int slot,
                           const float* k, const float* v, float* own) {
  const int64_t bytes = kv_head_bytes(type, head_dim);
  const Slot key{layer + head * bytes, slot}, value{layer + (kv_heads + head) * bytes, slot};
  if (type == RB_KV_F16) {
    put_half_key(key, k, head_dim);
    put_half_value(value, v, head_dim);
    return;
  }
  if (type == RB_KV_F32) {
    put_float_key(key, k, head_dim);
    memcpy(value.head + static_cast<size_t>(slot * head_dim) * sizeof(float), v,
           static_cast<size_t>(head_dim) * sizeof(float));
    return;
  }
  memcpy(own, k, static_cast<size_t>(head_dim) * sizeof(float));
  hadamard(own, head_dim);
  put_bytes(key, own, head_dim, kBlock);
  put_bytes(value, v, head_dim, 1);
}

static int64_t append_tasks(const rb_args* a, const rb_step* step) {
  return row_tasks(step->rows, static_cast<int64_t>(a->append.kv_heads) * a->append.head_dim);
}

static size_t append_scratch(const rb_args* a, int32_t) {
  return static_cast<size_t>(a->append.head_dim) * sizeof(float);
}

static void append_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void* scratch) {
  const rb_append& a = args->append;
  const RowRange rows = rows_of(step->rows, static_cast<int64_t>(a.kv_heads) * a.head_dim, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int32_t position = step->positions[r];
    uint8_t* layer = a.cache + block_of(step, step->sequences[r], position, a.blocks) * a.block_stride;
    for (int64_t h = 0; h < a.kv_heads; ++h) {
      append_head(a.kv_type, layer, a.kv_heads, h, a.head_dim, position % kBlock, a.k + r * a.k_stride + h * a.head_dim,
                  a.v + r * a.v_stride + h * a.head_dim, static_cast<float*>(scratch));
    }
  }
}

}  // namespace rb::RB_NS
