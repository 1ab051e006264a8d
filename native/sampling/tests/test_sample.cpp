// The sampler under the address and undefined-behaviour sanitizers: every pass, every size around the vector width,
// every edge. What is right is decided in tests/graph/test_sampling.py; here nothing may be read or written outside
// its buffer, exactly sized buffers show it, and all instruction sets must agree to the bit.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "sampling/batch.h"
#include "sampling/philox.h"
#include "sampling/tests/check.h"

using namespace rebar::sampling;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<const Lanes*> all_lanes() {
  std::vector<const Lanes*> found;
  for (const char* name : {"portable", "avx2", "avx512"})
    if (const Lanes* lanes = lanes_named(name)) found.push_back(lanes);
  return found;
}

// Logits of a plausible spread, from the sampler's own generator: bell-shaped, +-9.
std::vector<float> logits_of(int32_t vocab, uint64_t seed) {
  std::vector<float> x(static_cast<size_t>(vocab));
  for (size_t i = 0; i < x.size(); ++i) {
    double sum = 0;
    for (uint64_t part = 0; part < 4; ++part) sum += uniform(seed, i * 4 + part);
    x[i] = static_cast<float>((sum - 2.0) * 4.5);
  }
  return x;
}

std::vector<Params> variants(const std::vector<Bias>& bias) {
  std::vector<Params> all;
  for (const double temperature : {0.0, 0.7, 5.0})
    for (const int64_t top_k : {0, 1, 7, 600, 100000})
      for (const double top_p : {1.0, 0.9, 1e-9, 0.9999999})
        for (const double min_p : {0.0, 0.1, 1e-300})
          for (const int32_t top : {-1, 0, 20})
            all.push_back({temperature, top_k, top_p, min_p, 1.1f, 0.1f, -0.2f, all.size(), top, bias});
  return all;
}

void all_instruction_sets_agree(int32_t vocab) {
  const std::vector<float> logits = logits_of(vocab, 1);
  const std::vector<int32_t> prompt{0, 0, vocab, -1, vocab / 2}, output{vocab - 1, 0, vocab + 7};
  const std::vector<Bias> bias{{vocab - 1, 0.5f}, {0, -2.0f}};
  const std::vector<const Lanes*> lanes = all_lanes();
  std::vector<std::unique_ptr<Sampler>> samplers;
  for (const Lanes* l : lanes) samplers.push_back(std::make_unique<Sampler>(vocab, *l));
  for (const Params& params : variants(bias)) {
    const Request request{logits.data(), prompt, output, 8, -1};
    Answer first{};
    for (size_t i = 0; i < samplers.size(); ++i) {
      std::vector<Alternative> top(static_cast<size_t>(std::max(0, std::min(params.top, vocab))));
      const Answer answer = samplers[i]->sample(request, params, top.data());
      CHECK(answer.status == Status::kOk && answer.id >= 0 && answer.id < vocab);
      if (i == 0) first = answer;
      CHECK(answer.id == first.id && answer.top == first.top);
      CHECK(std::bit_cast<uint64_t>(answer.logprob) == std::bit_cast<uint64_t>(first.logprob));
    }
  }
}

void a_row_of_edges_has_a_defined_answer(const Lanes& lanes, int32_t vocab) {
  Sampler sampler(vocab, lanes);
  Params params;
  params.top = 1;
  Alternative top{};
  std::vector<float> row(static_cast<size_t>(vocab), -kInfinity);
  const auto ask = [&] { return sampler.sample({row.data(), {}, {}, 0, -1}, params, &top); };
  CHECK(ask().status == Status::kNothing);
  row.back() = kInfinity;
  CHECK(ask().id == vocab - 1 && ask().logprob == 0.0);
  row.back() = -3e38f;
  CHECK(ask().id == vocab - 1 && top.id == vocab - 1);
  row.front() = kNaN;
  CHECK(ask().status == Status::kNaN);
  params.top = -1;
  CHECK(ask().status == Status::kNaN);
  params.temperature = 0;
  CHECK(ask().status == Status::kNaN);
  params.top_p = kNaN;
  CHECK(ask().status == Status::kParams);
}

// Any number of threads on any number of rows, each way of sampling: as one row after the other on one thread.
void threads_change_nothing(int threads) {
  constexpr int32_t kVocab = 1025;
  constexpr size_t kRows = 40;
  const std::vector<Bias> bias = {{3, 1.5f}, {1000, -4.0f}};
  const std::vector<Params> params = variants(bias);
  const std::vector<int32_t> tokens = {1, 2, 3, 2, 1024};
  std::vector<std::vector<float>> logits;
  for (size_t r = 0; r < kRows; ++r) logits.push_back(logits_of(kVocab, r));
  rb::Pool pool(threads);
  Batch batch(kVocab, best_lanes(), &pool);
  Sampler alone(kVocab, best_lanes());
  for (size_t first = 0; first + kRows <= params.size(); first += kRows) {
    std::vector<Row> rows;
    std::vector<Alternative> top(kRows * 20), wanted(20);
    for (size_t r = 0; r < kRows; ++r) {
      const Request request{logits[r].data(), {tokens.data(), 2}, {tokens.data() + 2, 3}, 5 + r, -1};
      rows.push_back({request, &params[first + r], &top[20 * r], {}});
    }
    batch.sample(rows);
    for (const Row& row : rows) {
      const Answer answer = alone.sample(row.request, *row.params, wanted.data());
      CHECK(answer.status == row.answer.status && answer.id == row.answer.id && answer.top == row.answer.top);
      CHECK(std::bit_cast<uint64_t>(answer.logprob) == std::bit_cast<uint64_t>(row.answer.logprob));
      for (int32_t i = 0; i < answer.top; ++i) CHECK(row.top[i].id == wanted[static_cast<size_t>(i)].id);
    }
  }
}

// 2^-21 over the whole range: 2^-23 of the polynomial plus the roundings of r = t - n ln 2 and of the last sum.
void exp_and_log_are_near_libm() {
  for (double t = 0; t > -87.3; t -= 0.00731) {
    const double argument = static_cast<double>(static_cast<float>(t)), want = std::exp(argument);
    CHECK(std::abs(static_cast<double>(exp_of(static_cast<float>(t))) / want - 1.0) < 0x1p-21);
  }
  CHECK(exp_of(0.0f) == 1.0f && exp_of(-88.0f) == 0.0f && exp_of(-kInfinity) == 0.0f && exp_of(kNaN) == 0.0f);
  for (double x = 1e-30; x < 1e30; x *= 1.0137)
    CHECK(std::abs(log_of(x) - std::log(x)) <= 0x1p-51 * std::max(1.0, std::abs(std::log(x))));
  CHECK(log_of(1.0) == 0.0);
}

}  // namespace

int main() {
  exp_and_log_are_near_libm();
  for (const int32_t vocab : {1, 2, 15, 16, 17, 31, 33, 1023, 1024, 1025, 2500}) all_instruction_sets_agree(vocab);
  for (const Lanes* lanes : all_lanes())
    for (const int32_t vocab : {1, 15, 16, 17, 1024, 1040}) a_row_of_edges_has_a_defined_answer(*lanes, vocab);
  for (const int threads : {1, 2, 3, 8}) threads_change_nothing(threads);
  std::printf("sampling: all held\n");
  return 0;
}
