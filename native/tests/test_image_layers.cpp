// Pooling, GroupNorm, ReLU and dropout against plain loops, on every instruction set and split.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "images.h"

namespace {

struct Pooling {  // one kind of pooling of random images
  const rb_window& w;
  int32_t kind;
  Floats x, dy, before;
  int32_t wide() const { return values(w); }
  int32_t out_wide() const { return positions(w) * w.channels; }
};

Floats pooled(const Pooling& p) {
  return agreed("pool", [&](int32_t isa, Split split) {
    Floats out(size(kImages * p.out_wide()), NAN);
    rb_args args{};
    args.pool = {p.w, p.x.data(), out.data(), p.wide(), p.out_wide(), p.kind};
    run_launch(isa, RB_OP_POOL, args, rows_step(kImages), split);
    return out;
  });
}

Floats unpooled(const Pooling& p, const Floats& y) {
  return agreed("pool_gradient", [&](int32_t isa, Split split) {
    Floats out = p.before;
    rb_args args{};
    const bool largest = p.kind == 0;
    args.pool_gradient = {p.w,
                          largest ? p.x.data() : nullptr,
                          largest ? y.data() : nullptr,
                          p.dy.data(),
                          out.data(),
                          p.wide(),
                          p.out_wide(),
                          p.out_wide(),
                          p.wide(),
                          p.kind};
    run_launch(isa, RB_OP_POOL_GRADIENT, args, rows_step(kImages), split);
    return out;
  });
}

// One channel at one position: its value, and its gradient into `dx`.
float pool_one(const Pooling& p, int r, int position, int channel, float dy, Floats& dx) {
  const int32_t n = p.w.channels, area = p.w.kernel_height * p.w.kernel_width;
  const float share = 1.0f / static_cast<float>(area);
  float largest = -INFINITY, sum = 0.0f;
  int64_t first = -1;
  for (int t = 0; t < area; ++t) {
    const int64_t from = under(p.w, position, t * n + channel);
    if (from < 0) continue;
    const size_t at = size(r * p.wide() + from);
    if (p.x[at] > largest) {
      largest = p.x[at];
      first = static_cast<int64_t>(at);
    }
    sum += p.x[at];
    if (p.kind == 1) dx[at] = std::fma(dy, share, dx[at]);
  }
  if (p.kind == 0) dx[size(first)] += dy;
  return p.kind == 0 ? largest : sum * share;
}

}  // namespace

TEST(image, pool_and_its_gradient) {
  Random random(204);
  for (const Case& c : kCases) {
    for (const int32_t kind : {0, 1}) {
      const size_t in = size(kImages * values(c.w)), out = size(kImages * positions(c.w) * c.w.channels);
      Pooling p{c.w, kind, random.normals(in), random.normals(out), random.normals(in)};
      for (size_t i = 0; i + 7 < in; i += 3) p.x[i + 1] = p.x[i + 7];  // ties
      const Floats y = pooled(p), dx = unpooled(p, y);
      Floats expected(y.size()), chain = p.before;
      for (size_t i = 0; i < y.size(); ++i) {
        const int row = static_cast<int>(i) / p.out_wide(), at = static_cast<int>(i) % p.out_wide();
        expected[i] = pool_one(p, row, at / c.w.channels, at % c.w.channels, p.dy[i], chain);
      }
      CHECK(same_bits(y, expected));
      for (size_t i = 0; i < in; ++i) CHECK(dx[i] == chain[i]);
    }
  }
}

TEST(image, max_pool_passes_on_what_is_not_finite) {
  const rb_window w = window(1, 4, 1, 1, 2, 2, 0);
  const Floats x = {1.0f, NAN, INFINITY, 2.0f};
  for (const int32_t isa : available_isas()) {
    Floats y(2, 0.0f);
    rb_args args{};
    args.pool = {w, x.data(), y.data(), 4, 2, 0};
    run_launch(isa, RB_OP_POOL, args, rows_step(1));
    CHECK(std::isnan(y[0]) && std::isnan(y[1]));
  }
}

