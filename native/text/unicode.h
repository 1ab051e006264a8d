// unicode.h: code points and the classes that pre-tokenizers ask for.
#pragma once
#include <cstddef>
#include <cstdint>

#include "text/steps.h"

namespace rebar::text {

constexpr uint8_t kLetter = 1, kNumber = 2, kSpace = 4, kDigit = 8;
constexpr uint32_t kBadPoint = 0x110000;  // what a byte that is no UTF-8 reads as; in no class

struct Point {
  uint32_t code;
  uint32_t bytes;
};

// The code point at p < end. A byte that does not begin a well-formed sequence (Unicode 16, table 3-7) is one
// kBadPoint of one byte.
inline Point read_point(const uint8_t* p, const uint8_t* end) {
  count_steps(1);
  const uint8_t a = p[0];
  if (a < 0x80) return {a, 1};
  const auto tail = [&](int i) { return (p[i] & 0xC0) == 0x80; };
  if (a >= 0xC2 && a <= 0xDF && end - p >= 2 && tail(1)) return {(a & 0x1Fu) << 6 | (p[1] & 0x3Fu), 2};
  if ((a & 0xF0) == 0xE0 && end - p >= 3 && tail(1) && tail(2)) {
    const uint32_t c = (a & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    if (c >= 0x800 && (c < 0xD800 || c > 0xDFFF)) return {c, 3};
  }
  if ((a & 0xF8) == 0xF0 && end - p >= 4 && tail(1) && tail(2) && tail(3)) {
    const uint32_t c = (a & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    if (c >= 0x10000 && c <= 0x10FFFF) return {c, 4};
  }
  return {kBadPoint, 1};
}

// Bits of kLetter.. (and kUnsettled, normalize.h) for every code point; entry kBadPoint is 0.
// Filled once, on first use; safe from any thread.
const uint8_t* class_table();

}  // namespace rebar::text
