// exp, tanh and the 16-bit floats: the errors the comments promise, measured over the whole range.
#include <algorithm>
#include <cmath>

#define RB_ONE_LANE
#define RB_NS math_test
#define RB_VEC "cpu/vec_scalar.h"
#include "cpu/half.h"
#include "cpu/math.h"
#include "test.h"

namespace {

using rb::math_test::F;

float first(F v) { return v.p[0]; }
float exp1(float x) { return first(rb::math_test::exp(rb::math_test::set1(x))); }
float exp_down1(float x) { return first(rb::math_test::exp_down(rb::math_test::set1(x))); }
float tanh1(float x) { return first(rb::math_test::tanh(rb::math_test::set1(x))); }

// |got - expected| in units of the last place of expected as f32 (subnormals: 2^-149).
double ulps(float got, double expected) {
  const int exponent = expected == 0.0 ? -126 : std::max(std::ilogb(expected), -126);
  return std::abs(got - expected) / std::ldexp(1.0, exponent - 23);
}

}  // namespace

TEST(math, exp_is_within_one_ulp) {
  double worst = 0.0;
  for (float x = -110.0f; x < 88.72f; x += 0.00037f)
    worst = std::max(worst, ulps(exp1(x), std::exp(static_cast<double>(x))));
  test_context = "worst " + std::to_string(worst);
  CHECK(worst < 1.0);
  CHECK(exp1(0.0f) == 1.0f && exp1(-INFINITY) == 0.0f && exp1(-104.0f) == 0.0f && exp1(100.0f) == INFINITY &&
        std::isnan(exp1(NAN)));
}

TEST(math, exp_down_is_exp_without_subnormals) {
  for (float x = -87.0f; x <= 0.0f; x += 0.00037f) CHECK(exp_down1(x) == exp1(x));
  CHECK(exp_down1(0.0f) == 1.0f && exp_down1(-0x1.p-30f) == 1.0f && exp_down1(-87.1f) == 0.0f);
  CHECK(exp_down1(-INFINITY) == 0.0f && exp_down1(-3.4e38f) == 0.0f && std::isnan(exp_down1(NAN)));
}

TEST(math, tanh_is_within_two_ulps) {
  double worst = 0.0;
  for (float x = -12.0f; x < 12.0f; x += 0.000051f)
    worst = std::max(worst, ulps(tanh1(x), std::tanh(static_cast<double>(x))));
  for (float x = 1e-40f; x < 1.0f; x *= 1.001f)
    worst = std::max(worst, ulps(tanh1(x), std::tanh(static_cast<double>(x))));
  test_context = "worst " + std::to_string(worst);
  CHECK(worst < 2.0);
  CHECK(tanh1(INFINITY) == 1.0f && tanh1(-INFINITY) == -1.0f && std::isnan(tanh1(NAN)) && std::signbit(tanh1(-0.0f)));
}

// Nearest of the two neighbours, ties to the even one: checked at every half, every midpoint and right beside it.
TEST(math, f16_rounds_to_nearest_even) {
  for (uint32_t h = 0; h < 0x7c00; ++h) {
    test_context = "half " + std::to_string(h);
    const float low = rb::f16_to_f32(static_cast<uint16_t>(h));
    const float high = h + 1 == 0x7c00 ? 65536.0f : rb::f16_to_f32(static_cast<uint16_t>(h + 1));
    const float middle = low + (high - low) / 2;
    const uint32_t even = h % 2 == 0 ? h : h + 1;
    CHECK(rb::f32_to_f16(low) == h && rb::f32_to_f16(-low) == (h | 0x8000));
    CHECK(rb::f32_to_f16(middle) == even);
    CHECK(rb::f32_to_f16(std::nextafter(middle, 0.0f)) == h && rb::f32_to_f16(std::nextafter(middle, 1e9f)) == h + 1);
  }
  CHECK(rb::f32_to_f16(INFINITY) == 0x7c00 && rb::f32_to_f16(1e30f) == 0x7c00 && rb::f32_to_f16(1e-30f) == 0);
  CHECK((rb::f32_to_f16(NAN) & 0x7e00) == 0x7e00);
}
