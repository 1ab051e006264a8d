// merge_queue.h: which two symbols merge next: the lowest rank first, among equals the leftmost. O(1) for each, however
// long the word is.
//
// By rank: a radix heap (Ahuja, Mehlhorn, Orlin and Tarjan, "Faster algorithms for the shortest path problem", 1990).
// In a vocabulary made by training, what a merge makes possible has a higher rank than the merge, so nothing comes in
// before what went out. A rank that first differs from the present one in bit b waits in bucket b and only moves to
// lower buckets: at most once per bit of a rank. By place: those of the present rank are sorted when their turn comes;
// they come in a few ascending runs, mostly one. A binary heap would compare log n times and miss the cache each time.
//
// A vocabulary may say anything: what does come in before its turn waits in a small binary heap, in the same order.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "text/steps.h"

namespace rebar::text {

struct Candidate {
  uint64_t order;  // rank, then place from the left
  uint32_t left, right, id;
  uint32_t rank() const { return static_cast<uint32_t>(order >> 32); }
  uint32_t place() const { return static_cast<uint32_t>(order); }
  bool operator<(const Candidate& other) const { return order > other.order; }  // a heap with the smallest on top
};

class MergeQueue {
 public:
  bool empty() const { return at_ == present_.size() && waiting_ == 0 && early_.empty(); }
  void push(const Candidate& c);
  Candidate pop();  // there must be one
  void restart();   // for the next word; the queue must be empty

 private:
  std::vector<Candidate> buckets_[32], present_, early_, spare_;
  size_t at_ = 0;         // present_[at_..] are to come
  uint32_t waiting_ = 0;  // bit b: buckets_[b] holds something
  uint32_t rank_ = 0;     // the present one
  bool begun_ = false;

  void put(const Candidate& c);
  void refill();
  void sort_present();
};

}  // namespace rebar::text
