// The kernels that go row by row: norm, quantize, rope, gated, add, select, softcap, embed.
#include <algorithm>
#include <cmath>

#include "agreed.h"
#include "cpu/half.h"
#include "reference.h"
#include "support.h"
#include "test.h"

namespace {

Buffer zeroed(size_t bytes) {
  Buffer b(bytes);
  std::memset(b.data(), 0, bytes);
  return b;
}

bool within(double got, double expected, double tolerance) { return std::abs(got - expected) <= tolerance; }

}  // namespace

TEST(rows, rms_norm) {
  Random random(100);
  for (const int32_t n : {1, 16, 30, 64, 577}) {
    for (const int32_t groups : {1, 3}) {
      const int32_t rows = 9, width = n * groups;
      const std::vector<float> x = random.normals(static_cast<size_t>(rows * width)),
                               weight = random.normals(static_cast<size_t>(n));
      const std::vector<float> y = agreed("rms_norm", [&](int32_t isa, Split split) {
        std::vector<float> out(x.size(), NAN);
        rb_args args{};
        args.rms_norm = {x.data(), weight.data(), out.data(), nullptr, width, width, n, groups, 1e-5f, RB_ROWS, 16};
        run_launch(isa, RB_OP_RMS_NORM, args, rows_step(rows), split);
        return out;
      });
      for (int32_t s = 0; s < rows * groups; ++s) {
        double square = 0.0;
        for (int32_t i = 0; i < n; ++i) square += static_cast<double>(x[s * n + i]) * x[s * n + i];
        const double scale = 1.0 / std::sqrt(square / n + static_cast<double>(1e-5f));
        // The sum is off by n/16 + 4 roundings, halved by the root; then quotient, eps, root, reciprocal and two products.
        for (int32_t i = 0; i < n; ++i) {
          const double expected = x[s * n + i] * scale * weight[i];
          CHECK(within(y[s * n + i], expected, (n / 32.0 + 8) * kRound * std::abs(expected)));
        }
      }
    }
  }
}

TEST(rows, rms_norm_quantizes_what_it_would_have_written) {
  Random random(101);
  const int32_t rows = 5, n = 96;
  const std::vector<float> x = random.normals(rows * n), weight = random.normals(n);
  for (const int32_t isa : available_isas())
    for (const int32_t group : {16, 32}) {
      test_context = rb_isa_name(isa);
      Buffer alone = zeroed(rb_quantized_stride(n) * rows), beside = zeroed(alone.size());
      std::vector<float> y(x.size()), plain(x.size());
      rb_args args{};
      args.rms_norm = {x.data(), weight.data(), plain.data(), nullptr, n, n, n, 1, 1e-6f, RB_ROWS, group};
      run_launch(isa, RB_OP_RMS_NORM, args, rows_step(rows));
      args.rms_norm.y = y.data();
      args.rms_norm.yq = beside.data();
      run_launch(isa, RB_OP_RMS_NORM, args, rows_step(rows));
      args.rms_norm.y = nullptr;
      args.rms_norm.yq = alone.data();
      run_launch(isa, RB_OP_RMS_NORM, args, rows_step(rows));
      const std::vector<uint8_t> expected = quantized(isa, plain.data(), rows, n, group);
      CHECK(same_bits(y, plain));
      CHECK(std::memcmp(expected.data(), alone.data(), expected.size()) == 0);
      CHECK(std::memcmp(expected.data(), beside.data(), expected.size()) == 0);
    }
}

