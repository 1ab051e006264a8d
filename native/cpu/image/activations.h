// activations.h: ReLU and dropout; every element depends on its own inputs alone.
#pragma once
#include "cpu/rows.h"

namespace rb::RB_NS {

int64_t relu_tasks(const rb_args* a, const rb_step* step) { return row_tasks(step->rows, a->relu.n); }

void relu_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_relu& a = args->relu;
  const RowRange rows = rows_of(step->rows, a.n, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = a.x + r * a.x_stride;
    float* y = a.y + r * a.y_stride;
    for (int i = 0; i < a.n; i += 16) {
      const F v = load(x + i, a.n - i);
      store(y + i, select(lt(v, set1(0.0f)), set1(0.0f), v), a.n - i);
    }
  }
}

int64_t relu_gradient_tasks(const rb_args* a, const rb_step* step) { return row_tasks(step->rows, a->relu_gradient.n); }

void relu_gradient_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_relu_gradient& a = args->relu_gradient;
  const RowRange rows = rows_of(step->rows, a.n, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float *y = a.y + r * a.y_stride, *dy = a.dy + r * a.dy_stride;
    float* dx = a.dx + r * a.dx_stride;
    for (int i = 0; i < a.n; i += 16) {
      const F on = select(lt(set1(0.0f), load(y + i, a.n - i)), load(dy + i, a.n - i), set1(0.0f));
      store(dx + i, add(load(dx + i, a.n - i), on), a.n - i);
    }
  }
}

// A bijection of 32 bits that scatters well (Wellons, "Prospecting for hash functions", lowbias32).
RB_INLINE uint32_t mixed(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

int64_t dropout_tasks(const rb_args* a, const rb_step* step) { return row_tasks(step->rows, a->dropout.n); }

// h(i) = mixed(mixed(i + row) + row'), where row = mixed over salt, seed, step and position in turn, row' = mixed(row + salt).
void dropout_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_dropout& a = args->dropout;
  const RowRange rows = rows_of(step->rows, a.n, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = a.x + r * a.x_stride;
    float* y = a.y + r * a.y_stride;
    uint32_t row = mixed(a.salt + 1);
    const uint32_t address[3] = {a.key[0], a.key[1], static_cast<uint32_t>(step->positions[r])};
    for (const uint32_t part : address) row = mixed(row ^ mixed(part + row));
    const uint32_t second = mixed(row + a.salt);
    for (int i = 0; i < a.n; ++i) {
      const bool stays = mixed(mixed(static_cast<uint32_t>(i) + row) + second) >= a.threshold;
      if (a.add)
        y[i] = stays ? __builtin_fmaf(x[i], a.scale, y[i]) : y[i];
      else
        y[i] = stays ? x[i] * a.scale : 0.0f;
    }
  }
}

}  // namespace rb::RB_NS
