#include "sampling/sample.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <utility>

#include "sampling/philox.h"

namespace rebar::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool greater(const Candidate& a, const Candidate& b) { return a.value != b.value ? a.value > b.value : a.id < b.id; }

bool finite_all(std::initializer_list<double> values) {
  return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
}

float clamp(float x) { return x > FLT_MAX ? FLT_MAX : x; }

double chain(const Candidate* c, int32_t count) {
  double sum = 0.0;
  for (int32_t i = 0; i < count; ++i) sum += static_cast<double>(c[i].value);
  return sum;
}

bool changes_logits(const Params& p) {
  return p.repetition != 1.0f || p.frequency != 0.0f || p.presence != 0.0f || !p.bias.empty();
}

Answer answer_of(int32_t id) { return {id < 0 ? Status::kNothing : Status::kOk, id}; }

bool is_greedy(const Params& p) { return p.temperature <= kGreedyTemperature || p.top_k == 1; }

}  // namespace

bool valid(const Params& p, int32_t vocab_size) {
  if (!finite_all({p.temperature, p.top_p, p.min_p, p.repetition, p.frequency, p.presence})) return false;
  if (p.temperature < 0 || p.top_k < 0 || p.top_p <= 0 || p.top_p > 1 || p.min_p < 0 || p.min_p > 1) return false;
  if (p.repetition <= 0 || p.top < -1) return false;
  return std::all_of(p.bias.begin(), p.bias.end(),
                     [=](const Bias& b) { return b.id >= 0 && b.id < vocab_size && std::isfinite(b.value); });
}

Sampler::Sampler(int32_t vocab_size, const Lanes& lanes)
    : vocab_(vocab_size),
      lanes_(lanes),
      x_(new float[static_cast<size_t>(padded(vocab_size))]),
      weights_(new float[static_cast<size_t>(padded(vocab_size))]),
      sums_(new float[static_cast<size_t>(blocks(vocab_size))]),
      counts_(new uint32_t[static_cast<size_t>(vocab_size)]()),
      candidates_(new Candidate[static_cast<size_t>(vocab_size) + 1]),
      sorted_(new Candidate[static_cast<size_t>(vocab_size) + 1]),
      spare_(new Candidate[static_cast<size_t>(vocab_size) + 1]) {}

Answer Sampler::sample(const Request& request, const Params& params, Alternative* top) {
  if (!valid(params, vocab_)) return {Status::kParams};
  if (params.top >= 0) return report(request, params, top);
  if (request.next >= 0) return answer_of(request.next);
  if (is_greedy(params) && !changes_logits(params) && request.mask == nullptr) {
    const Best best = lanes_.best(request.logits, vocab_);
    return best.nan ? Answer{Status::kNaN} : answer_of(best.id);
  }
  if (!lanes_.copy(request.logits, vocab_, x_.get())) return {Status::kNaN};
  return answer_of(choose(request, params));
}

// The raw distribution is read off x_ before choose() changes it.
Answer Sampler::report(const Request& request, const Params& params, Alternative* top) {
  if (!lanes_.copy(request.logits, vocab_, x_.get())) return {Status::kNaN};
  const Best best = lanes_.best(x_.get(), vocab_);
  if (best.id < 0) return {Status::kNothing};
  const double log_total = log_of(lanes_.weigh(x_.get(), vocab_, best.value, 1.0f, nullptr, sums_.get()));
  const auto logprob = [&](float x) {
    const double l = (static_cast<double>(x) - static_cast<double>(best.value)) - log_total;
    return l > kLogprobFloor ? l : kLogprobFloor;
  };
  const int32_t alternatives = params.top > 0 ? select_greatest(params.top) : 0;
  std::sort(candidates_.get(), candidates_.get() + alternatives, greater);
  for (int32_t i = 0; i < alternatives; ++i) top[i] = {candidates_[i].id, logprob(candidates_[i].value)};
  Answer answer = answer_of(request.next >= 0 ? request.next : choose(request, params));
  answer.top = alternatives;
  if (answer.id >= 0) answer.logprob = answer.id < vocab_ ? logprob(clamp(request.logits[answer.id])) : kLogprobFloor;
  return answer;
}