void check_quantized(int32_t group) {
  Random random(102);
  const int32_t rows = 7, k = 160;
  std::vector<float> x = random.normals(static_cast<size_t>(rows * k));
  for (int i = 0; i < 32; ++i) {
    x[i] = 0.0f;                                            // a zero group
    x[k + i] *= 1e-41f;                                     // so small that 1/d overflows
    x[2 * k + i] *= 1e36f;                                  // large, yet finite
    x[3 * k + i] = 0x1p-118f * static_cast<float>(i - 16);  // subnormal d
  }
  x[4 * k + 5] = NAN;
  x[4 * k + 40] = -INFINITY;
  const std::vector<float> out = agreed("quantize", [&](int32_t isa, Split split) {
    Buffer q = zeroed(rb_quantized_stride(k) * rows);
    rb_args args{};
    args.quantize = {x.data(), q.data(), k, k, RB_ROWS, group};
    run_launch(isa, RB_OP_QUANTIZE, args, rows_step(rows), split);
    return as_floats(q);
  });
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(out.data());
  constexpr int32_t per_row = k / 16;
  for (int32_t g = 0; g < rows * per_row; ++g) {
    test_context = "per " + std::to_string(group) + ", group " + std::to_string(g);
    const uint8_t* row = bytes + static_cast<size_t>(g / per_row) * rb_quantized_stride(k);
    const int8_t* q = reinterpret_cast<const int8_t*>(row) + g % per_row * 16;
    float d;
    int32_t sum, expected = 0;
    std::memcpy(&d, row + k + g % per_row * 4, 4);
    std::memcpy(&sum, row + k + per_row * 4 + g % per_row * 4, 4);
    const float *in = x.data() + g * 16, *whole = x.data() + g * 16 / group * group;
    float largest = 0.0f;
    bool finite = true;
    for (int i = 0; i < group; ++i) {
      largest = std::max(largest, std::abs(whole[i]));
      finite = finite && std::isfinite(whole[i]);
    }
    for (int i = 0; i < 16; ++i) expected += q[i];
    CHECK(sum == expected);
    if (!finite) {
      CHECK(std::isnan(d) && std::all_of(q, q + 16, [](int8_t v) { return v == 0; }));
    } else if (largest < 0x1p-122f) {
      CHECK(d == 0.0f && std::all_of(q, q + 16, [](int8_t v) { return v == 0; }));
    } else {
      const float exact = largest / 127.0f;
      // A scale for 32 keeps 22 bits: at most 3 units of its last place less.
      CHECK(group == 16 ? d == exact : d <= exact && within(d, exact, 3 * 2 * kRound * exact + 0x1p-147));
      // Half a step, and 127 steps times the two roundings of x (1/d).
      for (int i = 0; i < 16; ++i) CHECK(within(q[i], static_cast<double>(in[i]) / d, 0.5 + 127 * 2 * kRound));
      const int8_t* all = reinterpret_cast<const int8_t*>(row) + g % per_row * 16 / group * group;
      CHECK(std::any_of(all, all + group, [](int8_t v) { return v == 127 || v == -127; }));
    }
  }
}

TEST(rows, quantize) {
  check_quantized(16);
  check_quantized(32);
}

TEST(rows, rope) {
  Random random(103);
  for (const int32_t dim : {8, 32, 64, 48}) {
    const int32_t rows = 6, heads = 3, head_dim = dim == 48 ? 64 : dim, stride = heads * head_dim + 5, table_rows = 40;
    const std::vector<float> x = random.normals(static_cast<size_t>(rows * stride)),
                             table = random.normals(static_cast<size_t>(table_rows * dim));
    const std::vector<int32_t> positions = {3, 0, 39, 7, 7, 12};
    rb_step step = rows_step(rows);
    step.positions = positions.data();
    const auto rotate = [&](bool in_place) {
      return agreed("rope", [&, in_place](int32_t isa, Split split) {
        std::vector<float> out = in_place ? x : std::vector<float>(x.size(), 5.0f);
        rb_args args{};
        args.rope = {in_place ? out.data() : x.data(),
                     out.data(),
                     table.data(),
                     stride,
                     stride,
                     heads,
                     head_dim,
                     dim,
                     table_rows};
        run_launch(isa, RB_OP_ROPE, args, step, split);
        return out;
      });
    };
    const std::vector<float> y = rotate(false), in_place = rotate(true);
    for (int32_t i = 0; i < rows * stride; ++i) {
      const int32_t r = i / stride, c = i % stride, d = c % head_dim, half = dim / 2;
      if (c >= heads * head_dim) {
        CHECK(y[i] == 5.0f && in_place[i] == x[i]);
        continue;
      }
      CHECK(y[i] == in_place[i]);
      if (d >= dim) {
        CHECK(y[i] == x[i]);
        continue;
      }
      const int32_t pair = d % half;
      const double cosine = table[positions[r] * dim + pair], sine = table[positions[r] * dim + half + pair];
      const double x0 = x[i - (d >= half ? half : 0)], x1 = x[i + (d >= half ? 0 : half)];
      const double expected = d < half ? x0 * cosine - x1 * sine : x1 * cosine + x0 * sine;
      CHECK(within(y[i], expected,
                   2 * kRound * (std::abs(x0) + std::abs(x1)) * std::max(std::abs(cosine), std::abs(sine))));
    }
  }
}

