// elementwise.h: add, softcap, select, and the gated activation; every element depends on its own inputs alone.
#pragma once
#include "cpu/math.h"
#include "cpu/quantize.h"

namespace rb::RB_NS {

static int64_t add_tasks(const rb_args* a, const rb_step* step) {
  return row_tasks(domain_rows(step, a->add.domain), a->add.n);
}

static void add_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_add& a = args->add;
  const RowRange rows = rows_of(domain_rows(step, a.domain), a.n, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float *x = a.a + r * a.a_stride, *z = a.b + r * a.b_stride;
    float* y = a.y + r * a.y_stride;
    for (int i = 0; i < a.n; i += 16) store(y + i, add(load(x + i, a.n - i), load(z + i, a.n - i)), a.n - i);
  }
}

static int64_t softcap_tasks(const rb_args* a, const rb_step* step) {
  return row_tasks(domain_rows(step, a->softcap.domain), a->softcap.n);
}

static void softcap_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_softcap& a = args->softcap;
  const RowRange rows = rows_of(domain_rows(step, a.domain), a.n, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = a.x + r * a.x_stride;
    float* y = a.y + r * a.y_stride;
    for (int i = 0; i < a.n; i += 16) store(y + i, softcap(load(x + i, a.n - i), a.cap), a.n - i);
  }
}

static int64_t select_tasks(const rb_args* a, const rb_step* step) { return row_tasks(step->logit_rows, a->select.n); }

static void select_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_select& a = args->select;
  const RowRange rows = rows_of(step->logit_rows, a.n, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = a.x + static_cast<int64_t>(step->logit_index[r]) * a.x_stride;
    memcpy(a.y + r * a.y_stride, x, static_cast<size_t>(a.n) * sizeof(float));
  }
}

// y or yq may be NULL.
template <int Act>
RB_INLINE void gated_row(const float* gate, const float* up, float* y, uint8_t* yq, int n, int group) {
  float own[256];
  for (int i = 0; i < n; i += 256) {  // sixteen groups, as they are quantized
    const int count = n - i < 256 ? n - i : 256;
    float* to = y != nullptr ? y + i : own;
    for (int j = 0; j < count; j += 16) {
      const F x = load(gate + i + j, count - j);
      store(to + j, mul(Act == 0 ? silu(x) : gelu(x), load(up + i + j, count - j)), count - j);
    }
    if (yq != nullptr) QuantizedRow::at(yq, n, group).put(i / 16, to, count / 16);
  }
}

static int64_t gated_tasks(const rb_args* a, const rb_step* step) {
  return row_tasks(domain_rows(step, a->gated.domain), a->gated.n);
}

static void gated_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_gated& a = args->gated;
  const RowRange rows = rows_of(domain_rows(step, a.domain), a.n, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = a.x + r * a.x_stride;
    float* y = a.y == nullptr ? nullptr : a.y + r * a.y_stride;
    uint8_t* yq = a.yq == nullptr ? nullptr : a.yq + static_cast<size_t>(r) * rb_quantized_stride(a.n);
    if (a.act == 0)
      gated_row<0>(x, x + a.n, y, yq, a.n, a.group);
    else
      gated_row<1>(x, x + a.n, y, yq, a.n, a.group);
  }
}

}  // namespace rb::RB_NS
