// The kernels over images against plain loops in double, on every instruction set and split.
#include <cmath>
#include <numeric>

#include "agreed.h"
#include "support.h"
#include "test.h"

namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

rb_window window(int32_t height, int32_t width, int32_t channels, int32_t kh, int32_t kw, int32_t stride,
                 int32_t padding) {
  return {
      height, width,  channels, (height + 2 * padding - kh) / stride + 1, (width + 2 * padding - kw) / stride + 1, kh,
      kw,     stride, padding};
}
int32_t positions(const rb_window& w) { return w.out_height * w.out_width; }
int32_t values(const rb_window& w) { return w.height * w.width * w.channels; }
int32_t inputs(const rb_window& w) { return w.kernel_height * w.kernel_width * w.channels; }
size_t size(int64_t n) { return static_cast<size_t>(n); }

// Index in an image of input k at position p; -1 in the padding.
int64_t under(const rb_window& w, int p, int k) {
  const int c = k % w.channels, kx = k / w.channels % w.kernel_width, ky = k / w.channels / w.kernel_width;
  const int y = p / w.out_width * w.stride - w.padding + ky, x = p % w.out_width * w.stride - w.padding + kx;
  if (y < 0 || y >= w.height || x < 0 || x >= w.width) return -1;
  return (int64_t{y} * w.width + x) * w.channels + c;
}

// A matrix (n, k) in tiles of 16 rows.
size_t tiled(int64_t n, int64_t k, int64_t j, int64_t i) { return size(j / 16 * 16 * k + i * 16 + j % 16 + 0 * n); }
Floats tiles_of(const Floats& dense, int64_t n, int64_t k) {
  Floats out(size((n + 15) / 16 * 16 * k), 0.0f);
  for (int64_t j = 0; j < n; ++j)
    for (int64_t i = 0; i < k; ++i) out[tiled(n, k, j, i)] = dense[size(j * k + i)];
  return out;
}

void near(const Floats& got, const Doubles& expected, const Doubles& bound) {
  bool all = got.size() == expected.size();
  for (size_t i = 0; all && i < got.size(); ++i) all = std::abs(got[i] - expected[i]) <= bound[i];
  CHECK(all);
}

struct Case {
  rb_window w;
  int32_t n;
};
const Case kCases[] = {
    {window(8, 8, 1, 3, 3, 1, 1), 32},  {window(5, 7, 3, 3, 2, 1, 1), 20}, {window(6, 6, 19, 3, 3, 2, 1), 16},
    {window(4, 4, 8, 1, 1, 1, 0), 5},   {window(9, 4, 2, 4, 3, 3, 2), 33}, {window(3, 3, 17, 3, 3, 1, 0), 17},
    {window(2, 11, 4, 2, 5, 2, 1), 18},
};
constexpr int32_t kImages = 5;

}  // namespace

TEST(image, conv) {
  Random random(200);
  for (const Case& c : kCases) {
    const rb_window& w = c.w;
    const int32_t k = inputs(w), wide = values(w) + 3, out_wide = positions(w) * c.n + 2;
    const Floats x = random.normals(size(kImages * wide)), dense = random.normals(size(c.n * k)),
                 bias = random.normals(size(c.n));
    const Floats tiles = tiles_of(dense, c.n, k);
    Buffer packed_w(tiles.size() * 4);
    std::memcpy(packed_w.data(), tiles.data(), packed_w.size());
    const Floats y = agreed("conv", [&](int32_t isa, Split split) {
      Floats out(size(kImages * out_wide), 7.0f);
      rb_args args{};
      args.conv = {{packed_w.data(), RB_F32, c.n, k}, w, x.data(), bias.data(), out.data(), wide, out_wide};
      run_launch(isa, RB_OP_CONV, args, rows_step(kImages), split);
      return out;
    });
    Doubles expected(y.size(), 7.0), bound(y.size(), 0.0);
    for (int r = 0; r < kImages; ++r)
      for (int p = 0; p < positions(w); ++p)
        for (int j = 0; j < c.n; ++j) {
          double sum = bias[size(j)], magnitude = std::abs(sum);
          for (int i = 0; i < k; ++i) {
            const int64_t at = under(w, p, i);
            const double term = at < 0 ? 0.0 : static_cast<double>(x[size(r * wide + at)]) * dense[size(j * k + i)];
            sum += term;
            magnitude += std::abs(term);
          }
          const size_t at = size(r * out_wide + p * c.n + j);
          expected[at] = sum;
          bound[at] = (k + 1) * kRound * magnitude;  // a rounding a term, of at most the sum of magnitudes
        }
    near(y, expected, bound);
  }
}