TEST(rows, gated) {
  Random random(105);
  for (const int32_t act : {0, 1}) {
    const int32_t rows = 4, n = 96;
    std::vector<float> x = random.normals(rows * 2 * n);
    for (float& value : x) value *= 8.0f;
    const std::vector<float> y = agreed("gated", [&](int32_t isa, Split split) {
      std::vector<float> out(rows * n), same(rows * n);
      Buffer q = zeroed(rb_quantized_stride(n) * rows);
      rb_args args{};
      args.gated = {x.data(), out.data(), nullptr, 2 * n, n, n, act, RB_ROWS, 16 + 16 * act};
      run_launch(isa, RB_OP_GATED, args, rows_step(rows), split);
      args.gated.y = same.data();
      args.gated.yq = q.data();
      run_launch(isa, RB_OP_GATED, args, rows_step(rows), split);
      const std::vector<uint8_t> expected = quantized(isa, out.data(), rows, n, 16 + 16 * act);
      CHECK(same_bits(out, same) && std::memcmp(expected.data(), q.data(), q.size()) == 0);
      return out;
    });
    for (int32_t i = 0; i < rows * n; ++i) {
      const double a = x[i / n * 2 * n + i % n], b = x[i / n * 2 * n + n + i % n];
      const double z = std::sqrt(2.0 / M_PI) * (a + 0.044715 * a * a * a), power = act == 0 ? a : 2.0 * z;
      const double expected = a / (1.0 + std::exp(-power)) * b;
      test_context = "act " + std::to_string(act) + " x " + std::to_string(a) + " error " +
                     std::to_string((y[i] - expected) / expected / kRound);
      // gelu's exponent carries 6 roundings (x^2, x^3, both constants, fma, product), e^-x 1 ulp = 2, then sum, quotient and product.
      // Where e^-x overflows f32 the result is 0 instead of at most 12 e^-88.7 = 4e-38, times b.
      CHECK(
          within(y[i], expected, (6 * act * std::abs(power) + 5) * kRound * std::abs(expected) + 4e-38 * std::abs(b)));
    }
  }
}

TEST(rows, add_select_softcap) {
  Random random(106);
  const int32_t rows = 70, n = 100;
  const std::vector<float> a = random.normals(rows * n), b = random.normals(rows * n);
  const std::vector<float> sum = agreed("add", [&](int32_t isa, Split split) {
    std::vector<float> out(a.size());
    rb_args args{};
    args.add = {a.data(), b.data(), out.data(), n, n, n, n, RB_LOGIT_ROWS};
    run_launch(isa, RB_OP_ADD, args, rows_step(rows), split);
    return out;
  });
  for (size_t i = 0; i < a.size(); ++i) CHECK(sum[i] == a[i] + b[i]);

  const std::vector<int32_t> index = {69, 0, 5, 5};
  rb_step step = rows_step(rows);
  step.logit_rows = 4, step.logit_index = index.data();
  const std::vector<float> selected = agreed("select", [&](int32_t isa, Split split) {
    std::vector<float> out(4 * n);
    rb_args args{};
    args.select = {a.data(), out.data(), n, n, n};
    run_launch(isa, RB_OP_SELECT, args, step, split);
    return out;
  });
  for (int32_t i = 0; i < 4 * n; ++i) CHECK(selected[i] == a[index[i / n] * n + i % n]);

  const float cap = 1.5f;
  const std::vector<float> capped = agreed("softcap", [&](int32_t isa, Split split) {
    std::vector<float> out(a.size());
    rb_args args{};
    args.softcap = {a.data(), out.data(), n, n, n, RB_ROWS, cap};
    run_launch(isa, RB_OP_SOFTCAP, args, rows_step(rows), split);
    return out;
  });
  // tanh within 2 ulp = 4 roundings; x / cap moves tanh by at most one rounding of itself; the product adds one.
  for (size_t i = 0; i < a.size(); ++i) {
    const double expected = cap * std::tanh(static_cast<double>(a[i]) / cap);
    CHECK(within(capped[i], expected, 6 * kRound * std::abs(expected)));
  }
}

TEST(rows, embed_is_the_unpacked_row_times_scale) {
  Random random(107);
  for (int32_t type = 0; type < RB_WEIGHT_TYPES; ++type) {
    const int32_t n = 37, k = type >= RB_Q4_K ? 256 : 64;
    const std::vector<uint8_t> stored = random_stored(random, type, n, k);
    const Buffer tiles = packed(type, stored, n, k);
    const std::vector<int32_t> ids = {0, 36, 17, 17, 5};
    rb_step step = rows_step(5);
    step.ids = ids.data();
    const std::vector<float> y = agreed(type_name(type), [&](int32_t isa, Split split) {
      std::vector<float> out(5 * k);
      rb_args args{};
      args.embed = {{tiles.data(), type, n, k}, out.data(), k, 3.3f};
      run_launch(isa, RB_OP_EMBED, args, step, split);
      return out;
    });
    std::vector<float> all(static_cast<size_t>(n * k));
    const rb_matrix w{tiles.data(), type, n, k};
    CHECK(rb_unpack(&w, all.data()) == RB_PACK_OK);
    for (int32_t i = 0; i < 5 * k; ++i) CHECK(y[i] == all[ids[i / k] * k + i % k] * 3.3f);
  }
}
