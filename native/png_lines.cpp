#include "png_lines.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace rb {
namespace {

using Byte = std::uint8_t;

// Whichever is nearest to left + up - corner; ties in this order (section 9.4).
Byte paeth(int left, int up, int corner) {
  const int to_left = std::abs(up - corner), to_up = std::abs(left - corner);
  const int to_corner = std::abs(left + up - 2 * corner);
  if (to_left <= to_up && to_left <= to_corner) return static_cast<Byte>(left);
  return static_cast<Byte>(to_up <= to_corner ? up : corner);
}

// Before the first value of a line, and above the first line, stand zeros.
template <class Guess>
void predicted(const Byte* told, const Byte* above, Byte* line, std::size_t nbytes, std::size_t unit, Guess guess) {
  const std::size_t first = std::min(unit, nbytes);
  for (std::size_t i = 0; i < first; ++i) line[i] = static_cast<Byte>(told[i] + guess(0, above[i], 0));
  for (std::size_t i = first; i < nbytes; ++i) {
    line[i] = static_cast<Byte>(told[i] + guess(line[i - unit], above[i], above[i - unit]));
  }
}

}  // namespace

bool png_unfiltered(const Byte* raw, Byte* lines, std::size_t height, std::size_t nbytes, std::size_t unit) {
  const std::vector<Byte> zeros(nbytes);
  const Byte* above = zeros.data();
  for (std::size_t y = 0; y < height; ++y) {
    const Byte rule = raw[y * (nbytes + 1)], *told = raw + y * (nbytes + 1) + 1;
    Byte* line = lines + y * nbytes;
    switch (rule) {
      case 0:
        std::copy_n(told, nbytes, line);
        break;
      case 1:
        predicted(told, above, line, nbytes, unit, [](int left, int, int) { return left; });
        break;
      case 2:
        predicted(told, above, line, nbytes, unit, [](int, int up, int) { return up; });
        break;
      case 3:
        predicted(told, above, line, nbytes, unit, [](int left, int up, int) { return (left + up) / 2; });
        break;
      case 4:
        predicted(told, above, line, nbytes, unit, paeth);
        break;
      default:
        return false;
    }
    above = line;
  }
  return true;
}

}  // namespace rb