TEST(image, conv_input_gradient) {
  Random random(201);
  for (const Case& c : kCases) {
    const rb_window& w = c.w;
    const int32_t k = inputs(w), wide = values(w) + 1, out_wide = positions(w) * c.n + 4;
    const Floats dy = random.normals(size(kImages * out_wide)), dense = random.normals(size(c.n * k)),
                 before = random.normals(size(kImages * wide));
    const Floats tiles = tiles_of(dense, c.n, k);
    Buffer packed_w(tiles.size() * 4);
    std::memcpy(packed_w.data(), tiles.data(), packed_w.size());
    const Floats dx = agreed("conv_input_gradient", [&](int32_t isa, Split split) {
      Floats out = before;
      rb_args args{};
      args.conv_input_gradient = {{packed_w.data(), RB_F32, c.n, k}, w, dy.data(), out.data(), out_wide, wide};
      run_launch(isa, RB_OP_CONV_INPUT_GRADIENT, args, rows_step(kImages), split);
      return out;
    });
    Doubles expected(before.begin(), before.end()), magnitude(dx.size(), 0.0);
    for (size_t i = 0; i < before.size(); ++i) magnitude[i] = std::abs(before[i]);
    for (int r = 0; r < kImages; ++r)
      for (int p = 0; p < positions(w); ++p)
        for (int i = 0; i < k; ++i) {
          const int64_t at = under(w, p, i);
          if (at < 0) continue;
          for (int j = 0; j < c.n; ++j) {
            const double term = static_cast<double>(dy[size(r * out_wide + p * c.n + j)]) * dense[size(j * k + i)];
            expected[size(r * wide + at)] += term;
            magnitude[size(r * wide + at)] += std::abs(term);
          }
        }
    Doubles bound(dx.size(), 0.0);
    for (int r = 0; r < kImages; ++r)
      for (int i = 0; i < values(w); ++i)
        bound[size(r * wide + i)] = (c.n + w.kernel_height * w.kernel_width) * kRound * magnitude[size(r * wide + i)];
    near(dx, expected, bound);
  }
}

TEST(image, conv_weight_gradient) {
  Random random(202);
  for (const Case& c : kCases) {
    const rb_window& w = c.w;
    const int32_t k = inputs(w), wide = values(w) + 2, out_wide = positions(w) * c.n + 1;
    const Floats x = random.normals(size(kImages * wide)), dy = random.normals(size(kImages * out_wide));
    const Floats before = tiles_of(random.normals(size(c.n * k)), c.n, k);
    const Floats dw = agreed("conv_weight_gradient", [&](int32_t isa, Split split) {
      Buffer out(before.size() * 4);
      std::memcpy(out.data(), before.data(), out.size());
      rb_args args{};
      args.conv_weight_gradient = {{out.data(), RB_F32, c.n, k}, w, x.data(), dy.data(), wide, out_wide};
      run_launch(isa, RB_OP_CONV_WEIGHT_GRADIENT, args, rows_step(kImages), split);
      return as_floats(out);
    });
    // The same chain, in float: images, then positions; equal to the bit.
    Floats chain = before;
    for (int j = 0; j < c.n; ++j)
      for (int i = 0; i < k; ++i) {
        float& sum = chain[tiled(c.n, k, j, i)];
        for (int r = 0; r < kImages; ++r)
          for (int p = 0; p < positions(w); ++p) {
            const int64_t at = under(w, p, i);
            if (at >= 0) sum = std::fma(x[size(r * wide + at)], dy[size(r * out_wide + p * c.n + j)], sum);
          }
      }
    CHECK(same_bits(dw, chain));
  }
}

TEST(image, weight_gradient_leaves_the_empty_rows_of_a_tile) {
  const rb_window w = window(2, 2, 1, 1, 1, 1, 0);
  const Floats x(8, INFINITY), dy(8 * 3, 1.0f);
  for (const int32_t isa : available_isas()) {
    Buffer out(64);
    std::memset(out.data(), 0, out.size());
    rb_args args{};
    args.conv_weight_gradient = {{out.data(), RB_F32, 3, 1}, w, x.data(), dy.data(), 4, 12};
    run_launch(isa, RB_OP_CONV_WEIGHT_GRADIENT, args, rows_step(2));
    const Floats got = as_floats(out);
    for (size_t j = 0; j < 16; ++j) CHECK(j < 3 ? std::isinf(got[j]) : got[j] == 0.0f);
  }
}

