// The queue of merges against a sorted list: the same candidate comes out each time, for ranks that only rise (trained
// vocabularies) and for any others, and the queue is as new after each word.
#include <cstdio>
#include <set>

#include "text/merge_queue.h"
#include "text/tests/random.h"

using rebar::text::Candidate;
using rebar::text::MergeQueue;

namespace {

Random chance;

uint32_t random_below(uint32_t n) { return static_cast<uint32_t>(chance.below(n)); }

// One word of n symbols; each candidate that comes out offers up to two more. Says how many came out wrong.
int word(MergeQueue& queue, uint32_t n, uint32_t ranks, bool rising) {
  std::set<uint64_t> wanted;  // orders; each is offered once
  int wrong = 0;
  const auto offer = [&](uint32_t rank, uint32_t place) {
    const uint64_t order = uint64_t{rank} << 32 | place;
    if (wanted.insert(order).second) queue.push({order, rank, place, rank ^ place});
  };
  queue.restart();
  for (uint32_t i = 0; i < n; ++i) offer(random_below(ranks), i);
  for (uint32_t more = n; !wanted.empty();) {
    if (queue.empty()) return wrong + 1;
    const Candidate next = queue.pop();
    const bool whole = next.left == next.rank() && next.right == next.place() && next.id == (next.left ^ next.right);
    if (next.order != *wanted.begin() || !whole) ++wrong;
    wanted.erase(wanted.begin());
    for (uint32_t i = 0; i < 2 && more > 0; ++i, --more) {
      const uint32_t rank = rising ? next.rank() + 1 + random_below(ranks) : random_below(ranks);
      const uint64_t order = uint64_t{rank} << 32 | random_below(n);
      if (order > next.order || !rising) offer(rank, static_cast<uint32_t>(order));
    }
  }
  return wrong + (queue.empty() ? 0 : 1);
}

}  // namespace

int main() {
  MergeQueue queue;
  int wrong = 0, words = 0;
  for (const uint32_t n : {1u, 2u, 30u, 300u, 5000u})
    for (const uint32_t ranks : {1u, 2u, 50u, 1u << 18, 0xFFFFFF00u})
      for (const bool rising : {true, false})
        for (int round = 0; round < 20; ++round, ++words)
          wrong += word(queue, n, rising && ranks > 1u << 30 ? 1u << 18 : ranks, rising);
  std::printf("%d words, %d wrong\n", words, wrong);
  return wrong == 0 ? 0 : 1;
}