namespace {

struct Norming {  // GroupNorm of random images, and what the kernels made of it
  int32_t positions, channels, groups;
  Floats x, weight, bias, dy, before, y, stats, dx, dw;
  int32_t wide() const { return positions * channels; }
  int32_t stats_wide() const { return 2 * groups; }
  int32_t per_group() const { return channels / groups; }
  double count() const { return static_cast<double>(positions) * per_group(); }
};

constexpr float kEps = 1e-5f;

void norm_forward(Norming& n) {
  const size_t values = size(kImages * n.wide());
  n.y = agreed("group_norm", [&](int32_t isa, Split split) {
    Floats out(values + size(kImages * n.stats_wide()), NAN);
    rb_args args{};
    args.group_norm = {n.x.data(),          n.weight.data(), n.bias.data(), out.data(),
                       out.data() + values, n.wide(),        n.wide(),      n.stats_wide(),
                       n.positions,         n.channels,      n.groups,      kEps};
    run_launch(isa, RB_OP_GROUP_NORM, args, rows_step(kImages), split);
    return out;
  });
  n.stats.assign(n.y.begin() + static_cast<std::ptrdiff_t>(values), n.y.end());
}

void norm_backward(Norming& n) {
  n.dx = agreed("group_norm_gradient", [&](int32_t isa, Split split) {
    Floats out = n.before;
    rb_args args{};
    args.group_norm_gradient = {n.x.data(),     n.weight.data(), n.stats.data(), n.dy.data(), out.data(), n.wide(),
                                n.stats_wide(), n.wide(),        n.wide(),       n.positions, n.channels, n.groups};
    run_launch(isa, RB_OP_GROUP_NORM_GRADIENT, args, rows_step(kImages), split);
    return out;
  });
  n.dw = agreed("group_norm_weight_gradient", [&](int32_t isa, Split split) {
    Floats out(size(2 * n.channels), 0.5f);
    rb_args args{};
    args.group_norm_weight_gradient = {n.x.data(), n.stats.data(), n.dy.data(), out.data(),  out.data() + n.channels,
                                       n.wide(),   n.stats_wide(), n.wide(),    n.positions, n.channels,
                                       n.groups};
    run_launch(isa, RB_OP_GROUP_NORM_WEIGHT_GRADIENT, args, rows_step(kImages), split);
    return out;
  });
}

// A group of one image in double. A sum of `count` numbers rounds as often, relative to the largest of them, and at most five
// operations follow: `rounds` is eight times that.
void check_group(const Norming& n, int image, int group, Doubles& dw) {
  const auto each = [&](auto visit) {
    for (int p = 0; p < n.positions; ++p)
      for (int c = group * n.per_group(); c < (group + 1) * n.per_group(); ++c)
        visit(size(image * n.wide() + p * n.channels + c), size(c));
  };
  const double count = n.count(), rounds = 8 * (count + 8) * kRound;
  double mean = 0.0, square = 0.0, a = 0.0, b = 0.0, largest = 0.0;
  each([&](size_t i, size_t) { mean += n.x[i] / count; });
  each([&](size_t i, size_t) { square += (n.x[i] - mean) * (n.x[i] - mean) / count; });
  const double scale = 1.0 / std::sqrt(square + static_cast<double>(kEps));
  each([&](size_t i, size_t c) {
    const double h = (n.x[i] - mean) * scale, g = static_cast<double>(n.dy[i]) * n.weight[c];
    const double magnitude = (std::abs(h) + 1) * (std::abs(n.weight[c]) + 1);
    CHECK(std::abs(n.y[i] - (h * n.weight[c] + n.bias[c])) <= rounds * magnitude);
    a += g / count;
    b += g * h / count;
    dw[c] += n.dy[i] * h;
    dw[c + size(n.channels)] += n.dy[i];
    largest = std::max(largest, std::abs(g) * (1 + std::abs(h)));
  });
  each([&](size_t i, size_t c) {
    const double h = (n.x[i] - mean) * scale;
    const double expected = n.before[i] + scale * (static_cast<double>(n.dy[i]) * n.weight[c] - a - h * b);
    CHECK(std::abs(n.dx[i] - expected) <= rounds * (scale * largest * (2 + std::abs(h)) + std::abs(n.before[i])));
  });
}

void check_norm(Random& random, int32_t positions, int32_t channels, int32_t groups) {
  const size_t values = size(kImages * positions * channels), width = size(channels);
  Norming n{positions,
            channels,
            groups,
            random.normals(values),
            random.normals(width),
            random.normals(width),
            random.normals(values),
            random.normals(values),
            {},
            {},
            {},
            {}};
  norm_forward(n);
  norm_backward(n);
  Doubles dw(2 * width, 0.5);
  for (int r = 0; r < kImages; ++r)
    for (int g = 0; g < groups; ++g) check_group(n, r, g, dw);
  const double rounds = 8 * (kImages * positions + n.count() + 8) * kRound;
  for (size_t c = 0; c < dw.size(); ++c) {
    double magnitude = 4.0;
    for (int i = 0; i < kImages * positions; ++i) magnitude += 4 * std::abs(n.dy[size(i) * width + c % width]);
    CHECK(std::abs(n.dw[c] - dw[c]) <= rounds * magnitude);
  }
}

}  // namespace

