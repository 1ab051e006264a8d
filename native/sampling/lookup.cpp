#include "sampling/lookup.h"

#include <algorithm>
#include <bit>

namespace rebar::sampling {
namespace {

constexpr int kCandidates = 16;
constexpr int32_t kLongest = 32;  // a longer match says no more
constexpr int32_t kResume = 4;    // after so long a match one id may differ and the rest go on
// Chances by class of length (none but resumed, 2, 3, 4-5, 6-8, 9-15, 16-31, 32) before anything is known, as chat
// models answer: worth kPrior observations. Of what was observed the latest kMemory count.
constexpr float kFirst[] = {0.25f, 0.1f, 0.25f, 0.4f, 0.6f, 0.75f, 0.85f, 0.95f};
constexpr float kPrior = 3.0f, kMemory = 16.0f;

}  // namespace

Lookup::Lookup(int64_t capacity)
    : latest_(std::bit_ceil(static_cast<size_t>(std::max<int64_t>(capacity, 16))), -1),
      earlier_(static_cast<size_t>(capacity), -1) {
  for (int i = 0; i < kClasses; ++i) tallies_[i] = {kFirst[i] * kPrior, kPrior};
}

int Lookup::class_of(int32_t length) {
  constexpr int32_t kLeast[] = {0, 2, 3, 4, 6, 9, 16, 32};
  int found = 0;
  while (found + 1 < kClasses && length >= kLeast[found + 1]) ++found;
  return found;
}

float Lookup::chance(int32_t length) const {
  const Tally& tally = tallies_[class_of(length)];
  return tally.right / tally.all;
}

uint32_t Lookup::slot(int32_t a, int32_t b) const {
  const uint64_t pair = static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32 | static_cast<uint32_t>(b);
  return static_cast<uint32_t>(pair * 0x9E3779B97F4A7C15u >> 32) & static_cast<uint32_t>(latest_.size() - 1);
}

// The tally of a class holds at most kMemory observations: older ones fade as new ones come.
void Lookup::learn(bool right) {
  Tally& tally = tallies_[class_of(length_)];
  const float keep = std::min(1.0f, (kMemory - 1.0f) / tally.all);
  tally = {tally.right * keep + (right ? 1.0f : 0.0f), tally.all * keep + 1.0f};
}

void Lookup::follow(int32_t id, std::span<const int32_t> known) {
  if (source_ < 0) return;
  if (known[source_] == id) {
    length_ = std::min(length_ + 1, kLongest);
  } else if (length_ >= kResume) {
    length_ = 0;
  } else {
    source_ = -1;
    return;
  }
  ++source_;
}

// known ends where the guess is wanted. Another place takes over from the one that is followed when it matches for
// longer and such matches have been right no less often.
void Lookup::seek(std::span<const int32_t> known) {
  const int64_t end = static_cast<int64_t>(known.size());
  if (end < 2) return;
  int64_t place = latest_[slot(known[end - 2], known[end - 1])];
  for (int i = 0; i < kCandidates && place >= 0; ++i, place = earlier_[place]) {
    const int64_t most = std::min<int64_t>(place, kLongest);
    int32_t length = 0;
    while (length < most && known[place - 1 - length] == known[end - 1 - length]) ++length;
    if (length < 2) continue;
    if (source_ < 0 || (length > length_ && chance(length) >= chance(length_))) source_ = place, length_ = length;
  }
}

void Lookup::read(std::span<const int32_t> ids, int64_t prompt) {
  const int64_t total = std::min<int64_t>(static_cast<int64_t>(ids.size()), capacity());
  for (; seen_ < total; ++seen_) {
    const auto known = ids.first(static_cast<size_t>(seen_ + 1));
    if (seen_ >= prompt && source_ >= 0) learn(ids[source_] == ids[seen_]);
    follow(ids[seen_], known);
    if (seen_ + 1 >= prompt) seek(known);
    if (seen_ == 0 || seen_ + 1 == capacity()) continue;
    int32_t& latest = latest_[slot(ids[seen_ - 1], ids[seen_])];
    earlier_[seen_ + 1] = latest;
    latest = static_cast<int32_t>(seen_ + 1);
  }
}

// A source that reaches the end goes on with the guesses themselves: the text repeats with a period.
int64_t Lookup::guess(std::span<const int32_t> known, std::span<int32_t> ids, std::span<float> chances) const {
  if (source_ < 0 || static_cast<int64_t>(known.size()) != seen_) return 0;
  float together = 1.0f;
  for (int64_t i = 0; i < static_cast<int64_t>(ids.size()); ++i) {
    const int64_t at = source_ + i;
    ids[i] = at < seen_ ? known[at] : ids[at - seen_];
    // A guess after a place that was left stands on the guesses before it.
    const int32_t length =
        length_ == 0 && i > 0 ? std::max<int32_t>(static_cast<int32_t>(i), 2) : length_ + static_cast<int32_t>(i);
    chances[i] = together *= chance(std::min(length, kLongest));
  }
  return static_cast<int64_t>(ids.size());
}

}  // namespace rebar::sampling
