#include "text/merge_queue.h"

#include <array>
#include <utility>

namespace rebar::text {

void MergeQueue::push(const Candidate& c) {
  if (!begun_ || c.rank() > rank_) return put(c);
  early_.push_back(c);
  count_steps(std::bit_width(early_.size()));
  std::push_heap(early_.begin(), early_.end());
}

// Rank 0 shares bucket 0 with rank 1 before anything went out; refill() tells them apart.
void MergeQueue::put(const Candidate& c) {
  count_steps(1);
  const uint32_t differs = c.rank() ^ rank_, bucket = differs == 0 ? 0 : std::bit_width(differs) - 1;
  buckets_[bucket].push_back(c);
  waiting_ |= uint32_t{1} << bucket;
}

Candidate MergeQueue::pop() {
  count_steps(1);
  if (at_ == present_.size() && waiting_ != 0) refill();
  const bool regular = at_ < present_.size();
  if (early_.empty() || (regular && present_[at_].order < early_.front().order)) return present_[at_++];
  count_steps(2 * std::bit_width(early_.size()));
  std::pop_heap(early_.begin(), early_.end());
  const Candidate next = early_.back();
  early_.pop_back();
  return next;
}

void MergeQueue::restart() {
  present_.clear();
  at_ = 0, rank_ = 0, begun_ = false;
}

// Spreads the lowest bucket over those below it; its lowest rank becomes the present one.
void MergeQueue::refill() {
  const int lowest = std::countr_zero(waiting_);
  waiting_ &= waiting_ - 1;
  present_.clear();
  at_ = 0, begun_ = true;
  spare_.swap(buckets_[lowest]);
  count_steps(spare_.size());
  rank_ = spare_[0].rank();
  for (const Candidate& c : spare_) rank_ = std::min(rank_, c.rank());
  for (const Candidate& c : spare_) {
    if (c.rank() == rank_)
      present_.push_back(c);
    else
      put(c);
  }
  spare_.clear();
  sort_present();
}

// By place: counting passes of 11 bits, as many as the highest place needs and never more than three.
void MergeQueue::sort_present() {
  const auto before = [](const Candidate& a, const Candidate& b) { return a.order < b.order; };
  count_steps(present_.size());
  if (std::is_sorted(present_.begin(), present_.end(), before)) return;
  if (present_.size() <= 256) return std::sort(present_.begin(), present_.end(), before);
  uint32_t most = 0;
  for (const Candidate& c : present_) most = std::max(most, c.place());
  spare_.resize(present_.size());
  for (uint32_t shift = 0; most >> shift != 0; shift += 11) {
    count_steps(2 * present_.size());
    std::array<uint32_t, 2048> start{};
    for (const Candidate& c : present_) ++start[c.place() >> shift & 2047];
    uint32_t sum = 0;
    for (uint32_t& s : start) sum += std::exchange(s, sum);
    for (const Candidate& c : present_) spare_[start[c.place() >> shift & 2047]++] = c;
    present_.swap(spare_);
  }
  spare_.clear();
}

}  // namespace rebar::text
