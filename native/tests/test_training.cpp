// Gradients that go row by row, the loss, and the optimizers: against the formulas of rebar_training.h in plain code, bit for bit where
// they have no exponential, and the same bits on every instruction set.
#include <algorithm>
#include <cmath>

#include "agreed.h"
#include "cpu/half.h"
#include "support.h"
#include "test.h"
#include "training_reference.h"

namespace {

constexpr int32_t kRows = 7;

struct Setup {
  int32_t n, stride;
};
// Widths below, at and above vectors; rows that lie apart.
const Setup kWidths[] = {{1, 1}, {8, 11}, {16, 16}, {37, 40}, {576, 600}};

size_t room(int32_t rows, int32_t stride) { return static_cast<size_t>(rows * stride); }

// Everything outside the n columns keeps what stood there.
bool rest_stays(const std::vector<float>& after, const std::vector<float>& before, int32_t n, int32_t stride) {
  for (size_t i = 0; i < after.size(); ++i) {
    if (static_cast<int32_t>(i) % stride >= n && rb::bits_of(after[i]) != rb::bits_of(before[i])) return false;
  }
  return true;
}

}  // namespace

TEST(training, sum_rows_in_ascending_order) {
  Random random(300);
  for (const Setup& s : kWidths) {
    std::vector<float> dy = random.normals(room(kRows, s.stride)), db = random.normals(s.n);
    if (s.n > 8) dy[s.stride + 3] = NAN, dy[5] = INFINITY;
    const std::vector<float> got = agreed("sum_rows", [&](int32_t isa, Split split) {
      std::vector<float> out = db;
      rb_args args{};
      args.sum_rows = {dy.data(), out.data(), s.stride, s.n, RB_LOGIT_ROWS};
      run_launch(isa, RB_OP_SUM_ROWS, args, rows_step(kRows), split);
      return out;
    });
    for (int32_t r = 0; r < kRows; ++r)
      for (int32_t i = 0; i < s.n; ++i) db[i] += dy[r * s.stride + i];
    CHECK(same_numbers(got, db));
  }
}

TEST(training, add_into_and_zero) {
  Random random(301);
  for (const Setup& s : kWidths) {
    const std::vector<float> x = random.normals(room(kRows, s.stride)), y = random.normals(x.size());
    const std::vector<float> sum = agreed("add_into", [&](int32_t isa, Split split) {
      std::vector<float> out = y;
      rb_args args{};
      args.add_into = {x.data(), out.data(), s.stride, s.stride, s.n, RB_ROWS, 0.3f};
      run_launch(isa, RB_OP_ADD_INTO, args, rows_step(kRows), split);
      return out;
    });
    const std::vector<float> none = agreed("zero", [&](int32_t isa, Split split) {
      std::vector<float> out = y;
      rb_args args{};
      args.zero = {out.data(), s.stride, s.n, RB_ROWS};
      run_launch(isa, RB_OP_ZERO, args, rows_step(kRows), split);
      return out;
    });
    for (size_t i = 0; i < y.size(); ++i) {
      const bool inside = static_cast<int32_t>(i) % s.stride < s.n;
      CHECK(sum[i] == (inside ? std::fma(0.3f, x[i], y[i]) : y[i]));
      CHECK(none[i] == (inside ? 0.0f : y[i]));
    }
  }
}

// Ids that come twice add in the order of their rows.
TEST(training, embed_gradient) {
  Random random(302);
  for (const int32_t k : {1, 16, 70, 200}) {
    const int32_t n = 37;
    const std::vector<int32_t> ids = {3, 36, 3, 0, 16, 3, 36};
    const std::vector<float> dy = random.normals(room(kRows, k)), dw = random.normals(room(48, k));
    rb_step step = rows_step(kRows);
    step.ids = ids.data();
    const std::vector<float> got = agreed("embed_gradient", [&](int32_t isa, Split split) {
      std::vector<float> out = dw;
      rb_args args{};
      args.embed_gradient = {{out.data(), RB_F32, n, k}, dy.data(), k, 1.7f};
      run_launch(isa, RB_OP_EMBED_GRADIENT, args, step, split);
      return out;
    });
    std::vector<float> expected = dw;
    for (int32_t r = 0; r < kRows; ++r) {
      for (int32_t i = 0; i < k; ++i) {
        float& e = expected[tiled(k, ids[r], i)];
        e = std::fma(1.7f, dy[r * k + i], e);
      }
    }
    CHECK(same_bits(got, expected));
  }
}

