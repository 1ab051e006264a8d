// math.h: exp and tanh as fixed sequences of exact and fused operations, so that all instruction sets agree to the bit.
#pragma once
#include "cpu/vec.h"

namespace rb::RB_NS {

// e^x. n = nearest integer to x / ln 2, r = x - n ln 2 in two parts (355/512 has 9 bits, so n * 355/512 is exact),
// e^r = 1 + r + r^2 p(r), |r| <= 0.3466. p is minimax of degree 4: relative error 3.1e-9 = 2^-28.3; the roundings of r (at most
// half an ulp of 0.35) and of the last two operations bring the whole to under 1 ulp. Below -104 the result is +0, above 89 infinity, NaN stays
// NaN; subnormal results are right because 2^n is multiplied in two halves.
RB_INLINE F exp_reduced(F r) {
  F p = set1(0x1.6a2434p-10f);
  p = fma(p, r, set1(0x1.1239e2p-7f));
  p = fma(p, r, set1(0x1.5558f2p-5f));
  p = fma(p, r, set1(0x1.555492p-3f));
  p = fma(p, r, set1(0x1.fffffcp-2f));
  return add(fma(mul(r, r), p, r), set1(1.0f));
}

RB_INLINE F exp(F x) {
  x = max(set1(-104.0f), min(set1(89.0f), x));
  const F magic = set1(0x1.8p23f);
  const F t = fma(x, set1(0x1.715476p+0f), magic);
  const F n = sub(t, magic);
  const F p = exp_reduced(fma(n, set1(0x1.bd0106p-13f), fma(n, set1(-0x1.63p-1f), x)));
  const I e = sub(bits(t), bits(magic)), low = sar<1>(e), high = sub(e, low);
  const I bias = set1(int32_t{127});
  return mul(mul(p, float_bits(shl<23>(add(low, bias)))), float_bits(shl<23>(add(high, bias))));
}

// e^x for x <= 0, the weights of a softmax: as above, but below -87 the result is +0, so that 2^n needs one factor and no subnormal
// is met. NaN stays NaN (-infinity makes one in r, which the last line drops).
RB_INLINE F exp_down(F x) {
  const F magic = set1(0x1.8p23f);
  const F t = fma(x, set1(0x1.715476p+0f), magic);
  const F n = sub(t, magic);
  const F p = exp_reduced(fma(n, set1(0x1.bd0106p-13f), fma(n, set1(-0x1.63p-1f), x)));
  // bits(t) is that of magic, whose low 9 bits are 0, plus n.
  const F scaled = mul(p, float_bits(add(shl<23>(bits(t)), set1(int32_t{127 << 23}))));
  return select(lt(x, set1(-87.0f)), set1(0.0f), scaled);
}

// tanh x. |x| < 0.625: x + x^3 p(x^2), p minimax of degree 4, relative error 4.4e-9 = 2^-27.8. Else 1 - 2 / (e^{2|x|} + 1) with the
// sign of x: e^{2|x|} >= 3.49, so an error of 1 ulp there moves the result by less than half an ulp. Within 2 ulp in all.
RB_INLINE F tanh(F x) {
  const I sign = bit_and(bits(x), set1(INT32_MIN));
  const F a = float_bits(bit_and(bits(x), set1(INT32_MAX))), u = mul(x, x);
  F p = set1(-0x1.75e1ccp-8f);
  p = fma(p, u, set1(0x1.52269ap-6f));
  p = fma(p, u, set1(-0x1.b83c5ap-5f));
  p = fma(p, u, set1(0x1.110726p-3f));
  p = fma(p, u, set1(-0x1.555532p-2f));
  const F small = fma(mul(u, a), p, a);
  const F large = sub(set1(1.0f), div(set1(2.0f), add(exp(add(a, a)), set1(1.0f))));
  return float_bits(add(bits(select(lt(a, set1(0.625f)), small, large)), sign));
}

// ln x of a normal x > 0; infinity and NaN stay. x = 2^e (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), so f is exact;
// ln(1 + f) = f + f^2 (f p(f) - 1/2), p minimax of degree 8: relative error 3.2e-9 = 2^-28.2; e ln 2 in two parts (355/512 has 9 bits).
RB_INLINE F log(F x) {
  const I root = set1(int32_t{0x3f3504f3});  // sqrt(1/2)
  const I e = sar<23>(sub(bits(x), root));
  const F f = sub(float_bits(sub(bits(x), shl<23>(e))), set1(1.0f)), n = to_float(e);
  F p = set1(0x1.14579p-4f);
  p = fma(p, f, set1(-0x1.de3c0ep-4f));
  p = fma(p, f, set1(0x1.e6f072p-4f));
  p = fma(p, f, set1(-0x1.fc2208p-4f));
  p = fma(p, f, set1(0x1.233768p-3f));
  p = fma(p, f, set1(-0x1.555c4ep-3f));
  p = fma(p, f, set1(0x1.99a4b6p-3f));
  p = fma(p, f, set1(-0x1.000006p-2f));
  p = fma(p, f, set1(0x1.555548p-2f));
  const F square = mul(f, f), small = fma(n, set1(-0x1.bd0106p-13f), mul(square, fma(p, f, set1(-0.5f))));
  const F y = fma(n, set1(0x1.63p-1f), add(small, f));
  return select(lt(x, set1(__builtin_inff())), y, x);
}

RB_INLINE F softcap(F x, float cap) { return mul(set1(cap), tanh(div(x, set1(cap)))); }

// x / (1 + e^-x).
RB_INLINE F silu(F x) { return div(x, add(set1(1.0f), exp(sub(set1(0.0f), x)))); }

// 0.5 x (1 + tanh z) = x / (1 + e^-2z) with z = sqrt(2/pi) (x + 0.044715 x^3): no cancellation for negative x.
RB_INLINE F gelu(F x) {
  const F inner = fma(mul(mul(x, x), x), set1(0.044715f), x);
  return div(x, add(set1(1.0f), exp(mul(set1(-2.0f * 0.797884560802865356f), inner))));
}

}  // namespace rb::RB_NS
