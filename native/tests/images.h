// images.h: what the tests of kernels over images share: windows of all kinds, and where they read.
#pragma once
#include "agreed.h"
#include "support.h"
#include "test.h"

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

inline rb_window window(int32_t height, int32_t width, int32_t channels, int32_t kh, int32_t kw, int32_t stride,
                        int32_t padding) {
  return {
      height, width,  channels, (height + 2 * padding - kh) / stride + 1, (width + 2 * padding - kw) / stride + 1, kh,
      kw,     stride, padding};
}
inline int32_t positions(const rb_window& w) { return w.out_height * w.out_width; }
inline int32_t values(const rb_window& w) { return w.height * w.width * w.channels; }
inline int32_t inputs(const rb_window& w) { return w.kernel_height * w.kernel_width * w.channels; }
inline size_t size(int64_t n) { return static_cast<size_t>(n); }

// Index in an image of input k at position p; -1 in the padding.
inline int64_t under(const rb_window& w, int p, int k) {
  const int c = k % w.channels, kx = k / w.channels % w.kernel_width, ky = k / w.channels / w.kernel_width;
  const int y = p / w.out_width * w.stride - w.padding + ky, x = p % w.out_width * w.stride - w.padding + kx;
  if (y < 0 || y >= w.height || x < 0 || x >= w.width) return -1;
  return (int64_t{y} * w.width + x) * w.channels + c;
}

inline Floats tiles_of(const Floats& dense, int64_t n, int64_t k) {
  Floats out(size((n + 15) / 16 * 16 * k), 0.0f);
  for (int64_t j = 0; j < n; ++j)
    for (int64_t i = 0; i < k; ++i) out[tiled(k, j, i)] = dense[size(j * k + i)];
  return out;
}

struct Case {
  rb_window w;
  int32_t n;
};
inline const Case kCases[] = {
    {window(8, 8, 1, 3, 3, 1, 1), 32},  {window(5, 7, 3, 3, 2, 1, 1), 20}, {window(6, 6, 19, 3, 3, 2, 1), 16},
    {window(4, 4, 8, 1, 1, 1, 0), 5},   {window(9, 4, 2, 4, 3, 3, 2), 33}, {window(3, 3, 17, 3, 3, 1, 0), 17},
    {window(2, 11, 4, 2, 5, 2, 1), 18},
};
inline constexpr int32_t kImages = 5;
