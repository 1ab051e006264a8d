// rope_append.h: a row's q rotated, its k rotated into the cache, its v beside it. What the three launches do, without their meetings.
#pragma once
#include "cpu/append.h"
#include "cpu/rope.h"

namespace rb::RB_NS {

RB_INLINE int64_t rope_append_width(const rb_rope_append& a) {
  return static_cast<int64_t>(a.rope.heads + 2 * a.append.kv_heads) * a.append.head_dim;
}

static int64_t rope_append_tasks(const rb_args* a, const rb_step* step) {
  return row_tasks(step->rows, rope_append_width(a->rope_append));
}

static size_t rope_append_scratch(const rb_args* a, int32_t) {
  return 2 * static_cast<size_t>(a->rope_append.append.head_dim) * sizeof(float);
}

static void rope_append_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void* scratch) {
  const rb_rope& q = args->rope_append.rope;
  const rb_append& a = args->rope_append.append;
  float *key = static_cast<float*>(scratch), *own = key + a.head_dim;
  const RowRange rows = rows_of(step->rows, rope_append_width(args->rope_append), begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int32_t position = step->positions[r];
    assert(position >= 0 && position < q.table_rows);
    const float* angles = q.table + static_cast<int64_t>(position) * q.dim;
    rotate_row(q, r, angles);
    uint8_t* layer = a.cache + block_of(step, step->sequences[r], position, a.blocks) * a.block_stride;
    for (int64_t h = 0; h < a.kv_heads; ++h) {
      rotate_head(a.k + r * a.k_stride + h * a.head_dim, key, angles, a.head_dim, q.dim);
      append_head(a.kv_type, layer, a.kv_heads, h, a.head_dim, position % kBlock, key,
                  a.v + r * a.v_stride + h * a.head_dim, own);
    }
  }
}

}  // namespace rb::RB_NS
