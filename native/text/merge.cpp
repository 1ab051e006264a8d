#include <algorithm>

#include "text/tokenizer.h"

namespace rebar::text {
namespace {

// Up to this many symbols a scan for the lowest rank beats a queue (words are short: 2-8 symbols mostly).
constexpr size_t kScanned = 24;

struct Pair {
  uint32_t rank, id;  // rank kNone: the two do not merge
};

Pair pair_of(const Vocabulary& v, uint32_t left, uint32_t right) {
  const Merge* m = v.merge(left, right);
  return m ? Pair{m->rank, m->id} : Pair{kNone, kNone};
}

void merge_short(const Vocabulary& v, std::vector<uint32_t>& ids) {
  Pair pairs[kScanned];
  size_t n = ids.size();
  for (size_t i = 0; i + 1 < n; ++i) pairs[i] = pair_of(v, ids[i], ids[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (pairs[i].rank < pairs[best].rank) best = i;
    if (pairs[best].rank == kNone) break;
    count_steps(2 * n);
    ids[best] = pairs[best].id;
    std::copy(ids.begin() + best + 2, ids.begin() + n, ids.begin() + best + 1);
    if (best + 2 < n) std::copy(pairs + best + 2, pairs + n - 1, pairs + best + 1);
    --n;
    if (best > 0) pairs[best - 1] = pair_of(v, ids[best - 1], ids[best]);
    if (best + 1 < n) pairs[best] = pair_of(v, ids[best], ids[best + 1]);
  }
  ids.resize(n);
}

struct LongMerge {
  const Vocabulary& v;
  Scratch& s;
  MergeQueue& queue;

  void offer(uint32_t left) {
    const uint32_t right = s.symbols[left].next;
    if (right == kNone) return;
    const Pair pair = pair_of(v, s.symbols[left].id, s.symbols[right].id);
    if (pair.rank == kNone) return;
    queue.push({uint64_t{pair.rank} << 32 | left, s.symbols[left].id, s.symbols[right].id, pair.id});
  }

  // Joins the best pair if it still stands as it was offered (a swallowed symbol has id kNone).
  void take() {
    const Candidate best = queue.pop();
    const auto left = static_cast<uint32_t>(best.order);
    Scratch::Symbol& a = s.symbols[left];
    if (a.id != best.left || a.next == kNone || s.symbols[a.next].id != best.right) return;
    Scratch::Symbol& b = s.symbols[a.next];
    a.id = best.id, a.next = b.next, b.id = kNone;
    if (a.next != kNone) s.symbols[a.next].previous = left;
    offer(left);
    if (a.previous != kNone) offer(a.previous);
  }
};

void merge_long(const Vocabulary& v, Scratch& s, std::vector<uint32_t>& out) {
  const std::vector<uint32_t>& ids = s.ids;
  const auto n = static_cast<uint32_t>(ids.size());
  s.symbols.resize(n);
  for (uint32_t i = 0; i < n; ++i) s.symbols[i] = {ids[i], i == 0 ? kNone : i - 1, i + 1 == n ? kNone : i + 1};
  if (!s.queue) s.queue.emplace();
  LongMerge merge{v, s, *s.queue};
  s.queue->restart();
  for (uint32_t i = 0; i + 1 < n; ++i) merge.offer(i);
  while (!s.queue->empty()) merge.take();
  count_steps(n);
  for (uint32_t i = 0; i != kNone; i = s.symbols[i].next) out.push_back(s.symbols[i].id);
}

}  // namespace

void merge_symbols(const Vocabulary& v, Scratch& scratch, std::vector<uint32_t>& out) {
  std::vector<uint32_t>& ids = scratch.ids;
  if (ids.empty()) return;
  if (ids.size() > kScanned) return merge_long(v, scratch, out);
  merge_short(v, ids);
  out.insert(out.end(), ids.begin(), ids.end());
}

}  // namespace rebar::text
