// attention_range.h: which positions a query sees.
#pragma once
#include "cpu/rows.h"

namespace rb::RB_NS {

RB_INLINE int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
RB_INLINE int32_t most(int32_t a, int32_t b) { return a > b ? a : b; }

struct Query {
  int32_t first, last;  // the positions it sees
};

// From a position with a window (0: all before it).
RB_INLINE Query seen_from(int32_t position, int32_t window) {
  return {window > 0 && position >= window ? position - window + 1 : 0, position};
}

// Lanes that stand for positions first..last of a block that begins at `base`; the others become -infinity.
RB_INLINE F visible(F s, int32_t base, const Query& q) {
  static constexpr float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  if (base >= q.first && base + 15 <= q.last) return s;
  const F lane = load(lanes), never = set1(-__builtin_inff());
  const F from_first = select(lt(lane, set1(static_cast<float>(q.first - base))), never, s);
  return select(lt(set1(static_cast<float>(q.last - base)), lane), never, from_first);
}

}  // namespace rb::RB_NS
