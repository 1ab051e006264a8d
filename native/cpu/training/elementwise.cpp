// The gradients whose elements depend on a few of their own, and sums over rows.
#include <assert.h>

#include "cpu/math.h"
#include "cpu/training/kernels.h"

namespace rb::RB_NS {

namespace {

// Sums over rows are cut by columns: 64 are a few cache lines of every row.
constexpr int64_t kColumns = 64;

int64_t column_tasks(int64_t rows, int64_t n) { return rows > 0 ? (n + kColumns - 1) / kColumns : 0; }

struct Columns {
  int begin, end;
};

Columns columns_of(int64_t n, int64_t begin, int64_t end) {
  const int64_t last = end * kColumns;
  return {static_cast<int>(begin * kColumns), static_cast<int>(last < n ? last : n)};
}

}  // namespace

int64_t sum_rows_tasks(const rb_args* a, const rb_step* step) {
  return column_tasks(domain_rows(step, a->sum_rows.domain), a->sum_rows.n);
}

void sum_rows_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_sum_rows& a = args->sum_rows;
  const int64_t rows = domain_rows(step, a.domain);
  const Columns c = columns_of(a.n, begin, end);
  for (int64_t r = 0; r < rows; ++r) {
    const float* dy = a.dy + r * a.dy_stride;
    for (int i = c.begin; i < c.end; i += 16)
      store(a.db + i, add(load(a.db + i, c.end - i), load(dy + i, c.end - i)), c.end - i);
  }
}

int64_t embed_gradient_tasks(const rb_args* a, const rb_step* step) {
  return column_tasks(step->rows, a->embed_gradient.dw.k);
}

// Element i of a row of dw stands 16 from the next; rows of one id must follow each other, so tasks are columns.
void embed_gradient_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_embed_gradient& a = args->embed_gradient;
  const int64_t k = a.dw.k;
  const Columns c = columns_of(k, begin, end);
  for (int64_t r = 0; r < step->rows; ++r) {
    const int64_t id = step->ids[r];
    assert(id >= 0 && id < a.dw.n);
    float* to = static_cast<float*>(const_cast<void*>(a.dw.data)) + id / 16 * 16 * k + id % 16;
    const float* dy = a.dy + r * a.dy_stride;
    for (int64_t i = c.begin; i < c.end; ++i) to[16 * i] = __builtin_fmaf(a.scale, dy[i], to[16 * i]);
  }
}

int64_t add_into_tasks(const rb_args* a, const rb_step* step) {
  return row_tasks(domain_rows(step, a->add_into.domain), a->add_into.n);
}

void add_into_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_add_into& a = args->add_into;
  const F scale = set1(a.scale);
  const RowRange rows = rows_of(domain_rows(step, a.domain), a.n, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = a.x + r * a.x_stride;
    float* y = a.y + r * a.y_stride;
    for (int i = 0; i < a.n; i += 16) store(y + i, fma(scale, load(x + i, a.n - i), load(y + i, a.n - i)), a.n - i);
  }
}

int64_t zero_tasks(const rb_args* a, const rb_step* step) {
  return row_tasks(domain_rows(step, a->zero.domain), a->zero.n);
}

void zero_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_zero& a = args->zero;
  const RowRange rows = rows_of(domain_rows(step, a.domain), a.n, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r)
    memset(a.y + r * a.y_stride, 0, static_cast<size_t>(a.n) * sizeof(float));
}

int64_t select_gradient_tasks(const rb_args* a, const rb_step* step) {
  return row_tasks(step->logit_rows, a->select_gradient.n);
}

void select_gradient_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_select_gradient& a = args->select_gradient;
  const RowRange rows = rows_of(step->logit_rows, a.n, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* dy = a.dy + r * a.dy_stride;
    float* dx = a.dx + static_cast<int64_t>(step->logit_index[r]) * a.dx_stride;
    for (int i = 0; i < a.n; i += 16) store(dx + i, add(load(dx + i, a.n - i), load(dy + i, a.n - i)), a.n - i);
  }
}

int64_t softcap_gradient_tasks(const rb_args* a, const rb_step* step) {
  return row_tasks(domain_rows(step, a->softcap_gradient.domain), a->softcap_gradient.n);
}

void softcap_gradient_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_softcap_gradient& a = args->softcap_gradient;
  const RowRange rows = rows_of(domain_rows(step, a.domain), a.n, begin, end);
  const F cap = set1(a.cap), none = set1(0.0f), one = set1(1.0f);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float *y = a.y + r * a.y_stride, *dy = a.dy + r * a.dy_stride;
    float* dx = a.dx + r * a.dx_stride;
    for (int i = 0; i < a.n; i += 16) {
      const F t = div(load(y + i, a.n - i), cap), slope = fma(sub(none, t), t, one);
      store(dx + i, fma(load(dy + i, a.n - i), slope, load(dx + i, a.n - i)), a.n - i);
    }
  }
}

namespace {

struct Gate {
  F act, slope;
};

RB_INLINE Gate silu_gate(F x) {
  const F one = set1(1.0f), q = add(one, exp(sub(set1(0.0f), x))), s = div(one, q), act = div(x, q);
  return {act, fma(act, sub(one, s), s)};
}

RB_INLINE Gate gelu_gate(F x) {
  constexpr float twice = 2.0f * 0.797884560802865356f;
  const F one = set1(1.0f), square = mul(x, x), inner = fma(mul(square, x), set1(0.044715f), x);
  const F q = add(one, exp(mul(set1(-twice), inner))), s = div(one, q), act = div(x, q);
  const F slope = mul(set1(twice), fma(set1(0.134145f), min(square, set1(0x1p60f)), one));
  return {act, fma(mul(act, sub(one, s)), slope, s)};
}

template <int Act>
void gated_gradient_row(const float* x, const float* dy, float* dx, int n) {
  for (int i = 0; i < n; i += 16) {
    const Gate g = Act == 0 ? silu_gate(load(x + i, n - i)) : gelu_gate(load(x + i, n - i));
    const F d = load(dy + i, n - i), up = load(x + n + i, n - i);
    store(dx + i, fma(mul(d, up), g.slope, load(dx + i, n - i)), n - i);
    store(dx + n + i, fma(d, g.act, load(dx + n + i, n - i)), n - i);
  }
}

}  // namespace

int64_t gated_gradient_tasks(const rb_args* a, const rb_step* step) {
  return row_tasks(domain_rows(step, a->gated_gradient.domain), a->gated_gradient.n);
}

void gated_gradient_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_gated_gradient& a = args->gated_gradient;
  const RowRange rows = rows_of(domain_rows(step, a.domain), a.n, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float *x = a.x + r * a.x_stride, *dy = a.dy + r * a.dy_stride;
    float* dx = a.dx + r * a.dx_stride;
    if (a.act == 0)
      gated_gradient_row<0>(x, dy, dx, a.n);
    else
      gated_gradient_row<1>(x, dy, dx, a.n);
  }
}

}  // namespace rb::RB_NS
