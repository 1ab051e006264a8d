// rows.h: the inner kernel of rungs 7 and 8: up to 8 rows of x by 3 tiles of packed weights.
//
// 24 sums: dpbusd has a latency of 4 to 5 cycles and up to two start in one, so 10 under way keep it busy; 24 sums, 3
// weights and the repeated inputs fit the 32 registers, and each weight register feeds 8 instructions. They stay in
// registers only if every loop over them is unrolled before anything else happens: with sums in memory half is lost.
#pragma once
#include "packed.h"

#if defined(__AVX512F__) && defined(__AVX512VNNI__)
#define UNROLL _Pragma("GCC unroll 8")

template <int Rows>
void rows_by_tiles(const uint8_t* x, const int8_t* w, int32_t* y, int n, int k) {
  __m512i sum[Rows][3], weights[3];
  UNROLL for (auto& row : sum) row[0] = row[1] = row[2] = _mm512_setzero_si512();
  for (int q = 0; q < k; q += 4) {
    UNROLL for (int t = 0; t < 3; ++t) weights[t] = _mm512_loadu_si512(w + 16 * (t * k + q));
    UNROLL for (int r = 0; r < Rows; ++r) {
      const __m512i four = four_inputs(x + r * k + q);
      UNROLL for (int t = 0; t < 3; ++t) sum[r][t] = _mm512_dpbusd_epi32(sum[r][t], four, weights[t]);
    }
  }
  UNROLL for (int r = 0; r < Rows; ++r) {
    UNROLL for (int t = 0; t < 3; ++t) _mm512_storeu_si512(y + r * n + 16 * t, sum[r][t]);
  }
}

// A row alone reads one stream, which the prefetcher follows better than three.
inline void row_by_tiles(const uint8_t* x, const int8_t* w, int32_t* y, int, int k) {
  for (int t = 0; t < 3; ++t) row_by_tile(x, w + 16 * t * k, y + 16 * t, k);
}

// All rows by the outputs first..first+47: 27 KB of weights at k = 576 stay in L1 while the rows pass by.
inline void all_rows(const Problem* p, int first) {
  for (int i = 0; i < p->m;) {
    const int left = p->m - i, rows = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    const auto multiply_rows = rows == 8   ? rows_by_tiles<8>
                               : rows == 4 ? rows_by_tiles<4>
                               : rows == 2 ? rows_by_tiles<2>
                                           : row_by_tiles;
    multiply_rows(p->xi + i * p->k, p->wi + first * p->k, p->yi + i * p->n + first, p->n, p->k);
    i += rows;
  }
}
#endif
