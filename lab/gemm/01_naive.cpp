// 01_naive.cpp: three loops, as the formula says. The others are compared with it.
//
// Law: each sum runs over ascending k in one float, and the compiler may not change its order.
//
// Why: It is short and right; every addition waits about 4 cycles for the one before.
#include "rung.h"

const char* needs() { return nullptr; }

void multiply(const Problem* p) {
  for (int i = 0; i < p->m; ++i) {
    for (int j = 0; j < p->n; ++j) {
      float sum = 0.0f;
      for (int q = 0; q < p->k; ++q) sum += p->xf[i * p->k + q] * p->wf[j * p->k + q];
      p->yf[i * p->n + j] = sum;
    }
  }
}
