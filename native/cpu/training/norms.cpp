// Gradients of rms_norm and rope.
#include <assert.h>

#include "cpu/sums.h"
#include "cpu/training/kernels.h"

namespace rb::RB_NS {

namespace {

// dx of a slice.
void norm_gradient_slice(const float* x, const float* weight, const float* dy, float* dx, int n, float eps) {
  const float s = inverse_rms(x, n, eps);
  F sum = set1(0.0f);
  for (int i = 0; i < n; i += 16) sum = fma(mul(load(weight + i, n - i), load(dy + i, n - i)), load(x + i, n - i), sum);
  const F scale = set1(s), factor = set1(-(s * s * (sum_lanes(sum) / static_cast<float>(n))));
  for (int i = 0; i < n; i += 16) {
    const F g = mul(load(weight + i, n - i), load(dy + i, n - i));
    store(dx + i, fma(fma(factor, load(x + i, n - i), g), scale, load(dx + i, n - i)), n - i);
  }
}

int64_t width_of(const rb_rms_norm_gradient& a) { return static_cast<int64_t>(a.n) * a.groups; }

void norm_gradient_rows(const rb_rms_norm_gradient& a, const RowRange& rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t g = 0; g < a.groups; ++g) {
      const int64_t at = g * a.n;
      norm_gradient_slice(a.x + r * a.x_stride + at, a.weight, a.dy + r * a.dy_stride + at, a.dx + r * a.dx_stride + at,
                          a.n, a.eps);
    }
  }
}

// dweight is cut by columns, and each piece works out the scale of every slice again, which reads all of x: pieces are wide.
constexpr int64_t kWeightColumns = 256;

void norm_gradient_weight(const rb_rms_norm_gradient& a, int64_t rows, int64_t piece) {
  const int begin = static_cast<int>(piece * kWeightColumns);
  const int end = a.n - begin < kWeightColumns ? a.n : begin + static_cast<int>(kWeightColumns);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t g = 0; g < a.groups; ++g) {
      const float *x = a.x + r * a.x_stride + g * a.n, *dy = a.dy + r * a.dy_stride + g * a.n;
      const F scale = set1(inverse_rms(x, a.n, a.eps));
      for (int i = begin; i < end; i += 16) {
        const F unit = mul(load(x + i, end - i), scale);
        store(a.dweight + i, fma(unit, load(dy + i, end - i), load(a.dweight + i, end - i)), end - i);
      }
    }
  }
}

int64_t dx_tasks(const rb_rms_norm_gradient& a, int64_t rows) {
  return a.dx != nullptr ? row_tasks(rows, width_of(a)) : 0;
}

}  // namespace

// The pieces of dweight come first: they are the longest.
int64_t rms_norm_gradient_tasks(const rb_args* args, const rb_step* step) {
  const rb_rms_norm_gradient& a = args->rms_norm_gradient;
  const int64_t rows = domain_rows(step, a.domain);
  const int64_t pieces = a.dweight != nullptr && rows > 0 ? (a.n + kWeightColumns - 1) / kWeightColumns : 0;
  return pieces + dx_tasks(a, rows);
}

void rms_norm_gradient_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_rms_norm_gradient& a = args->rms_norm_gradient;
  const int64_t rows = domain_rows(step, a.domain);
  const int64_t pieces = rms_norm_gradient_tasks(args, step) - dx_tasks(a, rows);
  for (; begin < end && begin < pieces; ++begin) norm_gradient_weight(a, rows, begin);
  if (begin < end) norm_gradient_rows(a, rows_of(rows, width_of(a), begin - pieces, end - pieces));
}

int64_t rope_gradient_tasks(const rb_args* a, const rb_step* step) {
  return row_tasks(step->rows, static_cast<int64_t>(a->rope_gradient.heads) * a->rope_gradient.head_dim);
}

void rope_gradient_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_rope_gradient& a = args->rope_gradient;
  const int half = a.dim / 2;
  const RowRange rows = rows_of(step->rows, static_cast<int64_t>(a.heads) * a.head_dim, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int32_t position = step->positions[r];
    assert(position >= 0 && position < a.table_rows);
    const float* angles = a.table + static_cast<int64_t>(position) * a.dim;
    for (int64_t h = 0; h < a.heads; ++h) {
      const float* dy = a.dy + r * a.dy_stride + h * a.head_dim;
      float* dx = a.dx + r * a.dx_stride + h * a.head_dim;
      for (int i = 0; i < half; i += 16) {
        const int n = half - i;
        const F c = load(angles + i, n), s = load(angles + half + i, n);
        const F y0 = load(dy + i, n), y1 = load(dy + half + i, n);
        store(dx + i, fma(y1, s, fma(y0, c, load(dx + i, n))), n);
        store(dx + half + i, fma(y1, c, fma(sub(set1(0.0f), y0), s, load(dx + half + i, n))), n);
      }
      for (int i = a.dim; i < a.head_dim; i += 16)
        store(dx + i, add(load(dx + i, a.head_dim - i), load(dy + i, a.head_dim - i)), a.head_dim - i);
    }
  }
}

}  // namespace rb::RB_NS
