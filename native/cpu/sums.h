// sums.h: the one order of a sum of products over a row: lane i % 16, ascending i, one fma each; lanes as a binary tree.
#pragma once
#include "cpu/vec.h"

namespace rb::RB_NS {

RB_INLINE float sum_of_products(const float* x, const float* y, int n) {
  F sum = set1(0.0f);
  int i = 0;
  for (; i + 16 <= n; i += 16) sum = fma(load(x + i), load(y + i), sum);
  if (i < n) sum = fma(load(x + i, n - i), load(y + i, n - i), sum);
  return sum_lanes(sum);
}

// 1 / sqrt(mean(x^2) + eps).
RB_INLINE float inverse_rms(const float* x, int n, float eps) {
  return 1.0f / __builtin_sqrtf(sum_of_products(x, x, n) / static_cast<float>(n) + eps);
}

}  // namespace rb::RB_NS
