// lookup.h: what a sequence may say next, by what followed when it last stood like this.
//
// The law: the guesses and their chances are a function of the sequence's ids alone. They decide how fast an answer
// comes, never what it says. The longest match of the latest ids is sought among the latest kCandidates places that end
// with the same two ids, and the place followed so far is preferred among equals. Reading an id costs a bounded number
// of steps; memory is 8 to 12 bytes an id of capacity, taken once.
//
// Chances are learned whether or not anybody used the guesses: every id that was sampled is compared with the one that
// would have been guessed, by how long the match was. So a text that does not repeat itself costs nothing to find out.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace rebar::sampling {

class Lookup {
 public:
  // capacity: most ids the sequence will have.
  explicit Lookup(int64_t capacity);

  // Reads what is new. ids: the whole sequence so far, whose earlier ids are as before and whose first `prompt` were
  // not sampled.
  void read(std::span<const int32_t> ids, int64_t prompt);
  // Up to ids.size() guesses for what follows `known`, the ids read so far, and for each the chance that it and all
  // before it stand. Returns how many there are: none or all.
  int64_t guess(std::span<const int32_t> known, std::span<int32_t> ids, std::span<float> chances) const;

  int64_t capacity() const { return static_cast<int64_t>(earlier_.size()); }

 private:
  struct Tally {  // of guesses at matches of one class of length, the latest count most
    float right, all;
  };
  static constexpr int kClasses = 8;

  static int class_of(int32_t length);
  float chance(int32_t length) const;
  uint32_t slot(int32_t a, int32_t b) const;
  void learn(bool right);
  void follow(int32_t id, std::span<const int32_t> known);
  void seek(std::span<const int32_t> known);

  int64_t seen_ = 0;
  int64_t source_ = -1;           // ids[source_] is the guess for the next id; -1: none
  int32_t length_ = 0;            // of the match before source_, at most kLongest; 0: the id before it was another one
  std::vector<int32_t> latest_;   // by slot: the position after the latest such pair, -1 for none
  std::vector<int32_t> earlier_;  // by position: the one before it of the same slot
  std::array<Tally, kClasses> tallies_;
};

}  // namespace rebar::sampling
