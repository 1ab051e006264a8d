// Cross entropy, its gradient, and the optimizers.
#include <algorithm>
#include <cmath>

#include "agreed.h"
#include "support.h"
#include "test.h"
#include "training_reference.h"

namespace {

struct Case {
  int32_t n, stride;
};
const Case kCases[] = {{1, 1}, {5, 7}, {16, 16}, {129, 130}, {5000, 5001}};
constexpr int32_t kRows = 6;

std::vector<int32_t> targets_of(Random& random, int32_t n) {
  std::vector<int32_t> targets;
  for (int32_t r = 0; r < kRows; ++r) targets.push_back(r == 2 ? -100 : random.below(n));
  targets[0] = n - 1;
  return targets;
}

std::vector<float> losses(const std::vector<float>& x, const std::vector<int32_t>& targets, const Case& c) {
  return agreed("cross_entropy", [&](int32_t isa, Split split) {
    std::vector<float> loss(kRows * 2, 5.0f);
    rb_args args{};
    args.cross_entropy = {x.data(), targets.data(), loss.data(), c.stride, 2, c.n, RB_LOGIT_ROWS};
    run_launch(isa, RB_OP_CROSS_ENTROPY, args, rows_step(kRows), split);
    return loss;
  });
}

std::vector<float> loss_gradient(const std::vector<float>& x, const std::vector<int32_t>& targets,
                                 const std::vector<float>& dloss, const std::vector<float>& before, const Case& c) {
  return agreed("cross_entropy_gradient", [&](int32_t isa, Split split) {
    std::vector<float> out = before;
    rb_args args{};
    args.cross_entropy_gradient = {x.data(), targets.data(), dloss.data(), out.data(),   c.stride,
                                   1,        c.stride,       c.n,          RB_LOGIT_ROWS};
    run_launch(isa, RB_OP_CROSS_ENTROPY_GRADIENT, args, rows_step(kRows), split);
    return out;
  });
}

}  // namespace

TEST(training, cross_entropy_and_its_gradient) {
  Random random(320);
  for (const Case& c : kCases) {
    test_context = std::to_string(c.n);
    std::vector<float> x = random.normals(static_cast<size_t>(kRows * c.stride));
    for (float& v : x) v *= 6.0f;
    const std::vector<int32_t> targets = targets_of(random, c.n);
    const std::vector<float> before = random.normals(x.size()), dloss = random.normals(kRows);
    const std::vector<float> loss = losses(x, targets, c), dx = loss_gradient(x, targets, dloss, before, c);
    for (int32_t r = 0; r < kRows; ++r) {
      const float* row = &x[r * c.stride];
      const double top = *std::max_element(row, row + c.n);
      double total = 0.0;
      for (int32_t i = 0; i < c.n; ++i) total += std::exp(row[i] - top);
      CHECK(loss[2 * r + 1] == 5.0f);
      // Each exp is off by 2 roundings and that of its argument (at most 60); the sum by n/16 + 4 more; the logarithm keeps that as
      // an absolute error and adds 4 of its own; m - x and the sum round once each.
      const double relative = (2 + 60 + c.n / 16.0 + 4) * kRound;
      const double expected = std::log(total) + top - (targets[r] < 0 ? 0.0 : row[targets[r]]);
      if (targets[r] < 0)
        CHECK(loss[2 * r] == 0.0f);
      else
        CHECK(std::abs(loss[2 * r] - expected) <= relative + kRound * (4 * std::log(total) + 60 + expected));
      for (int32_t i = 0; i < c.stride; ++i) {
        const double old = before[r * c.stride + i], got = dx[r * c.stride + i];
        if (targets[r] < 0 || i >= c.n) {
          CHECK(got == old);
          continue;
        }
        const double p = std::exp(row[i] - top) / total, step = dloss[r] * (p - (i == targets[r] ? 1.0 : 0.0));
        CHECK(std::abs(got - (old + step)) <= std::abs(dloss[r]) * p * (2 * relative + 4 * kRound) +
                                                  kRound * (std::abs(step) + std::abs(old + step)) + 1e-37);
      }
    }
  }
}