TEST(image, group_norm_and_its_gradients) {
  Random random(205);
  check_norm(random, 64, 32, 32);
  check_norm(random, 9, 12, 3);
  check_norm(random, 25, 40, 8);
  check_norm(random, 4, 1, 1);
  check_norm(random, 6, 66, 22);
}

TEST(image, relu_and_its_gradient) {
  const int32_t n = 19;
  Random random(206);
  Floats x = random.normals(size(kImages * n));
  x[3] = NAN;
  x[4] = -0.0f;
  const Floats dy = random.normals(x.size()), before = random.normals(x.size());
  const Floats y = agreed("relu", [&](int32_t isa, Split split) {
    Floats out(x.size(), 5.0f);
    rb_args args{};
    args.relu = {x.data(), out.data(), n, n, n};
    run_launch(isa, RB_OP_RELU, args, rows_step(kImages), split);
    return out;
  });
  const Floats dx = agreed("relu_gradient", [&](int32_t isa, Split split) {
    Floats out = before;
    rb_args args{};
    args.relu_gradient = {y.data(), dy.data(), out.data(), n, n, n, n};
    run_launch(isa, RB_OP_RELU_GRADIENT, args, rows_step(kImages), split);
    return out;
  });
  CHECK(std::isnan(y[3]) && dx[3] == before[3]);
  for (size_t i = 0; i < x.size(); ++i) {
    if (i == 3) continue;
    CHECK(y[i] == std::max(x[i], 0.0f));
    CHECK(dx[i] == (x[i] > 0.0f ? before[i] + dy[i] : before[i]));
  }
}

TEST(image, dropout_is_addressed) {
  const int32_t n = 500, rows = 8;
  Random random(207);
  const Floats x = random.normals(size(rows * n));
  const uint32_t key[2] = {12, 34};
  std::vector<int32_t> numbers(rows);
  std::iota(numbers.begin(), numbers.end(), 100);
  const auto run = [&](int32_t isa, Split split, int32_t first, int32_t count, uint32_t salt, bool add) {
    Floats out(size(count * n), add ? 1.0f : NAN);
    rb_step step = rows_step(count);
    step.positions = numbers.data() + first;
    rb_args args{};
    args.dropout = {x.data() + first * n, out.data(), key, n, n, n, add, salt, 1u << 30, 4.0f / 3.0f};
    run_launch(isa, RB_OP_DROPOUT, args, step, split);
    return out;
  };
  const Floats y = agreed("dropout", [&](int32_t isa, Split split) { return run(isa, split, 0, rows, 5, false); });
  int dropped = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    dropped += y[i] == 0.0f;
    CHECK(y[i] == 0.0f || y[i] == x[i] * (4.0f / 3.0f));
  }
  // 4,000 draws at a chance of 1/4: a standard deviation of 27.4, and six of them.
  CHECK(std::abs(dropped - 1000) < 165);
  // Rows cut into two steps, and rows that come alone, have the same bits.
  Floats cut = run(RB_ISA_SCALAR, Split::kWhole, 0, 3, 5, false);
  const Floats rest = run(RB_ISA_SCALAR, Split::kWhole, 3, rows - 3, 5, false);
  cut.insert(cut.end(), rest.begin(), rest.end());
  CHECK(same_bits(cut, y));
  CHECK(!same_bits(run(RB_ISA_SCALAR, Split::kWhole, 0, rows, 6, false), y));
  const Floats added =
      agreed("dropout add", [&](int32_t isa, Split split) { return run(isa, split, 0, rows, 5, true); });
  for (size_t i = 0; i < y.size(); ++i) CHECK(added[i] == (y[i] == 0.0f ? 1.0f : std::fma(x[i], 4.0f / 3.0f, 1.0f)));
}
