// The loss of a row of logits and its gradient.
#include <assert.h>

#include "cpu/math.h"
#include "cpu/training/kernels.h"

namespace rb::RB_NS {

namespace {

struct Softmax {
  float top, total;
};

Softmax softmax_of(const float* x, int n) {
  F largest = set1(-__FLT_MAX__), total = set1(0.0f);
  int i = 0;
  for (; i + 16 <= n; i += 16) largest = max(largest, load(x + i));
  float tail[16];
  store(tail, set1(-__builtin_inff()));
  if (i < n) memcpy(tail, x + i, static_cast<size_t>(n - i) * sizeof(float));
  largest = max(largest, load(tail));
  const float top = max_lanes(largest);
  const F by = set1(top);
  for (i = 0; i + 16 <= n; i += 16) total = add(total, exp_down(sub(load(x + i), by)));
  if (i < n) total = add(total, exp_down(sub(load(tail), by)));  // lanes past the end add +0
  return {top, sum_lanes(total)};
}

float first_lane(F x) {
  float lanes[16];
  store(lanes, x);
  return lanes[0];
}

}  // namespace

int64_t cross_entropy_tasks(const rb_args* a, const rb_step* step) {
  return row_tasks(domain_rows(step, a->cross_entropy.domain), a->cross_entropy.n);
}

void cross_entropy_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_cross_entropy& a = args->cross_entropy;
  const RowRange rows = rows_of(domain_rows(step, a.domain), a.n, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int32_t target = a.targets[r];
    float* loss = a.loss + r * a.loss_stride;
    if (target < 0) {
      *loss = 0.0f;
      continue;
    }
    assert(target < a.n);
    const float* x = a.logits + r * a.logits_stride;
    const Softmax s = softmax_of(x, a.n);
    *loss = first_lane(log(set1(s.total))) + (s.top - x[target]);
  }
}

int64_t cross_entropy_gradient_tasks(const rb_args* a, const rb_step* step) {
  return row_tasks(domain_rows(step, a->cross_entropy_gradient.domain), a->cross_entropy_gradient.n);
}

void cross_entropy_gradient_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_cross_entropy_gradient& a = args->cross_entropy_gradient;
  const RowRange rows = rows_of(domain_rows(step, a.domain), a.n, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int32_t target = a.targets[r];
    if (target < 0) continue;
    assert(target < a.n);
    const float* x = a.logits + r * a.logits_stride;
    float* dx = a.dlogits + r * a.dlogits_stride;
    const Softmax s = softmax_of(x, a.n);
    const F top = set1(s.top), by = set1(1.0f / s.total), loss = set1(a.dloss[r * a.dloss_stride]);
    const F before = set1(dx[target]);
    for (int i = 0; i < a.n; i += 16) {
      const F p = mul(exp_down(sub(load(x + i, a.n - i), top)), by);
      store(dx + i, fma(loss, p, load(dx + i, a.n - i)), a.n - i);
    }
    const F p = sub(mul(exp_down(sub(set1(x[target]), top)), by), set1(1.0f));
    dx[target] = first_lane(fma(loss, p, before));
  }
}

}  // namespace rb::RB_NS
