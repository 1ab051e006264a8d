// reference.h: the specification in double precision, written from the GGUF block formats and rebar.h, sharing no code with the kernels.
#pragma once
#include <cstdint>
#include <vector>

#include "rebar.h"

struct Weight {
  double product, minimum;
};  // weight = product + minimum, both exact

double half_value(const uint8_t* p);
std::vector<Weight> decode_row(int32_t type, const uint8_t* row, int64_t k);  // one stored row

std::vector<double> dequantized(const uint8_t* row, int32_t k);
