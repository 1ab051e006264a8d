// window.h: what slides over an image: where it reads, and images with their padding around them.
#pragma once
#include "cpu/rows.h"

namespace rb::RB_NS {

RB_INLINE int64_t window_positions(const rb_window& w) { return static_cast<int64_t>(w.out_height) * w.out_width; }
RB_INLINE int64_t padded_width(const rb_window& w) { return w.width + int64_t{2} * w.padding; }
RB_INLINE int64_t padded_values(const rb_window& w) {
  return (w.height + int64_t{2} * w.padding) * padded_width(w) * w.channels;
}
RB_INLINE int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// The part of a window that lies inside the image.
struct Inside {
  int ky, ky_end, kx, kx_end;
};
RB_INLINE Inside inside(const rb_window& w, int oy, int ox) {
  const int y = oy * w.stride - w.padding, x = ox * w.stride - w.padding;
  return {y < 0 ? -y : 0, y + w.kernel_height > w.height ? w.height - y : w.kernel_height, x < 0 ? -x : 0,
          x + w.kernel_width > w.width ? w.width - x : w.kernel_width};
}
// Where the input of (ky, kx) at a position begins.
RB_INLINE int64_t input_at(const rb_window& w, int oy, int ox, int ky, int kx) {
  const int64_t y = int64_t{oy} * w.stride - w.padding + ky, x = int64_t{ox} * w.stride - w.padding + kx;
  return (y * w.width + x) * w.channels;
}
// Where the window of position p begins in an image with its padding.
RB_INLINE int64_t padded_at(const rb_window& w, int64_t p) {
  const int64_t oy = p / w.out_width, ox = p % w.out_width;
  return (oy * w.stride * padded_width(w) + ox * w.stride) * w.channels;
}

// The image with zeros around it.
RB_INLINE void pad(const rb_window& w, const float* x, float* out) {
  const size_t line = static_cast<size_t>(w.width) * w.channels, edge = static_cast<size_t>(w.padding) * w.channels;
  const size_t wide = line + 2 * edge;
  memset(out, 0, w.padding * wide * sizeof(float));
  float* to = out + w.padding * wide;
  for (int y = 0; y < w.height; ++y, to += wide) {
    memset(to, 0, edge * sizeof(float));
    memcpy(to + edge, x + y * line, line * sizeof(float));
    memset(to + edge + line, 0, edge * sizeof(float));
  }
  memset(to, 0, w.padding * wide * sizeof(float));
}

// The image out of its padding.
RB_INLINE void unpad(const rb_window& w, const float* padded, float* x) {
  const size_t line = static_cast<size_t>(w.width) * w.channels, edge = static_cast<size_t>(w.padding) * w.channels;
  for (int y = 0; y < w.height; ++y)
    memcpy(x + y * line, padded + (y + w.padding) * (line + 2 * edge) + edge, line * sizeof(float));
}

}  // namespace rb::RB_NS