TEST(training, a_loss_of_numbers_that_are_none) {
  const Case c{20, 20};
  std::vector<float> x(kRows * 20, 0.5f);
  x[3] = NAN;
  x[20 + 4] = INFINITY;
  x[60 + 17] = -INFINITY;
  const std::vector<int32_t> targets = {1, 1, 1, 1, 17, 2};
  const std::vector<float> loss = losses(x, targets, c);
  CHECK(std::isnan(loss[0]) && std::isnan(loss[2]));
  CHECK(std::abs(loss[4] - std::log(20.0)) < 4e-7 && std::abs(loss[6] - std::log(19.0)) < 4e-7);
  const std::vector<float> none(x.size(), 0.0f), one(kRows, 1.0f);
  const std::vector<float> dx = loss_gradient(x, targets, one, none, c);
  CHECK(std::isnan(dx[0]) && std::isnan(dx[20]) && dx[60 + 17] == 0.0f);
}

// Pieces of 65,536, a last one that is neither whole nor a multiple of anything.
TEST(training, square_sums) {
  Random random(321);
  for (const int64_t n : {1, 4096, 65536, 150003}) {
    const std::vector<float> x = random.normals(static_cast<size_t>(n));
    const size_t pieces = static_cast<size_t>((n + 65535) / 65536);
    const std::vector<float> got = agreed("square_sums", [&](int32_t isa, Split split) {
      std::vector<float> sums(pieces, NAN);
      rb_args args{};
      args.square_sums = {x.data(), sums.data(), n};
      run_launch(isa, RB_OP_SQUARE_SUMS, args, rows_step(0), split);
      return sums;
    });
    std::vector<float> expected(pieces, 0.0f);
    for (int64_t i = 0; i < n; i += 4096)
      expected[static_cast<size_t>(i / 65536)] += lane_sum(&x[static_cast<size_t>(i)], &x[static_cast<size_t>(i)],
                                                           static_cast<int32_t>(std::min<int64_t>(n - i, 4096)));
    CHECK(same_bits(got, expected));
  }
}

TEST(training, adamw) {
  Random random(322);
  const std::vector<float> hyper = {0.7f, 1e-2f, 0.1f, 0.9f, 0.999f, 1e-8f, 0.271f, 0.002997f};
  for (const size_t n : {size_t{1}, size_t{16384}, size_t{40007}}) {
    const std::vector<float> x = random.normals(n), gradient = random.normals(n), m = random.normals(n);
    std::vector<float> v = random.normals(n);
    for (float& value : v) value = std::abs(value);
    const std::vector<float> got = agreed("adamw", [&](int32_t isa, Split split) {
      std::vector<float> out = x, m1 = m, v1 = v;
      rb_args args{};
      args.adamw = {out.data(), gradient.data(), m1.data(), v1.data(), hyper.data(), static_cast<int64_t>(n)};
      run_launch(isa, RB_OP_ADAMW, args, rows_step(0), split);
      out.insert(out.end(), m1.begin(), m1.end());
      out.insert(out.end(), v1.begin(), v1.end());
      return out;
    });
    std::vector<float> expected(3 * n);
    for (size_t i = 0; i < n; ++i) {
      const float g = hyper[0] * gradient[i], m1 = std::fma(1.0f - hyper[3], g, hyper[3] * m[i]);
      const float v1 = std::fma((1.0f - hyper[4]) * g, g, hyper[4] * v[i]);
      const float decayed = std::fma(-(hyper[1] * hyper[2]), x[i], x[i]);
      expected[i] = std::fma(-hyper[1], (m1 / hyper[6]) / (std::sqrt(v1 / hyper[7]) + hyper[5]), decayed);
      expected[n + i] = m1, expected[2 * n + i] = v1;
    }
    CHECK(same_bits(got, expected));
  }
}

TEST(training, sgd) {
  Random random(323);
  const std::vector<float> hyper = {0.7f, 1e-2f, 0.1f, 0.9f};
  for (const size_t n : {size_t{1}, size_t{16384}, size_t{40007}}) {
    const std::vector<float> x = random.normals(n), gradient = random.normals(n), m = random.normals(n);
    const std::vector<float> got = agreed("sgd", [&](int32_t isa, Split split) {
      std::vector<float> out = x, m1 = m;
      rb_args args{};
      args.sgd = {out.data(), gradient.data(), m1.data(), hyper.data(), static_cast<int64_t>(n)};
      run_launch(isa, RB_OP_SGD, args, rows_step(0), split);
      out.insert(out.end(), m1.begin(), m1.end());
      return out;
    });
    std::vector<float> expected(2 * n);
    for (size_t i = 0; i < n; ++i) {
      const float m1 = std::fma(hyper[3], m[i], std::fma(hyper[2], x[i], hyper[0] * gradient[i]));
      expected[i] = std::fma(-hyper[1], m1, x[i]), expected[n + i] = m1;
    }
    CHECK(same_bits(got, expected));
  }
}
