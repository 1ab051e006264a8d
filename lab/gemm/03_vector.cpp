// 03_vector.cpp: the same blocks, sixteen products at a time.
//
// Law: lane l of a sum takes the products l, l + 16, l + 32, ...; the lanes are added at the end. A sum in another order
// rounds differently: at most k units in the last place of the sum of magnitudes away from rung 1.
//
// Why: One instruction multiplies and adds 16 pairs where rung 2 did one.
#include <algorithm>
#include <cstring>

#include "rung.h"

namespace {

typedef float V __attribute__((vector_size(64)));  // the compiler makes what the machine has of it

V load(const float* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

float total(V v) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) v[i] += v[i + half];
  return v[0];
}

template <int Rows>
void block(const float* x, const float* w, float* y, int n, int k) {
  V sum[Rows][4] = {};
  for (int q = 0; q < k; q += 16)
    for (int r = 0; r < Rows; ++r)
      for (int c = 0; c < 4; ++c) sum[r][c] += load(x + r * k + q) * load(w + c * k + q);
  for (int r = 0; r < Rows; ++r)
    for (int c = 0; c < 4; ++c) y[r * n + c] = total(sum[r][c]);
}

}  // namespace

const char* needs() { return nullptr; }

void multiply(const Problem* p) {
  for (int panel = 0; panel < p->n; panel += 64) {
    const int end = std::min(panel + 64, p->n);
    for (int i = 0; i < p->m;) {
      const int rows = p->m - i >= 4 ? 4 : 1;
      for (int j = panel; j < end; j += 4) {
        const auto multiply_block = rows == 4 ? block<4> : block<1>;
        multiply_block(p->xf + i * p->k, p->wf + j * p->k, p->yf + i * p->n + j, p->n, p->k);
      }
      i += rows;
    }
  }
}