// A grammar allows nearly everything (inside a string) or nearly nothing (between its words): whole words of the mask
// are the common case, and 32 stores without a branch the next.
void Sampler::forbid(const uint32_t* mask) {
  const int32_t room = padded(vocab_);  // x_ ends there, maybe inside the last word
  for (int32_t first = 0; first < vocab_; first += 32) {
    const uint32_t allowed = mask[first / 32];
    if (allowed == ~0u) continue;
    const int32_t count = std::min(32, room - first);
    for (int32_t i = 0; i < count; ++i)
      if ((allowed >> i & 1u) == 0) x_[first + i] = -kInfinity;
  }
}

// Overflow of an absurd penalty to +inf is clamped like a raw +inf; a NaN from it (inf - inf) is never greater than
// anything and weighs nothing, so it is never sampled.
void Sampler::penalize(const Request& request, const Params& p) {
  if (p.repetition != 1.0f) penalize_repetition(request, p.repetition);
  if (p.frequency != 0.0f || p.presence != 0.0f) penalize_counts(request, p.frequency, p.presence);
  for (const Bias& b : p.bias) x_[b.id] = clamp(x_[b.id] + b.value);
}

void Sampler::penalize_repetition(const Request& request, float penalty) {
  for (const auto part : {request.prompt, request.output}) {
    for (const int32_t id : part) {
      if (!exists(id) || counts_[id]++ != 0) continue;
      x_[id] = clamp(x_[id] > 0 ? x_[id] / penalty : x_[id] * penalty);
    }
  }
  for (const auto part : {request.prompt, request.output})
    for (const int32_t id : part)
      if (exists(id)) counts_[id] = 0;
}

void Sampler::penalize_counts(const Request& request, float frequency, float presence) {
  for (const int32_t id : request.output)
    if (exists(id)) ++counts_[id];
  for (const int32_t id : request.output) {
    if (!exists(id) || counts_[id] == 0) continue;
    x_[id] = clamp(x_[id] - static_cast<float>(std::exchange(counts_[id], 0u)) * frequency - presence);
  }
}

int32_t Sampler::choose(const Request& request, const Params& p) {
  if (request.mask != nullptr) forbid(request.mask);
  if (changes_logits(p)) penalize(request, p);
  const Best best = lanes_.best(x_.get(), vocab_);
  if (best.id < 0 || is_greedy(p)) return best.id;
  const float max = best.value, scale = static_cast<float>(1.0 / p.temperature);
  const double u = uniform(p.seed, request.position);
  const bool top_k = p.top_k > 0 && p.top_k < vocab_, min_p = p.min_p > 0, top_p = p.top_p < 1;
  if (!top_k && !min_p && !top_p) return draw_from_all(max, scale, u);

  Kept kept = top_k   ? keep_top_k(p.top_k, max, scale)
              : min_p ? keep_min_p(static_cast<float>(p.min_p), max, scale)
                      : keep_nucleus_superset(p.top_p, max, scale);
  if (top_k && min_p) filter_min_p(kept, static_cast<float>(p.min_p));
  if (top_p) filter_top_p(kept, p.top_p);
  return draw(kept, u);
}

// u < 1 and the sum is the walk's own, so the walk ends inside; inside a block the float sum may exceed the walk's,
// then the last id of the block with any weight is meant.
int32_t Sampler::draw_from_all(float max, float scale, double u) {
  const double goal = u * lanes_.weigh(x_.get(), vocab_, max, scale, weights_.get(), sums_.get());
  double sum = 0.0;
  int32_t block = 0;
  while (sum + static_cast<double>(sums_[block]) <= goal) sum += static_cast<double>(sums_[block++]);
  int32_t id = -1;
  const int32_t stop = std::min(vocab_, (block + 1) * kBlock);
  for (int32_t i = block * kBlock; i < stop && (id < 0 || sum <= goal); ++i) {
    if (weights_[i] == 0.0f) continue;
    sum += static_cast<double>(weights_[i]);
    id = i;
  }
  return id;
}

// The k greatest of x_ into candidates_, in no order; fewer when the rest is -inf. A block at a time against the k-th
// greatest so far.
int32_t Sampler::select_greatest(int64_t k) {
  const int32_t want = static_cast<int32_t>(std::min<int64_t>(k, vocab_));
  const int32_t limit = want + std::max(want, kBlock / 4);
  Candidate* const c = candidates_.get();
  int32_t count = 0;
  float least = -FLT_MAX;
  const auto shrink = [&] {
    std::nth_element(c, c + want - 1, c + count, greater);
    count = want;
    least = std::nextafter(c[want - 1].value, kInfinity);  // a later equal has a higher id: it loses the tie
  };
  for (int32_t first = 0; first < vocab_; first += kBlock) {
    count += lanes_.gather(x_.get() + first, std::min(kBlock, vocab_ - first), least, first, c + count);
    if (count > limit) shrink();
  }
  if (count > want) shrink();
  return count;
}

