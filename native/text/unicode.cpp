#include "text/unicode.h"

#include <vector>

#include "text/normalize.h"

namespace rebar::text {
namespace {

struct Range {
  uint32_t first, last;
  uint8_t bits;
};

constexpr Range kRanges[] = {
#include "text/unicode_classes.inc"
};

std::vector<uint8_t> fill() {
  std::vector<uint8_t> table(kBadPoint + 1, 0);
  for (const Range& r : kRanges)
    for (uint32_t c = r.first; c <= r.last; ++c) table[c] = r.bits;
  mark_unsettled(table.data());
  return table;
}

}  // namespace

const uint8_t* class_table() {
  static const std::vector<uint8_t> table = fill();
  return table.data();
}

}  // namespace rebar::text
