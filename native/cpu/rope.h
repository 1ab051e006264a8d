// rope.h: rotary position embedding (Su et al., arXiv:2104.09864) on pairs (i, i + dim/2) of each head.
//
// y0 = fma(-x1, sin, x0 cos), y1 = fma(x1, cos, x0 sin). Elements dim.. of a head are copied. In place allowed.
#pragma once
#include <assert.h>

#include "cpu/rows.h"

namespace rb::RB_NS {

RB_INLINE void rotate_head(const float* x, float* y, const float* angles, int head_dim, int dim) {
  const int half = dim / 2;
  for (int i = 0; i < half; i += 16) {
    const int n = half - i;
    const F c = load(angles + i, n), s = load(angles + half + i, n);
    const F x0 = load(x + i, n), x1 = load(x + half + i, n);
    store(y + i, fma(sub(set1(0.0f), x1), s, mul(x0, c)), n);
    store(y + half + i, fma(x1, c, mul(x0, s)), n);
  }
  if (x != y && dim < head_dim) memcpy(y + dim, x + dim, static_cast<size_t>(head_dim - dim) * sizeof(float));
}

RB_INLINE void rotate_row(const rb_rope& a, int64_t r, const float* angles) {
  for (int64_t h = 0; h < a.heads; ++h) {
    rotate_head(a.x + r * a.x_stride + h * a.head_dim, a.y + r * a.y_stride + h * a.head_dim, angles, a.head_dim,
                a.dim);
  }
}

static int64_t rope_tasks(const rb_args* a, const rb_step* step) {
  return row_tasks(step->rows, static_cast<int64_t>(a->rope.heads) * a->rope.head_dim);
}

static void rope_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_rope& a = args->rope;
  const RowRange rows = rows_of(step->rows, static_cast<int64_t>(a.heads) * a.head_dim, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int32_t position = step->positions[r];
    assert(position >= 0 && position < a.table_rows);
    rotate_row(a, r, a.table + static_cast<int64_t>(position) * a.dim);
  }
}

}  // namespace rb::RB_NS
