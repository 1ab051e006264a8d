// training_reference.h: the orders of sums of rebar_training.h in plain code, and comparison where a NaN equals a NaN.
#pragma once
#include <cmath>
#include <cstring>
#include <vector>

// sum of x y: lane i % 16, ascending i, one fma each; lanes as a binary tree.
inline float lane_sum(const float* x, const float* y, int32_t n) {
  float lanes[16] = {};
  for (int32_t i = 0; i < n; ++i) lanes[i % 16] = std::fma(x[i], y[i], lanes[i % 16]);
  for (int32_t half = 8; half > 0; half /= 2) {
    for (int32_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

inline bool same_numbers(const std::vector<float>& a, const std::vector<float>& b) {
  bool same = a.size() == b.size();
  for (size_t i = 0; same && i < a.size(); ++i)
    same = std::isnan(a[i]) ? std::isnan(b[i]) : std::memcmp(&a[i], &b[i], 4) == 0;
  return same;
}
