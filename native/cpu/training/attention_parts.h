// attention_parts.h: how the sequences of a step are cut among the tasks of attention's gradient (rebar_training.h has the law).
#pragma once
#include <assert.h>

#include "cpu/rows.h"

namespace rb::RB_NS {

// Rows of a sequence that a task goes through at a stretch.
struct Run {
  int64_t begin, end;
};

// Row 0 of a sequence in the step, its rows, and how many parts they have.
struct Sequence {
  const rb_attention_gradient* a;
  const rb_step* step;
  int64_t row, rows, kv_head;

  int64_t parts() const { return 1 + rb_attention_parts(static_cast<int32_t>(rows)); }
  Run run(int64_t number) const {
    const int64_t count = (rows + 2 * parts() - 1) / (2 * parts()), begin = number * count;
    return {begin, begin + count < rows ? begin + count : rows};
  }
  // Rows whose positions part t sees.
  int64_t seen(int64_t t) const { return run(2 * parts() - 1 - t).end; }
};

// Where dk and dv of row 0 and the task's head lie.
struct Sums {
  float *dk, *dv;
  int64_t dk_stride, dv_stride;
};

RB_INLINE int64_t part_values(const rb_attention_gradient& a) { return 2 * int64_t{a.kv_heads} * a.head_dim; }

RB_INLINE Sums sums_of(const Sequence& s, int64_t part) {
  const rb_attention_gradient& a = *s.a;
  const int64_t at = s.kv_head * a.head_dim;
  if (part == 0) return {a.dk + s.row * a.dk_stride + at, a.dv + s.row * a.dv_stride + at, a.dk_stride, a.dv_stride};
  const int64_t stride = part_values(a);
  float* own = a.parts + ((part - 1) * s.step->rows + s.row) * stride + at;
  return {own, own + stride / 2, stride, stride};
}

// The sequence that begins at a row of the step.
RB_INLINE Sequence sequence_at(const rb_attention_gradient& a, const rb_step* step, int64_t row) {
  int64_t rows = 1;
  while (row + rows < step->rows && step->sequences[row + rows] == step->sequences[row]) ++rows;
  assert(step->positions[row] == 0 && rows <= a.max_positions);
  return {&a, step, row, rows, 0};
}

}  // namespace rb::RB_NS
