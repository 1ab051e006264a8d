// quantize.h: f32 -> int8 per 16 (or 32) inputs with a scale and a sum. The order of nothing matters: maxima and integer sums are exact.
//
// A group with a NaN or an infinity gets d = NaN and q = 0: every product of it is NaN, and nothing is converted out of range.
// A group so small that 1/d overflows (max|x| below 2^-121) counts as zero.
#pragma once
#include "cpu/rows.h"

namespace rb::RB_NS {

constexpr int32_t kPairScale = ~3;  // a scale for 32 inputs keeps 22 bits (matmul.h: kUnit)

struct QuantizedRow {  // one row of k inputs in the layout of rebar.h
  int8_t* q;
  float* d;
  int32_t* sum;
  bool pairs;  // two neighbouring groups of 16 share a scale

  static inline __attribute__((always_inline)) QuantizedRow at(uint8_t* row, int k, int group) {
    return {reinterpret_cast<int8_t*>(row), reinterpret_cast<float*>(row + k),
            reinterpret_cast<int32_t*>(row + k + k / 16 * 4), group == 32};
  }
  // `groups` groups of 16 inputs, as groups first.. of the row; both even.
  void put(int first, const float* x, int groups) const {
    for (; groups >= 16; groups -= 16, first += 16, x += 256) put_sixteen(first, x);
    if (groups > 4) {
      float padded[256] = {};
      memcpy(padded, x, static_cast<size_t>(groups) * 64);
      put_sixteen(first, padded, groups);
      return;
    }
    put_each(first, x, groups);
  }

 private:
  // Within a register a maximum or a sum over 16 lanes costs more than all the rest: sixteen groups are reduced together.
  inline __attribute__((always_inline)) void put_sixteen(int first, const float* x, int groups = 16) const {
    I magnitude[16];
    RB_UNROLL for (int g = 0; g < 16; ++g) magnitude[g] = bit_and(bits(load(x + 16 * g)), set1(INT32_MAX));
    I top = max_each(magnitude);
    if (pairs) top = max_pairs(top);
    if (reduce_max(top) >= 0x7f800000) return put_each(first, x, groups);
    F raw = div(float_bits(top), set1(127.0f));
    if (pairs) raw = float_bits(bit_and(bits(raw), set1(kPairScale)));
    const F reciprocal = div(set1(1.0f), raw);
    const M sane = lt(reciprocal, set1(__builtin_inff()));
    float inverse[16];
    store(inverse, select(sane, reciprocal, set1(0.0f)));
    I rounded[16];
    RB_UNROLL for (int g = 0; g < 16; ++g) rounded[g] = to_int(mul(load(x + 16 * g), set1(inverse[g])));
    float scale[16];
    int32_t total[16];
    store(scale, select(sane, raw, set1(0.0f)));
    store(total, sum_each(rounded));
    for (int g = 0; g < groups; ++g) store_s8(q + 16 * (first + g), rounded[g]);
    memcpy(d + first, scale, static_cast<size_t>(groups) * 4);
    memcpy(sum + first, total, static_cast<size_t>(groups) * 4);
  }
  static inline __attribute__((always_inline)) int32_t top_of(const float* x) {
    return reduce_max(bit_and(bits(load(x)), set1(INT32_MAX)));
  }
  inline __attribute__((always_inline)) void put_each(int first, const float* x, int groups) const {
    for (int g = 0; g < groups; ++g) {
      int32_t top = top_of(x + 16 * g);
      if (pairs && top_of(x + 16 * (g ^ 1)) > top) top = top_of(x + 16 * (g ^ 1));
      put_one(first + g, load(x + 16 * g), top);
    }
  }
  inline __attribute__((always_inline)) void put_one(int half, F x, int32_t top) const {
    float scale, largest, inverse;
    memcpy(&largest, &top, 4);
    scale = largest / 127.0f;
    if (pairs) {
      int32_t rounded_down;
      memcpy(&rounded_down, &scale, 4);
      rounded_down &= kPairScale;
      memcpy(&scale, &rounded_down, 4);
    }
    inverse = 1.0f / scale;
    if (!(inverse < __builtin_inff())) scale = inverse = 0.0f;
    I rounded = to_int(mul(x, set1(inverse)));
    if (top >= 0x7f800000) {
      scale = __builtin_nanf("");
      rounded = set1(int32_t{0});
    }
    store_s8(q + 16 * half, rounded);
    d[half] = scale;
    sum[half] = reduce_add(rounded);
  }
};

static int64_t quantize_tasks(const rb_args* a, const rb_step* step) {
  return row_tasks(domain_rows(step, a->quantize.domain), a->quantize.k);
}

static void quantize_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_quantize& a = args->quantize;
  const size_t stride = rb_quantized_stride(a.k);
  const RowRange rows = rows_of(domain_rows(step, a.domain), a.k, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = a.x + r * a.x_stride;
    const QuantizedRow out = QuantizedRow::at(a.xq + static_cast<size_t>(r) * stride, a.k, a.group);
    out.put(0, x, a.k / 16);
  }
}

}  // namespace rb::RB_NS
