// tile.h: the register tile of float products: R rows x V vectors of sums, one vector row of the other factor a step.
//
// Each step loads V vectors and one value of each of R rows and does R V multiply-adds. Two multiply-adds a cycle with a latency of four
// want eight chains or more; the sums, V vectors and a value have to stay in registers: 8 x 3 of 32 registers of 16 lanes, 6 x 1 where a
// vector is two registers of 16 (AVX2) or four of 32 (NEON).
#pragma once
#include "cpu/rows.h"

namespace rb::RB_NS {

#ifdef RB_SANITIZED
constexpr int kTileRows = 2, kTileVectors = 2;
#else
constexpr int kTileRows = kLanes == 16 ? 8 : kLanes == 1 ? 2 : 6, kTileVectors = kLanes == 16 ? 3 : 1;
#endif
constexpr int kTileColumns = 16 * kTileVectors;

// acc[r][v] += x[r * x_stride + s * x_step] y[s * y_stride + 16 v ..], s ascending.
template <int R, int V>
RB_INLINE void multiply_tile(const float* x, int64_t x_stride, int64_t x_step, const float* y, int64_t y_stride,
                             int64_t steps, F (&acc)[R][V]) {
  for (int64_t s = 0; s < steps; ++s, x += x_step, y += y_stride) {
    F w[V];
    RB_UNROLL for (int v = 0; v < V; ++v) w[v] = load(y + 16 * v);
    RB_UNROLL for (int r = 0; r < R; ++r) {
      const F value = set1(x[r * x_stride]);
      RB_UNROLL for (int v = 0; v < V; ++v) acc[r][v] = fma(value, w[v], acc[r][v]);
    }
  }
}

// Calls F::template run<R, V>(arguments) for 1 <= rows <= kTileRows and 1 <= vectors <= kTileVectors.
template <class Kernel, int R = kTileRows, int V = kTileVectors, class... Arguments>
RB_INLINE void for_tile(int rows, int vectors, const Arguments&... arguments) {
  if constexpr (R > 1) {
    if (rows < R) return for_tile<Kernel, R - 1, V>(rows, vectors, arguments...);
  }
  if constexpr (V > 1) {
    if (vectors < V) return for_tile<Kernel, R, V - 1>(rows, vectors, arguments...);
  }
  Kernel::template run<R, V>(arguments...);
}

RB_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
RB_INLINE int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace rb::RB_NS
