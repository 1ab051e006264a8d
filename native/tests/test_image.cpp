// Convolution and its gradients against plain loops in double, on every instruction set and split.
#include <cmath>

#include "images.h"

namespace {

void near(const Floats& got, const Doubles& expected, const Doubles& bound) {
  bool all = got.size() == expected.size();
  for (size_t i = 0; all && i < got.size(); ++i) all = std::abs(got[i] - expected[i]) <= bound[i];
  CHECK(all);
}

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
        float& sum = chain[tiled(k, j, i)];
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
