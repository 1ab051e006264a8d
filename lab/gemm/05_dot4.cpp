// 05_dot4.cpp: the instruction made for this: 16 sums of 4 products of bytes (AVX-512 VNNI, dpbusd).
//
// Law: 64 inputs per step; lane l of a sum takes the inputs 4l..4l+3 of each 64, and the lanes are added at the end.
//
// Why: One instruction does 64 multiply-adds; rung 4 widened every byte to 16 bits first.
#include "rung.h"

#if defined(__AVX512F__) && defined(__AVX512VNNI__)
#include <immintrin.h>

const char* needs() { return nullptr; }

void multiply(const Problem* p) {
  for (int i = 0; i < p->m; ++i) {
    const uint8_t* x = p->xi + i * p->k;
    for (int j = 0; j < p->n; ++j) {
      const int8_t* w = p->wi + j * p->k;
      __m512i sum = _mm512_setzero_si512();
      for (int q = 0; q < p->k; q += 64)
        sum = _mm512_dpbusd_epi32(sum, _mm512_loadu_si512(x + q), _mm512_loadu_si512(w + q));
      p->yi[i * p->n + j] = _mm512_reduce_add_epi32(sum);
    }
  }
}
#else
const char* needs() { return "AVX-512 VNNI"; }
void multiply(const Problem*) {}
#endif
