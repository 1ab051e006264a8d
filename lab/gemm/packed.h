// packed.h: the weights as rungs 6 to 8 read them, 16 outputs side by side, and one row's product with them.
//
// A tile is 16 rows of w: for each 4 inputs the 4 bytes of output 0, then those of output 1, ... to 15: 64 bytes, one
// register. Tiles follow each other; tile t begins at t * 16 * k and is read from one end to the other.
#pragma once
#include "rung.h"

void pack(const int8_t* w, int32_t n, int32_t k, int8_t* packed) {
  for (int j = 0; j < n; j += 16)
    for (int q = 0; q < k; q += 4)
      for (int out = 0; out < 16; ++out)
        for (int b = 0; b < 4; ++b) *packed++ = w[(j + out) * k + q + b];
}

#if defined(__AVX512F__) && defined(__AVX512VNNI__)
#include <immintrin.h>

#include <cstring>

inline __m512i four_inputs(const uint8_t* x) {
  int32_t four;
  std::memcpy(&four, x, sizeof four);
  return _mm512_set1_epi32(four);
}

inline void row_by_tile(const uint8_t* x, const int8_t* w, int32_t* y, int k) {
  __m512i sum = _mm512_setzero_si512();
  for (int q = 0; q < k; q += 4) sum = _mm512_dpbusd_epi32(sum, four_inputs(x + q), _mm512_loadu_si512(w + 16 * q));
  _mm512_storeu_si512(y, sum);
}
#endif
