// The look-up of guesses under the address and undefined-behaviour sanitizers: texts of any length in buffers of exactly
// that size, read in pieces, ids of any value. What is guessed is decided in tests/service/test_speculation.py.
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

#include "sampling/lookup.h"
#include "sampling/philox.h"
#include "sampling/tests/check.h"

using rebar::sampling::Lookup;
using rebar::sampling::uniform;

namespace {

void any_text(int64_t length, int32_t kinds, uint64_t seed) {
  Lookup lookup(length > 0 ? length : 1);
  const int64_t prompt = static_cast<int64_t>(uniform(seed, 0) * static_cast<double>(length));
  std::vector<int32_t> text;
  for (int64_t i = 0; i < length; ++i) {
    const auto kind = static_cast<int32_t>(uniform(seed, static_cast<uint64_t>(i) + 1) * kinds);
    text.push_back(kind == 0   ? std::numeric_limits<int32_t>::max()
                   : kind == 1 ? std::numeric_limits<int32_t>::min()
                               : kind);
    if (uniform(seed + 1, static_cast<uint64_t>(i)) < 0.5) continue;
    const std::vector<int32_t> exact(text);  // its end is the end of its memory
    std::vector<int32_t> ids(7);
    std::vector<float> chances(7);
    lookup.read(exact, prompt);
    const int64_t count = lookup.guess(exact, ids, chances);
    CHECK(count == 0 || count == 7);
    for (int64_t j = 0; j < count; ++j) {
      CHECK(chances[j] > 0.0f && chances[j] <= (j > 0 ? chances[j - 1] : 1.0f));
      bool said = false;
      for (const int32_t id : exact) said = said || id == ids[j];
      CHECK(said);
    }
  }
}

}  // namespace

int main() {
  for (uint64_t seed = 0; seed < 20; ++seed)
    for (const int64_t length : {0, 1, 2, 3, 16, 17, 100, 700})
      for (const int32_t kinds : {1, 2, 5, 100}) any_text(length, kinds, seed);
  std::printf("lookup: ok\n");
  return 0;
}
