// sample.h: one row of logits -> one id.
//
// The law: the answer is a function of (logits, parameters, seed, position, the ids before) and of nothing else: not
// of the batch, the thread, the instruction set or what was sampled earlier. The steps, in this fixed order:
//   0. mask                 x of an id that the request does not allow: -inf
//   1. repetition penalty   ids of prompt and output, once each: x > 0 ? x / r : x * r
//   2. frequency, presence  ids of the output: x - count * frequency - presence
//   3. logit bias           x + bias
//   4. greedy               temperature <= 1e-4 (or top_k 1): the greatest x, lowest id of equals; done
//   5. temperature          weight = exp((x - max x) / temperature): the maximum goes first, so nothing overflows
//   6. top-k                the k greatest x, lower ids first among equals
//   7. min-p                weights of at least min_p times the greatest
//   8. top-p                of what is left, by falling weight (lower ids first among equals), the shortest
//                           beginning whose sum reaches top_p times the sum of what is left; at least one id
//   9. draw                 u = uniform(seed, position); walking what is left by ascending id, the first id at
//                           which the running sum exceeds u times the sum
// Weights are float: one rounding each, relative error 2^-23, far below what a draw can show, at twice the lanes of
// double. Sums of weights are double (block sums: lanes.h), so that no small weight is lost in a large sum.
//
// +inf is read as FLT_MAX (ids at +inf share everything equally), -inf is never sampled, ids >= vocab_size do not
// exist. A NaN, or a row of nothing but -inf, is an error of this row.
//
// Log probabilities are of the raw distribution: log-softmax of the logits as they came, before step 0, over ids <
// vocab_size; never below -9999, so always finite.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "sampling/lanes.h"

namespace rebar::sampling {

struct Bias {
  int32_t id;
  float value;
};

struct Params {
  double temperature = 1.0;
  int64_t top_k = 0;  // 0: off
  double top_p = 1.0;
  double min_p = 0.0;
  float repetition = 1.0f;
  float frequency = 0.0f;
  float presence = 0.0f;
  uint64_t seed = 0;
  int32_t top = -1;  // how many alternatives to report; -1: no log probabilities
  std::span<const Bias> bias;
};

struct Request {
  const float* logits;              // vocab_size values
  std::span<const int32_t> prompt;  // ids before the wanted one, in two parts
  std::span<const int32_t> output;
  uint64_t position;               // of the wanted id in its sequence
  int32_t next;                    // the wanted id when it is known: its log probability is reported; -1: sample
  const uint32_t* mask = nullptr;  // bit id % 32 of word id / 32 set: may be sampled. Null: every id may
};

enum class Status { kOk, kNaN, kNothing, kParams };

struct Answer {
  Status status = Status::kOk;
  int32_t id = -1;
  double logprob = 0.0;  // when params.top >= 0
  int32_t top = 0;       // how many of the caller's alternatives were filled
};

struct Alternative {
  int32_t id;
  double logprob;
};

inline constexpr double kLogprobFloor = -9999.0;
inline constexpr double kGreedyTemperature = 1e-4;

// Whether the parameters mean something for this vocabulary: all finite, in range, bias ids inside.
bool valid(const Params& params, int32_t vocab_size);

// Owns the scratch for one vocabulary; sampling allocates nothing. One thread at a time.
class Sampler {
 public:
  Sampler(int32_t vocab_size, const Lanes& lanes);

  int32_t vocab_size() const { return vocab_; }
  // top: room for min(params.top, vocab_size) alternatives, best first, ties by id.
  Answer sample(const Request& request, const Params& params, Alternative* top);

 private:
  struct Kept {  // candidates_[0..count) by ascending id, and the sum of their weights
    int32_t count;
    double total;
  };

  bool exists(int32_t id) const { return id >= 0 && id < vocab_; }
  Answer report(const Request& request, const Params& params, Alternative* top);
  void forbid(const uint32_t* mask);
  void penalize(const Request& request, const Params& params);
  void penalize_repetition(const Request& request, float penalty);
  void penalize_counts(const Request& request, float frequency, float presence);
  int32_t choose(const Request& request, const Params& params);
  int32_t draw_from_all(float max, float scale, double u);
  Kept keep_top_k(int64_t k, float max, float scale);
  Kept keep_min_p(float min_p, float max, float scale);
  Kept keep_nucleus_superset(double top_p, float max, float scale);
  void filter_min_p(Kept& kept, float min_p);
  void filter_top_p(Kept& kept, double top_p);
  int32_t draw(const Kept& kept, double u) const;
  int32_t select_greatest(int64_t k);
  void sort_by_falling_value(int32_t count);

  int32_t vocab_;
  const Lanes& lanes_;
  // Untouched pages of these are never committed: greedy rows need none of them.
  std::unique_ptr<float[]> x_, weights_, sums_;
  std::unique_ptr<uint32_t[]> counts_;  // all zero between calls
  std::unique_ptr<Candidate[]> candidates_, sorted_, spare_;
};

}  // namespace rebar::sampling