TEST(training, rms_norm_gradient) {
  Random random(303);
  for (const Setup& s : kWidths) {
    for (const int32_t groups : {1, 3}) {
      const int32_t n = s.n, stride = n * groups + 3;
      const std::vector<float> x = random.normals(room(kRows, stride)), dy = random.normals(x.size()),
                               dx = random.normals(x.size()), weight = random.normals(n), dweight = random.normals(n);
      const std::vector<float> got = agreed("rms_norm_gradient", [&](int32_t isa, Split split) {
        std::vector<float> out = dx, sums = dweight;
        rb_args args{};
        args.rms_norm_gradient = {x.data(), weight.data(), dy.data(), out.data(), sums.data(), stride,
                                  stride,   stride,        n,         groups,     1e-5f,       RB_ROWS};
        run_launch(isa, RB_OP_RMS_NORM_GRADIENT, args, rows_step(kRows), split);
        std::vector<float> apart_dx = dx, apart = dweight;  // each alone: the same
        args.rms_norm_gradient.dx = nullptr, args.rms_norm_gradient.dweight = apart.data();
        run_launch(isa, RB_OP_RMS_NORM_GRADIENT, args, rows_step(kRows), split);
        args.rms_norm_gradient.dx = apart_dx.data(), args.rms_norm_gradient.dweight = nullptr;
        run_launch(isa, RB_OP_RMS_NORM_GRADIENT, args, rows_step(kRows), split);
        CHECK(same_bits(apart_dx, out) && same_bits(apart, sums));
        out.insert(out.end(), sums.begin(), sums.end());
        return out;
      });
      std::vector<float> expected = dx, sums = dweight;
      for (int32_t slice = 0; slice < kRows * groups; ++slice) {
        const int32_t at = slice / groups * stride + slice % groups * n;
        std::vector<float> g;
        for (int32_t i = 0; i < n; ++i) g.push_back(weight[i] * dy[at + i]);
        const float scale = 1.0f / std::sqrt(lane_sum(&x[at], &x[at], n) / static_cast<float>(n) + 1e-5f);
        const float f = scale * scale * (lane_sum(g.data(), &x[at], n) / static_cast<float>(n));
        for (int32_t i = 0; i < n; ++i) {
          expected[at + i] = std::fma(std::fma(-f, x[at + i], g[i]), scale, expected[at + i]);
          sums[i] = std::fma(x[at + i] * scale, dy[at + i], sums[i]);
        }
      }
      expected.insert(expected.end(), sums.begin(), sums.end());
      CHECK(same_bits(got, expected));
    }
  }
}

TEST(training, rope_gradient_turns_back) {
  Random random(304);
  const std::vector<int32_t> positions = {3, 0, 39, 7, 7, 12, 1};
  for (const int32_t dim : {8, 32, 48, 64}) {
    const int32_t heads = 3, head_dim = dim == 48 ? 64 : dim, stride = heads * head_dim + 5;
    const std::vector<float> dy = random.normals(room(kRows, stride)), dx = random.normals(dy.size()),
                             table = random.normals(room(40, dim));
    rb_step step = rows_step(kRows);
    step.positions = positions.data();
    const std::vector<float> got = agreed("rope_gradient", [&](int32_t isa, Split split) {
      std::vector<float> out = dx;
      rb_args args{};
      args.rope_gradient = {dy.data(), out.data(), table.data(), stride, stride, heads, head_dim, dim, 40};
      run_launch(isa, RB_OP_ROPE_GRADIENT, args, step, split);
      return out;
    });
    std::vector<float> expected = dx;
    for (int32_t h = 0; h < kRows * heads; ++h) {
      const int32_t at = h / heads * stride + h % heads * head_dim, half = dim / 2;
      const float* angles = &table[positions[h / heads] * dim];
      for (int32_t i = 0; i < half; ++i) {
        const float y0 = dy[at + i], y1 = dy[at + half + i], c = angles[i], sine = angles[half + i];
        expected[at + i] = std::fma(y1, sine, std::fma(y0, c, dx[at + i]));
        expected[at + half + i] = std::fma(y1, c, std::fma(-y0, sine, dx[at + half + i]));
      }
      for (int32_t i = dim; i < head_dim; ++i) expected[at + i] += dy[at + i];
    }
    CHECK(same_bits(got, expected));
  }
}

