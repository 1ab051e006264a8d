// rows.h: the inner kernel of rungs 7 and 8: up to 8 rows of x by one tile of packed weights.
//
// 8 sums: dpbusd starts once a cycle on 512 bits and takes 4 to 5, so 8 under way keep it busy, and each weight that is
// loaded feeds 8 instructions. Three tiles at once (24 sums) were no faster for a prompt and slower by a third for 8
// rows: three streams of weights. The sums stay in registers only if every loop over them is unrolled early.
#pragma once
#include "packed.h"

#if defined(__AVX512F__) && defined(__AVX512VNNI__)
#define UNROLL _Pragma("GCC unroll 8")

template <int Rows>
void rows_by_tile(const uint8_t* x, const int8_t* w, int32_t* y, int n, int k) {
  __m512i sum[Rows];
  UNROLL for (__m512i& s : sum) s = _mm512_setzero_si512();
  for (int q = 0; q < k; q += 4) {
    const __m512i weights = _mm512_loadu_si512(w + 16 * q);
    UNROLL for (int r = 0; r < Rows; ++r) sum[r] = _mm512_dpbusd_epi32(sum[r], four_inputs(x + r * k + q), weights);
  }
  UNROLL for (int r = 0; r < Rows; ++r) _mm512_storeu_si512(y + r * n, sum[r]);
}

// All rows by the outputs first..first+15: 9 KB of weights at k = 576 stay in L1 while the rows pass by.
inline void all_rows(const Problem* p, int first) {
  for (int i = 0; i < p->m;) {
    const int left = p->m - i, rows = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    const auto multiply_rows = rows == 8   ? rows_by_tile<8>
                               : rows == 4 ? rows_by_tile<4>
                               : rows == 2 ? rows_by_tile<2>
                                           : rows_by_tile<1>;
    multiply_rows(p->xi + i * p->k, p->wi + first * p->k, p->yi + i * p->n + first, p->n, p->k);
    i += rows;
  }
}
#endif
