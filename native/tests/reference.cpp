#include "reference.h"

#include <cmath>
#include <cstring>

namespace {

int bit(const uint8_t* p, int i) { return p[i / 8] >> (i % 8) & 1; }
uint16_t word(const uint8_t* p) { return static_cast<uint16_t>(p[0] + 256 * p[1]); }

Weight plain(int32_t type, const uint8_t* row, int64_t i) {
  float f;
  const uint32_t b = type == RB_BF16 ? static_cast<uint32_t>(word(row + 2 * i)) << 16 : 0;
  std::memcpy(&f, type == RB_F32 ? static_cast<const void*>(row + 4 * i) : &b, 4);
  return {type == RB_F16 ? half_value(row + 2 * i) : static_cast<double>(f), 0.0};
}

Weight simple(int32_t type, const uint8_t* row, int64_t index) {
  static constexpr int bytes[] = {0, 0, 0, 34, 18, 20, 22, 24};
  const uint8_t* b = row + index / 32 * bytes[type];
  const int i = static_cast<int>(index % 32);
  const double d = half_value(b), m = half_value(b + 2);
  const auto nibble = [&](int start) { return i < 16 ? b[start + i] % 16 : b[start + i - 16] / 16; };
  switch (type) {
    case RB_Q8_0:
      return {d * static_cast<int8_t>(b[2 + i]), 0.0};
    case RB_Q4_0:
      return {d * (nibble(2) - 8), 0.0};
    case RB_Q4_1:
      return {d * nibble(4), m};
    case RB_Q5_0:
      return {d * (nibble(6) + 16 * bit(b + 2, i) - 16), 0.0};
    default:
      return {d * (nibble(8) + 16 * bit(b + 4, i)), m};
  }
}

// The 6-bit scale (which = 0) or minimum (which = 1) of sub-block s: 12 bytes, the last four sub-blocks split in 4 + 2 bits.
int six_bits(const uint8_t* p, int s, int which) {
  if (s < 4) return p[s + 4 * which] % 64;
  const int low = which == 0 ? p[s + 4] % 16 : p[s + 4] / 16;
  return low + 16 * (p[s - 4 + 4 * which] / 64);
}

Weight super(int32_t type, const uint8_t* row, int64_t index) {
  const int i = static_cast<int>(index % 256), s = i / 32;
  if (type == RB_Q6_K) {
    const uint8_t* b = row + index / 256 * 210;
    const int half = i / 128, j = i % 128, l = j % 32, quarter = j / 32;
    const int low = b[64 * half + l + 32 * (quarter % 2)], high = b[128 + 32 * half + l];
    const int q = (quarter < 2 ? low % 16 : low / 16) + 16 * (high >> (2 * quarter) & 3);
    return {half_value(b + 208) * static_cast<int8_t>(b[192 + i / 16]) * (q - 32), 0.0};
  }
  const uint8_t* b = row + index / 256 * (type == RB_Q4_K ? 144 : 176);
  const uint8_t byte = b[(type == RB_Q4_K ? 16 : 48) + 32 * (s / 2) + i % 32];
  const int q = (s % 2 == 0 ? byte % 16 : byte / 16) + (type == RB_Q5_K ? 16 * (b[16 + i % 32] >> s & 1) : 0);
  return {half_value(b) * six_bits(b + 4, s, 0) * q, -half_value(b + 2) * six_bits(b + 4, s, 1)};
}

}  // namespace

double half_value(const uint8_t* p) {
  const int h = word(p), sign = h >> 15, exponent = h >> 10 & 31, fraction = h & 1023;
  if (exponent == 31) return fraction != 0 ? NAN : sign != 0 ? -INFINITY : INFINITY;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return sign != 0 ? -magnitude : magnitude;
}

std::vector<Weight> decode_row(int32_t type, const uint8_t* row, int64_t k) {
  std::vector<Weight> out;
  for (int64_t i = 0; i < k; ++i) {
    out.push_back(type <= RB_BF16 ? plain(type, row, i) : type <= RB_Q5_1 ? simple(type, row, i) : super(type, row, i));
  }
  return out;
}

std::vector<double> dequantized(const uint8_t* row, int32_t k) {
  std::vector<double> out;
  for (int32_t i = 0; i < k; ++i) {
    float d;
    std::memcpy(&d, row + k + i / 16 * 4, 4);
    out.push_back(static_cast<double>(d) * static_cast<int8_t>(row[i]));
  }
  return out;
}