TEST(training, select_gradient) {
  Random random(305);
  const int32_t n = 21;
  const std::vector<int32_t> index = {6, 0, 3};
  const std::vector<float> dy = random.normals(room(3, n)), dx = random.normals(room(kRows, n));
  rb_step step = rows_step(kRows);
  step.logit_rows = 3, step.logit_index = index.data();
  const std::vector<float> got = agreed("select_gradient", [&](int32_t isa, Split split) {
    std::vector<float> out = dx;
    rb_args args{};
    args.select_gradient = {dy.data(), out.data(), n, n, n};
    run_launch(isa, RB_OP_SELECT_GRADIENT, args, step, split);
    return out;
  });
  std::vector<float> expected = dx;
  for (int32_t i = 0; i < 3 * n; ++i) expected[index[i / n] * n + i % n] += dy[i];
  CHECK(same_bits(got, expected));
}

TEST(training, softcap_gradient) {
  Random random(306);
  const float cap = 1.5f;
  for (const Setup& s : kWidths) {
    std::vector<float> y = random.normals(room(kRows, s.stride));
    const std::vector<float> dy = random.normals(y.size()), dx = random.normals(y.size());
    for (float& v : y) v = cap * std::tanh(v);
    const std::vector<float> got = agreed("softcap_gradient", [&](int32_t isa, Split split) {
      std::vector<float> out = dx;
      rb_args args{};
      args.softcap_gradient = {y.data(), dy.data(), out.data(), s.stride, s.stride, s.stride, s.n, RB_ROWS, cap};
      run_launch(isa, RB_OP_SOFTCAP_GRADIENT, args, rows_step(kRows), split);
      return out;
    });
    CHECK(rest_stays(got, dx, s.n, s.stride));
    for (int32_t i = 0; i < kRows * s.stride; ++i) {
      const float t = y[i] / cap;
      if (i % s.stride < s.n) CHECK(got[i] == std::fma(dy[i], std::fma(-t, t, 1.0f), dx[i]));
    }
  }
}

TEST(training, gated_gradient) {
  Random random(307);
  for (const int32_t act : {0, 1}) {
    for (const Setup& s : kWidths) {
      const int32_t n = s.n, wide = 2 * n + 1;
      std::vector<float> x = random.normals(room(kRows, wide));
      for (size_t i = 0; i < x.size(); ++i) x[i] *= i % 3 == 0 ? 8.0f : 1.0f;
      for (const float edge : {0.0f, 90.0f, -90.0f, -1e20f, 1e20f}) x[random.below(kRows) * wide] = edge;
      const std::vector<float> dy = random.normals(room(kRows, n)), dx = random.normals(x.size());
      const std::vector<float> got = agreed("gated_gradient", [&](int32_t isa, Split split) {
        std::vector<float> out = dx;
        rb_args args{};
        args.gated_gradient = {x.data(), dy.data(), out.data(), wide, n, wide, n, act, RB_ROWS};
        run_launch(isa, RB_OP_GATED_GRADIENT, args, rows_step(kRows), split);
        return out;
      });
      CHECK(rest_stays(got, dx, 2 * n, wide));
      for (int32_t i = 0; i < kRows * n; ++i) {
        const int32_t at = i / n * wide + i % n;
        const double a = x[at], b = x[at + n], d = dy[i];
        const double z = std::sqrt(2.0 / M_PI) * (a + 0.044715 * a * a * a), u = act == 0 ? a : 2.0 * z;
        const double up = act == 0 ? 1.0 : 2.0 * std::sqrt(2.0 / M_PI) * (1.0 + 3 * 0.044715 * a * a);
        const double g = 1.0 / (1.0 + std::exp(-u)), rest = u < -700 ? 0.0 : a * g * (1.0 / (1.0 + std::exp(u))) * up;
        const double value = a * g, slope = g + rest;
        // 1 / (1 + e^-u) as in test_rows: 5 roundings of itself, and of gelu's exponent 6 |u|; 1 - s is off by those and one of its own,
        // all times a u'; then four products and sums.
        const double off = (5 + 6 * act * std::min(std::abs(u), 90.0)) * kRound;
        const double gate_error = off * g * (1 + std::abs(a * up)) + 8 * kRound * (g + std::abs(rest)) + 4e-38;
        const double da = d * b * slope + dx[at], db = d * value + dx[at + n];
        const double da_error = std::abs(d * b) * gate_error + 3 * kRound * (std::abs(d * b * slope) + std::abs(da));
        test_context = "act " + std::to_string(act) + " a " + std::to_string(a);
        CHECK(std::abs(got[at] - da) <= da_error);
        CHECK(std::abs(got[at + n] - db) <=
              std::abs(d) * (off * std::abs(value) + 4e-38) + 2 * kRound * (std::abs(d * value) + std::abs(db)));
      }
    }
  }
}