TEST(image, channel_sums) {
  Random random(203);
  const int32_t n = 21, count = 6, wide = n * count + 5;
  const Floats dy = random.normals(size(kImages * wide)), before = random.normals(size(n));
  const Floats db = agreed("channel_sums", [&](int32_t isa, Split split) {
    Floats out = before;
    rb_args args{};
    args.channel_sums = {dy.data(), out.data(), wide, count, n};
    run_launch(isa, RB_OP_CHANNEL_SUMS, args, rows_step(kImages), split);
    return out;
  });
  Floats chain = before;
  for (int r = 0; r < kImages; ++r)
    for (int p = 0; p < count; ++p)
      for (int j = 0; j < n; ++j) chain[size(j)] += dy[size(r * wide + p * n + j)];
  CHECK(same_bits(db, chain));
}

TEST(image, pool_and_its_gradient) {
  Random random(204);
  for (const Case& c : kCases) {
    const rb_window& w = c.w;
    const int32_t wide = values(w), n = w.channels, out_wide = positions(w) * n,
                  area = w.kernel_height * w.kernel_width;
    Floats x = random.normals(size(kImages * wide));
    for (size_t i = 0; i + 7 < x.size(); i += 3) x[i + 1] = x[i + 7];  // ties
    const Floats dy = random.normals(size(kImages * out_wide)), before = random.normals(size(kImages * wide));
    for (const int32_t kind : {0, 1}) {
      const Floats y = agreed("pool", [&](int32_t isa, Split split) {
        Floats out(size(kImages * out_wide), NAN);
        rb_args args{};
        args.pool = {w, x.data(), out.data(), wide, out_wide, kind};
        run_launch(isa, RB_OP_POOL, args, rows_step(kImages), split);
        return out;
      });
      const Floats dx = agreed("pool_gradient", [&](int32_t isa, Split split) {
        Floats out = before;
        rb_args args{};
        args.pool_gradient = {w,
                              kind ? nullptr : x.data(),
                              kind ? nullptr : y.data(),
                              dy.data(),
                              out.data(),
                              wide,
                              out_wide,
                              out_wide,
                              wide,
                              kind};
        run_launch(isa, RB_OP_POOL_GRADIENT, args, rows_step(kImages), split);
        return out;
      });
      const float share = 1.0f / static_cast<float>(area);
      Floats chain = before, expected(y.size());
      for (int r = 0; r < kImages; ++r)
        for (int p = 0; p < positions(w); ++p)
          for (int ch = 0; ch < n; ++ch) {
            const size_t at = size(r * out_wide + p * n + ch);
            float largest = -INFINITY, sum = 0.0f;
            int64_t first = -1;
            for (int t = 0; t < area; ++t) {
              const int64_t from = under(w, p, t * n + ch);
              if (from < 0) continue;
              const float v = x[size(r * wide + from)];
              if (v > largest) {
                largest = v;
                first = from;
              }
              sum += v;
              if (kind == 1) {
                float& d = chain[size(r * wide + from)];
                d = std::fma(dy[at], share, d);
              }
            }
            expected[at] = kind == 0 ? largest : sum * share;
            if (kind == 0) chain[size(r * wide + first)] += dy[at];
          }
      CHECK(same_bits(y, expected));
      for (size_t i = 0; i < dx.size(); ++i) CHECK(dx[i] == chain[i]);
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

TEST(image, group_norm_and_its_gradients) {
  Random random(205);
  struct Shape {
    int32_t positions, channels, groups;
  };
  for (const Shape s : {Shape{64, 32, 32}, Shape{9, 12, 3}, Shape{25, 40, 8}, Shape{4, 1, 1}, Shape{6, 66, 22}}) {
    const int32_t wide = s.positions * s.channels, per = s.channels / s.groups, stat_wide = 2 * s.groups;
    const double count = static_cast<double>(s.positions) * per;
    const Floats x = random.normals(size(kImages * wide)), weight = random.normals(size(s.channels)),
                 bias = random.normals(size(s.channels)), dy = random.normals(size(kImages * wide)),
                 before = random.normals(size(kImages * wide)), dw_before = random.normals(size(s.channels));
    const float eps = 1e-5f;
    Floats stats;
    const Floats y = agreed("group_norm", [&](int32_t isa, Split split) {
      Floats out(size(kImages * (wide + stat_wide)), NAN);
      rb_args args{};
      args.group_norm = {
          x.data(),    weight.data(), bias.data(), out.data(), out.data() + kImages * wide, wide, wide, stat_wide,
          s.positions, s.channels,    s.groups,    eps};
      run_launch(isa, RB_OP_GROUP_NORM, args, rows_step(kImages), split);
      return out;
    });
    stats.assign(y.begin() + kImages * wide, y.end());
    const Floats dx = agreed("group_norm_gradient", [&](int32_t isa, Split split) {
      Floats out = before;
      rb_args args{};
      args.group_norm_gradient = {x.data(),  weight.data(), stats.data(), dy.data(),   out.data(), wide,
                                  stat_wide, wide,          wide,         s.positions, s.channels, s.groups};
      run_launch(isa, RB_OP_GROUP_NORM_GRADIENT, args, rows_step(kImages), split);
      return out;
    });
    const Floats dw = agreed("group_norm_weight_gradient", [&](int32_t isa, Split split) {
      Floats out = dw_before;
      out.resize(size(2 * s.channels), 0.0f);
      rb_args args{};
      args.group_norm_weight_gradient = {x.data(), stats.data(), dy.data(), out.data(),  out.data() + s.channels,
                                         wide,     stat_wide,    wide,      s.positions, s.channels,
                                         s.groups};
      run_launch(isa, RB_OP_GROUP_NORM_WEIGHT_GRADIENT, args, rows_step(kImages), split);
      return out;
    });
    Doubles dweight(dw_before.begin(), dw_before.end()), dbias(size(s.channels), 0.0);
    for (int r = 0; r < kImages; ++r)
      for (int g = 0; g < s.groups; ++g) {
        const auto each = [&](auto visit) {
          for (int p = 0; p < s.positions; ++p)
            for (int c = g * per; c < (g + 1) * per; ++c) visit(size(r * wide + p * s.channels + c), size(c));
        };
        double sum = 0.0, square = 0.0, a = 0.0, b = 0.0, largest = 0.0;
        each([&](size_t i, size_t) { sum += x[i]; });
        const double mean = sum / count;
        each([&](size_t i, size_t) { square += (x[i] - mean) * (x[i] - mean); });
        const double scale = 1.0 / std::sqrt(square / count + static_cast<double>(eps));
        // A sum of `count` numbers rounds as often; relative to the largest of them, through at most five operations.
        const double rounds = 8 * (count + 8) * kRound;
        each([&](size_t i, size_t c) {
          const double h = (x[i] - mean) * scale;
          CHECK(std::abs(y[i] - (h * weight[c] + bias[c])) <= rounds * (std::abs(h) + 1) * (std::abs(weight[c]) + 1));
          a += static_cast<double>(dy[i]) * weight[c] / count;
          b += static_cast<double>(dy[i]) * weight[c] * h / count;
          dweight[c] += dy[i] * h;
          dbias[c] += dy[i];
          largest = std::max(largest, std::abs(static_cast<double>(dy[i]) * weight[c]) * (1 + std::abs(h)));
        });
        each([&](size_t i, size_t c) {
          const double h = (x[i] - mean) * scale;
          const double expected = before[i] + scale * (static_cast<double>(dy[i]) * weight[c] - a - h * b);
          CHECK(std::abs(dx[i] - expected) <= rounds * (scale * largest * (2 + std::abs(h)) + std::abs(before[i])));
        });
      }
    const double rounds = 8 * (kImages * s.positions + count + 8) * kRound;
    for (size_t c = 0; c < size(s.channels); ++c) {
      double magnitude = 4.0;
      for (int i = 0; i < kImages * s.positions; ++i) magnitude += 4 * std::abs(dy[size(i) * size(s.channels) + c]);
      CHECK(std::abs(dw[c] - dweight[c]) <= rounds * magnitude);
      CHECK(std::abs(dw[c + size(s.channels)] - dbias[c]) <= rounds * magnitude);
    }
  }
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