Sampler::Kept Sampler::keep_top_k(int64_t k, float max, float scale) {
  const int32_t count = select_greatest(k);
  Candidate* const c = candidates_.get();
  std::sort(c, c + count, [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  for (int32_t i = 0; i < count; ++i) c[i].value = exp_of((c[i].value - max) * scale);
  return {count, chain(c, count)};
}

Sampler::Kept Sampler::keep_min_p(float min_p, float max, float scale) {
  lanes_.weigh(x_.get(), vocab_, max, scale, weights_.get(), sums_.get());
  const int32_t count = lanes_.gather(weights_.get(), vocab_, std::max(min_p, FLT_MIN), 0, candidates_.get());
  return {count, chain(candidates_.get(), count)};
}

// Candidates that surely hold the nucleus. Ids below (1 - p) S / V weigh less than (1 - p) S together, so the others
// suffice; most rows need far fewer, so the bar starts 4096 times higher and falls until what passes weighs enough.
Sampler::Kept Sampler::keep_nucleus_superset(double top_p, float max, float scale) {
  const double total = lanes_.weigh(x_.get(), vocab_, max, scale, weights_.get(), sums_.get());
  Candidate* const c = candidates_.get();
  double bar = (1.0 - top_p) * total / vocab_ * 4096.0;
  for (int attempt = 0; attempt < 3; ++attempt, bar /= 64.0) {
    const float least = std::max(static_cast<float>(bar), FLT_MIN);
    const int32_t count = lanes_.gather(weights_.get(), vocab_, least, 0, c);
    if (chain(c, count) >= top_p * total * (1.0 + 1e-9)) return {count, total};
  }
  return {lanes_.gather(weights_.get(), vocab_, FLT_MIN, 0, c), total};
}

void Sampler::filter_min_p(Kept& kept, float min_p) {
  Candidate* const c = candidates_.get();
  const auto end = std::remove_if(c, c + kept.count, [=](const Candidate& x) { return x.value < min_p; });
  kept.count = static_cast<int32_t>(end - c);
  kept.total = chain(c, kept.count);
}

void Sampler::filter_top_p(Kept& kept, double top_p) {
  Candidate* const c = candidates_.get();
  std::copy(c, c + kept.count, sorted_.get());
  sort_by_falling_value(kept.count);
  const double goal = top_p * kept.total;
  double sum = 0.0;
  int32_t last = 0;
  for (;; ++last) {
    sum += static_cast<double>(sorted_[last].value);
    if (sum >= goal || last + 1 == kept.count) break;
  }
  const Candidate cut = sorted_[last];
  const auto end = std::remove_if(c, c + kept.count, [=](const Candidate& x) { return greater(cut, x); });
  kept.count = static_cast<int32_t>(end - c);
  kept.total = chain(c, kept.count);
}

int32_t Sampler::draw(const Kept& kept, double u) const {
  const double goal = u * kept.total;
  double sum = 0.0;
  int32_t i = 0;
  for (;; ++i) {
    sum += static_cast<double>(candidates_[i].value);
    if (sum > goal) return candidates_[i].id;
  }
}

// sorted_[0..count), which stands by ascending id: positive floats order as their bits do, so three counting passes of
// 11 bits over the inverted bits sort by falling value and, being stable, keep ascending ids among equals.
void Sampler::sort_by_falling_value(int32_t count) {
  if (count <= 256) return std::sort(sorted_.get(), sorted_.get() + count, greater);
  for (int shift = 0; shift < 33; shift += 11) {
    const auto digit = [=](const Candidate& c) { return (~std::bit_cast<uint32_t>(c.value) >> shift) & 2047u; };
    std::array<int32_t, 2048> start{};
    for (int32_t i = 0; i < count; ++i) ++start[digit(sorted_[i])];
    int32_t sum = 0;
    for (int32_t& s : start) sum += std::exchange(s, sum);
    for (int32_t i = 0; i < count; ++i) spare_[start[digit(sorted_[i])]++] = sorted_[i];
    std::swap(sorted_, spare_);
  }
}

}  // namespace rebar::sampling
