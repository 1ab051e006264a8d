#include "text/normalize.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "text/unicode.h"

namespace rebar::text {
namespace {

struct MarkRange {
  uint32_t first, last;
  uint8_t order;
};
struct Decomposition {
  uint32_t point, first, second;
  bool composes;
};
#include "text/normalization.inc"

// Hangul syllables (Unicode 16, 3.12).
constexpr uint32_t kS = 0xAC00, kL = 0x1100, kV = 0x1161, kT = 0x11A7;
constexpr uint32_t kLs = 19, kVs = 21, kTs = 28, kSs = kLs * kVs * kTs;

struct Placed {  // a character and its combining class; 0: it starts a new group
  uint32_t code;
  uint8_t order;
};

struct Composition {
  uint64_t pair;
  uint32_t point;
  bool operator<(const Composition& other) const { return pair < other.pair; }
};

uint64_t pair_of(uint32_t a, uint32_t b) { return uint64_t{a} << 32 | b; }

const std::vector<Composition>& compositions() {
  static const std::vector<Composition> sorted = [] {
    std::vector<Composition> all;
    for (const Decomposition& d : kDecompositions)
      if (d.composes) all.push_back({pair_of(d.first, d.second), d.point});
    std::sort(all.begin(), all.end());
    return all;
  }();
  return sorted;
}

uint8_t order_of(uint32_t code) {
  const auto at = std::upper_bound(std::begin(kMarks), std::end(kMarks), code,
                                   [](uint32_t c, const MarkRange& r) { return c < r.first; });
  return at != std::begin(kMarks) && code <= std::prev(at)->last ? std::prev(at)->order : 0;
}

void decompose(uint32_t code, std::vector<Placed>& out) {
  if (code - kS < kSs) {
    const uint32_t s = code - kS;
    out.push_back({kL + s / (kVs * kTs), 0});
    out.push_back({kV + s / kTs % kVs, 0});
    if (s % kTs != 0) out.push_back({kT + s % kTs, 0});
    return;
  }
  const auto at = std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), code,
                                   [](const Decomposition& d, uint32_t c) { return d.point < c; });
  if (at == std::end(kDecompositions) || at->point != code) {
    out.push_back({code, order_of(code)});
    return;
  }
  decompose(at->first, out);
  if (at->second != 0) decompose(at->second, out);
}

// The character that a and b make together; 0 when there is none.
uint32_t composed(uint32_t a, uint32_t b) {
  if (a - kL < kLs && b - kV < kVs) return kS + ((a - kL) * kVs + (b - kV)) * kTs;
  if (a - kS < kSs && (a - kS) % kTs == 0 && b - kT - 1 < kTs - 1) return a + (b - kT);
  const auto& all = compositions();
  const auto at = std::lower_bound(all.begin(), all.end(), Composition{pair_of(a, b), 0});
  return at != all.end() && at->pair == pair_of(a, b) ? at->point : 0;
}

// By class, equals as they came. Words have one mark or two; a counting sort keeps a million of them linear.
void sort_run(Placed* run, size_t n, std::vector<Placed>& spare) {
  if (n <= 64) return std::stable_sort(run, run + n, [](Placed a, Placed b) { return a.order < b.order; });
  count_steps(3 * n);
  size_t start[256] = {}, sum = 0;
  for (size_t i = 0; i < n; ++i) ++start[run[i].order];
  for (size_t& s : start) sum += std::exchange(s, sum);
  spare.resize(n);
  for (size_t i = 0; i < n; ++i) spare[start[run[i].order]++] = run[i];
  std::copy(spare.begin(), spare.end(), run);
}

void sort_marks(std::vector<Placed>& chars) {
  std::vector<Placed> spare;
  for (size_t from = 0; from < chars.size();) {
    if (chars[from].order == 0) {
      ++from;
      continue;
    }
    size_t to = from;
    while (to < chars.size() && chars[to].order != 0) ++to;
    sort_run(&chars[from], to - from, spare);
    from = to;
  }
}

// Joins marks to the last starter unless something of the same or a higher class stands between; in place.
void compose(std::vector<Placed>& chars) {
  size_t kept = 0, starter = SIZE_MAX;
  for (const Placed c : chars) {
    if (starter != SIZE_MAX) {
      const bool next_to = starter + 1 == kept;
      const bool blocked = !next_to && (chars[kept - 1].order == 0 || chars[kept - 1].order >= c.order);
      const uint32_t joined = blocked ? 0 : composed(chars[starter].code, c.code);
      if (joined != 0) {
        chars[starter].code = joined;
        continue;
      }
    }
    if (c.order == 0) starter = kept;
    chars[kept++] = c;
  }
  chars.resize(kept);
}

void append_utf8(uint32_t c, std::string& out) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c >= kBadPoint) return put(c - kBadPoint);
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

bool settled(const uint8_t* p, const uint8_t* end, const uint8_t* classes) {
  while (p < end) {
    if (*p < 0xCC) {  // below U+0300 nothing is unsettled
      ++p;
      continue;
    }
    const Point point = read_point(p, end);
    if (classes[point.code] & kUnsettled) return false;
    p += point.bytes;
  }
  return true;
}

}  // namespace

void mark_unsettled(uint8_t* classes) {
  for (const MarkRange& r : kMarks)
    for (uint32_t c = r.first; c <= r.last; ++c) classes[c] |= kUnsettled;
  for (const Decomposition& d : kDecompositions) {
    if (d.composes)
      classes[d.second] |= kUnsettled;
    else
      classes[d.point] |= kUnsettled;
  }
  for (uint32_t v = 0; v < kVs; ++v) classes[kV + v] |= kUnsettled;
  for (uint32_t t = 1; t < kTs; ++t) classes[kT + t] |= kUnsettled;
}

std::string_view nfc(std::string_view text, const uint8_t* classes, std::string& store) {
  const auto* p = reinterpret_cast<const uint8_t*>(text.data());
  const uint8_t* end = p + text.size();
  if (settled(p, end, classes)) return text;
  std::vector<Placed> chars;
  chars.reserve(text.size());
  while (p < end) {
    const Point point = read_point(p, end);
    if (point.code == kBadPoint)
      chars.push_back({kBadPoint + *p, 0});
    else
      decompose(point.code, chars);
    p += point.bytes;
  }
  count_steps(4 * chars.size());
  sort_marks(chars);
  compose(chars);
  store.clear();
  for (const Placed c : chars) append_utf8(c.code, store);
  return store;
}

}  // namespace rebar::text
