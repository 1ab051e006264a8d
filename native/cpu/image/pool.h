// pool.h: the largest or the mean value of a window, and the way back. Formulas: rebar_image.h.
#pragma once
#include "cpu/image/window.h"

namespace rb::RB_NS {

enum { kMaxPool = 0, kMeanPool = 1 };

int64_t pool_tasks(const rb_args* a, const rb_step* step) {
  return row_tasks(step->rows,
                   static_cast<int64_t>(a->pool.window.height) * a->pool.window.width * a->pool.window.channels);
}

// 16 channels from `x` on, the window's first value, over what of it lies inside.
template <int Kind>
RB_INLINE F pooled(const rb_window& w, const Inside& in, const float* image, int oy, int ox, int c, int lanes) {
  F value = set1(0.0f), strange = set1(0.0f);
  bool any = false;
  for (int ky = in.ky; ky < in.ky_end; ++ky) {
    for (int kx = in.kx; kx < in.kx_end; ++kx) {
      const F x = load(image + input_at(w, oy, ox, ky, kx) + c, lanes);
      if constexpr (Kind == kMaxPool) {
        value = any ? select(lt(value, x), x, value) : x;
        strange = fma(x, set1(0.0f), strange);  // 0, or NaN where something is not finite
        any = true;
      } else {
        value = add(value, x);
      }
    }
  }
  if constexpr (Kind == kMaxPool) return add(value, strange);
  return mul(value, set1(1.0f / static_cast<float>(w.kernel_height * w.kernel_width)));
}

template <int Kind>
RB_INLINE void pool_image(const rb_window& w, const float* x, float* y) {
  for (int oy = 0; oy < w.out_height; ++oy) {
    for (int ox = 0; ox < w.out_width; ++ox, y += w.channels) {
      const Inside in = inside(w, oy, ox);
      for (int c = 0; c < w.channels; c += 16) {
        const int lanes = w.channels - c < 16 ? w.channels - c : 16;
        store(y + c, pooled<Kind>(w, in, x, oy, ox, c, lanes), lanes);
      }
    }
  }
}

void pool_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_pool& a = args->pool;
  const rb_window& w = a.window;
  const RowRange rows = rows_of(step->rows, static_cast<int64_t>(w.height) * w.width * w.channels, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = a.x + r * a.x_stride;
    float* y = a.y + r * a.y_stride;
    if (a.kind == kMaxPool)
      pool_image<kMaxPool>(w, x, y);
    else
      pool_image<kMeanPool>(w, x, y);
  }
}

int64_t pool_gradient_tasks(const rb_args*, const rb_step* step) { return step->rows; }

struct PoolGradient {  // of one image
  const float *x, *y, *dy;
  float* dx;
};

// Adds the gradient of 16 channels of one position. What is `left` goes to the first value that is not below the largest.
template <int Kind>
RB_INLINE void unpool(const rb_window& w, const PoolGradient& g, int oy, int ox, int c, int lanes) {
  const Inside in = inside(w, oy, ox);
  const int64_t at = (int64_t{oy} * w.out_width + ox) * w.channels + c;
  F left = load(g.dy + at, lanes);
  F y = left;
  if constexpr (Kind == kMaxPool) y = load(g.y + at, lanes);
  const F share = set1(1.0f / static_cast<float>(w.kernel_height * w.kernel_width)), zero = set1(0.0f);
  for (int ky = in.ky; ky < in.ky_end; ++ky) {
    for (int kx = in.kx; kx < in.kx_end; ++kx) {
      const int64_t i = input_at(w, oy, ox, ky, kx) + c;
      const F dx = load(g.dx + i, lanes);
      if constexpr (Kind == kMaxPool) {
        const M below = lt(load(g.x + i, lanes), y);
        store(g.dx + i, add(dx, select(below, zero, left)), lanes);
        left = select(below, left, zero);
      } else {
        store(g.dx + i, fma(left, share, dx), lanes);
      }
    }
  }
}

template <int Kind>
RB_INLINE void unpool_image(const rb_window& w, const PoolGradient& g) {
  for (int oy = 0; oy < w.out_height; ++oy) {
    for (int ox = 0; ox < w.out_width; ++ox) {
      for (int c = 0; c < w.channels; c += 16) unpool<Kind>(w, g, oy, ox, c, w.channels - c < 16 ? w.channels - c : 16);
    }
  }
}

void pool_gradient_run(const rb_args* args, const rb_step*, int64_t begin, int64_t end, void*) {
  const rb_pool_gradient& a = args->pool_gradient;
  for (int64_t r = begin; r < end; ++r) {
    const float* dy = a.dy + r * a.dy_stride;
    float* dx = a.dx + r * a.dx_stride;
    if (a.kind == kMaxPool)
      unpool_image<kMaxPool>(a.window, {a.x + r * a.x_stride, a.y + r * a.y_stride, dy, dx});
    else
      unpool_image<kMeanPool>(a.window, {nullptr, nullptr, dy, dx});
  }
}

}  // namespace rb::RB_NS
