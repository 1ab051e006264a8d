// rung.h: what every rung of the ladder does: y = x wT, y[i][j] = sum over p of x[i][p] * w[j][p].
//
// x has m rows of k, w n rows of k (the stored form of a model's weights), y m rows of n. n is a multiple of 16 and k of
// 64; m is anything. Rungs 1 to 3 take floats; the others take x in 0..127 and w in -127..127 and give exact integers.
#pragma once
#include <cstdint>

struct Problem {
  int32_t m, n, k, threads;
  const float *xf, *wf;
  float* yf;
  const uint8_t* xi;
  const int8_t* wi;  // as pack() laid them out, where a rung has one
  int32_t* yi;
};

extern "C" {
const char* needs();  // an instruction set that this rung cannot do without and this machine lacks, or nullptr
void pack(const int8_t* w, int32_t n, int32_t k, int8_t* packed);
void multiply(const Problem* p);
}
