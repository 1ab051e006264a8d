// rms_norm.h: y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, arXiv:1910.07467), per slice of n values.
//
// Sum of squares: sums.h. y = (x * (1 / sqrt(sum / n + eps))) * weight.
// y or yq may be NULL.
#pragma once
#include "cpu/quantize.h"
#include "cpu/sums.h"

namespace rb::RB_NS {

RB_INLINE void norm_slice(const float* x, const float* weight, float* y, int n, float eps) {
  const F scale = set1(inverse_rms(x, n, eps));
  for (int i = 0; i < n; i += 16) store(y + i, mul(mul(load(x + i, n - i), scale), load(weight + i, n - i)), n - i);
}

RB_INLINE void norm_quantized(const float* x, const float* weight, float* y, uint8_t* yq, int n, float eps, int group) {
  const F scale = set1(inverse_rms(x, n, eps));
  const QuantizedRow out = QuantizedRow::at(yq, n, group);
  float own[256];
  for (int i = 0; i < n; i += 256) {  // sixteen groups, as they are quantized
    const int count = n - i < 256 ? n - i : 256;
    float* to = y != nullptr ? y + i : own;
    for (int j = 0; j < count; j += 16) store(to + j, mul(mul(load(x + i + j), scale), load(weight + i + j)));
    out.put(i / 16, to, count / 16);
  }
}

static int64_t rms_norm_tasks(const rb_args* a, const rb_step* step) {
  return row_tasks(domain_rows(step, a->rms_norm.domain), static_cast<int64_t>(a->rms_norm.n) * a->rms_norm.groups);
}

static void rms_norm_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_rms_norm& a = args->rms_norm;
  const RowRange rows = rows_of(domain_rows(step, a.domain), static_cast<int64_t>(a.n) * a.groups, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = a.x + r * a.x_stride;
    float* y = a.y == nullptr ? nullptr : a.y + r * a.y_stride;
    if (a.yq != nullptr) {
      norm_quantized(x, a.weight, y, a.yq + static_cast<size_t>(r) * rb_quantized_stride(a.n), a.n, a.eps, a.group);
      continue;
    }
    for (int64_t g = 0; g < a.groups; ++g) norm_slice(x + g * a.n, a.weight, y + g * a.n, a.n, a.eps);
  }
}

}  // namespace rb::RB_NS
