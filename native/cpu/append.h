// append.h: the step's keys and values into the paged cache, as f16 (round to nearest even).
//
// Rows are different positions, so tasks never write the same element.
#pragma once
#include <assert.h>

#include "cpu/rows.h"

namespace rb::RB_NS {

RB_INLINE int64_t block_of(const rb_step* step, int32_t sequence, int32_t position, int32_t blocks) {
  const int32_t block = step->tables[static_cast<int64_t>(sequence) * step->table_stride + position / 16];
  assert(block >= 0 && block < blocks);
  return block;
}

static int64_t append_tasks(const rb_args* a, const rb_step* step) {
  return row_tasks(step->rows, static_cast<int64_t>(a->append.kv_heads) * a->append.head_dim);
}

RB_INLINE void append_row(const rb_append& a, const float* k, const float* v, int64_t block, int slot) {
  for (int64_t h = 0; h < a.kv_heads; ++h) {
    const int64_t head = block * a.kv_heads + h;
    uint16_t* keys = a.keys + head * a.head_dim * 16 + slot;
    uint16_t* values = a.values + (head * 16 + slot) * a.head_dim;
    for (int d = 0; d < a.head_dim; d += 16) {
      uint16_t half[16];
      const int n = a.head_dim - d < 16 ? a.head_dim - d : 16;
      store_half(half, load(k + h * a.head_dim + d, n));
      for (int i = 0; i < n; ++i) keys[(d + i) * 16] = half[i];
      store_half(half, load(v + h * a.head_dim + d, n));
      memcpy(values + d, half, static_cast<size_t>(n) * 2);
    }
  }
}

static void append_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_append& a = args->append;
  const RowRange rows = rows_of(step->rows, static_cast<int64_t>(a.kv_heads) * a.head_dim, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int32_t position = step->positions[r];
    const int64_t block = block_of(step, step->sequences[r], position, a.blocks);
    append_row(a, a.k + r * a.k_stride, a.v + r * a.v_stride, block, position % 16);
  }
}

}  // namespace rb::RB_NS
