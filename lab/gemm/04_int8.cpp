// 04_int8.cpp: bytes for floats, in the plainest loops again.
//
// Law: a sum of products of bytes is an exact 32-bit integer: 127 * 127 * k stays below 2^31 up to k = 133,000. So its
// order is free, and from here on every rung gives the same integers.
//
// Why: A weight takes a quarter of the bytes, which is what counts for one row; and since the order of an integer sum is
// free, the compiler makes vectors of rung 1's loop by itself.
#include "rung.h"

// GCC would even find the instruction of rung 5 here; this rung is what machines without it do.
#if defined(__AVX512VNNI__) && !defined(__clang__)
#pragma GCC target("no-avx512vnni")
#endif

const char* needs() { return nullptr; }

void multiply(const Problem* p) {
  for (int i = 0; i < p->m; ++i) {
    for (int j = 0; j < p->n; ++j) {
      int32_t sum = 0;
      for (int q = 0; q < p->k; ++q) sum += p->xi[i * p->k + q] * p->wi[j * p->k + q];
      p->yi[i * p->n + j] = sum;
    }
  }
}
