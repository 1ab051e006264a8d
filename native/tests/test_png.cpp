// Lines of a PNG image: told as differences by every rule, they come back; nothing is read or written beside them.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

#include "png_lines.h"
#include "test.h"

namespace {

using Bytes = std::vector<std::uint8_t>;

// What section 9.4 says of the fourth rule, word for word.
int nearest(int a, int b, int c) {
  const int p = a + b - c, pa = std::abs(p - a), pb = std::abs(p - b), pc = std::abs(p - c);
  return pa <= pb && pa <= pc ? a : pb <= pc ? b : c;
}

// The way there: each byte less its guess.
Bytes filtered(const Bytes& lines, std::size_t height, std::size_t nbytes, std::size_t unit, std::size_t first) {
  Bytes raw;
  for (std::size_t y = 0; y < height; ++y) {
    const std::size_t rule = (first + y) % 5;
    raw.push_back(static_cast<std::uint8_t>(rule));
    for (std::size_t i = 0; i < nbytes; ++i) {
      const auto at = [&](std::size_t back_y, std::size_t back_i) -> int {
        return y < back_y || i < back_i ? 0 : lines[(y - back_y) * nbytes + i - back_i];
      };
      const int a = at(0, unit), b = at(1, 0), c = at(1, unit);
      const std::array<int, 5> guesses{0, a, b, (a + b) / 2, nearest(a, b, c)};
      raw.push_back(static_cast<std::uint8_t>(lines[y * nbytes + i] - guesses[rule]));
    }
  }
  return raw;
}

}  // namespace

TEST(png, every_rule_comes_back) {
  std::mt19937 random(1);
  for (const std::size_t unit : {1, 2, 3, 4, 6, 8}) {
    for (const std::size_t nbytes : {std::size_t{1}, unit, unit + 1, 5 * unit, std::size_t{97}}) {
      Bytes lines(11 * nbytes);
      for (auto& byte : lines) byte = static_cast<std::uint8_t>(random());
      for (std::size_t first = 0; first < 5; ++first) {
        Bytes found(lines.size());
        CHECK(rb::png_unfiltered(filtered(lines, 11, nbytes, unit, first).data(), found.data(), 11, nbytes, unit));
        CHECK(found == lines);
      }
    }
  }
}

TEST(png, a_rule_that_does_not_exist_is_told) {
  const Bytes raw{0, 7, 5, 7};
  Bytes found(2);
  CHECK(!rb::png_unfiltered(raw.data(), found.data(), 2, 1, 1));
}
