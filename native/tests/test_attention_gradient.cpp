// The gradient of attention, bit for bit what rebar_training.h says in plain code, and what double precision says of its formula.
#include <algorithm>
#include <cmath>

#include "agreed.h"
#include "cpu/half.h"
#include "support.h"
#include "test.h"
#include "training_reference.h"

namespace {

struct Setting {
  int32_t heads, kv_heads, head_dim, window;
  float softcap;
  int32_t type;
};

const Setting kSettings[] = {{1, 1, 16, 0, 0.0f, RB_KV_F32},  {9, 3, 64, 0, 0.0f, RB_KV_F16},
                             {4, 1, 96, 20, 0.0f, RB_KV_F16}, {14, 2, 32, 0, 20.0f, RB_KV_F32},
                             {8, 8, 32, 3, 2.0f, RB_KV_F32},  {26, 2, 16, 1, 0.0f, RB_KV_F16}};

// Sequences of several parts: two runs of which are shorter, three parts, one.
const Setting kLongSettings[] = {{2, 1, 16, 0, 0.0f, RB_KV_F32}, {3, 3, 16, 100, 5.0f, RB_KV_F16}};
const std::vector<int32_t> kLongLengths = {513, 40, 775};

// Whole sequences in shuffled blocks; what a row does not own is NaN.
struct Training {
  Setting s;
  std::vector<int32_t> positions, sequences, tables;
  int32_t rows = 0, stride = 0, table_stride = 0, blocks = 0;
  std::vector<float> q, k, v, out, dout, dq, dk, dv;
  Buffer cache{0};

  rb_step step() const {
    rb_step step = rows_step(rows);
    step.positions = positions.data(), step.sequences = sequences.data();
    step.tables = tables.data(), step.table_stride = table_stride;
    return step;
  }
  int32_t width() const { return s.heads * s.head_dim; }
  int32_t kv_width() const { return s.kv_heads * s.head_dim; }
};

Training training(uint64_t seed, const Setting& s, const std::vector<int32_t>& lengths) {
  Random random(seed);
  Training t;
  t.s = s;
  for (const int32_t n : lengths) t.table_stride = std::max(t.table_stride, (n + 15) / 16);
  t.blocks = static_cast<int32_t>(lengths.size()) * t.table_stride + 1;
  for (size_t i = 0; i < lengths.size(); ++i) {
    for (int32_t b = 0; b < t.table_stride; ++b)
      t.tables.push_back(t.blocks - 1 - static_cast<int32_t>(i) * t.table_stride - b);
    for (int32_t p = 0; p < lengths[i]; ++p) t.positions.push_back(p), t.sequences.push_back(static_cast<int32_t>(i));
  }
  t.rows = static_cast<int32_t>(t.positions.size());
  const size_t all = static_cast<size_t>(t.rows * t.width()), kv = static_cast<size_t>(t.rows * t.kv_width());
  t.q = random.normals(all), t.dout = random.normals(all), t.dq = random.normals(all), t.out.resize(all);
  t.k = random.normals(kv), t.v = random.normals(kv), t.dk = random.normals(kv), t.dv = random.normals(kv);
  if (s.type == RB_KV_F16) {
    for (float& x : t.k) x = rb::f16_to_f32(rb::f32_to_f16(x));
    for (float& x : t.v) x = rb::f16_to_f32(rb::f32_to_f16(x));
  }
  return t;
}

// Forward: fills the cache and out.
void forward(Training& t) {
  const Setting& s = t.s;
  const int64_t stride = static_cast<int64_t>(rb_kv_bytes(s.type, s.kv_heads, s.head_dim));
  t.cache = Buffer(static_cast<size_t>(t.blocks * stride));
  rb_args args{};
  args.append = {t.k.data(),   t.v.data(),   t.cache.data(), stride,     s.type,
                 t.kv_width(), t.kv_width(), s.kv_heads,     s.head_dim, t.blocks};
  run_launch(RB_ISA_SCALAR, RB_OP_APPEND, args, t.step());
  args.attention = {t.q.data(), t.cache.data(),      t.out.data(), nullptr, nullptr,    stride,
                    s.type,     t.width(),           t.width(),    s.heads, s.kv_heads, s.head_dim,
                    s.window,   t.table_stride * 16, t.blocks,     0.25f,   s.softcap,  16};
  run_launch(RB_ISA_SCALAR, RB_OP_ATTENTION, args, t.step());
}

std::vector<float> gradient(const Training& t, int32_t isa, Split split) {
  const Setting& s = t.s;
  std::vector<float> dq = t.dq, dk = t.dk, dv = t.dv;
  Buffer parts(static_cast<size_t>(t.rows * rb_attention_parts(t.table_stride * 16) * 2 * t.kv_width()) *
               sizeof(float));
  const int64_t stride = static_cast<int64_t>(rb_kv_bytes(s.type, s.kv_heads, s.head_dim));
  rb_args args{};
  args.attention_gradient = {
      t.q.data(),        t.cache.data(), t.out.data(), t.dout.data(), dq.data(),  dk.data(), dv.data(),
      parts.as<float>(), stride,         s.type,       t.width(),     t.width(),  t.width(), t.width(),
      t.kv_width(),      t.kv_width(),   s.heads,      s.kv_heads,    s.head_dim, s.window,  t.table_stride * 16,
      t.blocks,          0.25f,          s.softcap};
  run_launch(isa, RB_OP_ATTENTION_GRADIENT, args, t.step(), split);
  run_launch(isa, RB_OP_ATTENTION_GRADIENT_MERGE, args, t.step(), split);
  dq.insert(dq.end(), dk.begin(), dk.end());
  dq.insert(dq.end(), dv.begin(), dv.end());
  return dq;
}

// One query in double: P and e of the positions it sees, from `first` on.
struct Exact {
  int32_t first;
  std::vector<double> weight, slope;
};

Exact exact(const Training& t, int32_t row, int32_t h) {
  const Setting& s = t.s;
  const int32_t last = t.positions[row], begin = row - last, kv = h / (s.heads / s.kv_heads);
  Exact e{s.window > 0 ? std::max(0, last - s.window + 1) : 0, {}, {}};
  const float *q = &t.q[row * t.width() + h * s.head_dim], *dout = &t.dout[row * t.width() + h * s.head_dim];
  std::vector<double> cap, dp;
  double total = 0.0, whole = 0.0;
  for (int32_t p = e.first; p <= last; ++p) {
    const int32_t at = (begin + p) * t.kv_width() + kv * s.head_dim;
    double score = 0.0, d = 0.0;
    for (int32_t i = 0; i < s.head_dim; ++i)
      score += static_cast<double>(q[i]) * t.k[at + i], d += static_cast<double>(dout[i]) * t.v[at + i];
    score *= 0.25;
    if (s.softcap > 0) score = s.softcap * std::tanh(score / s.softcap);
    cap.push_back(s.softcap > 0 ? 1 - score * score / s.softcap / s.softcap : 1.0);
    e.weight.push_back(std::exp(score)), dp.push_back(d);
    total += e.weight.back();
  }
  for (size_t p = 0; p < dp.size(); ++p) e.weight[p] /= total, whole += e.weight[p] * dp[p];
  for (size_t p = 0; p < dp.size(); ++p) e.slope.push_back(0.25 * e.weight[p] * (dp[p] - whole) * cap[p]);
  return e;
}

// The whole gradient in double, and the sum of the magnitudes added to each element.
void check_against_double(const Training& t, const std::vector<float>& got) {
  const Setting& s = t.s;
  std::vector<double> expected(got.size()), size(got.size());
  const int32_t all = t.rows * t.width(), kv = t.rows * t.kv_width();
  for (int32_t i = 0; i < all; ++i) expected[i] = t.dq[i];
  for (int32_t i = 0; i < kv; ++i) expected[all + i] = t.dk[i], expected[all + kv + i] = t.dv[i];
  for (size_t i = 0; i < got.size(); ++i) size[i] = std::abs(expected[i]);
  const auto put = [&](int32_t to, double x) { expected[to] += x, size[to] += std::abs(x); };
  for (int32_t row = 0; row < t.rows; ++row) {
    for (int32_t h = 0; h < s.heads; ++h) {
      const Exact e = exact(t, row, h);
      const int32_t own = row * t.width() + h * s.head_dim;
      for (size_t p = 0; p < e.weight.size(); ++p) {
        const int32_t at = (row - t.positions[row] + e.first + static_cast<int32_t>(p)) * t.kv_width() +
                           h / (s.heads / s.kv_heads) * s.head_dim;
        for (int32_t d = 0; d < s.head_dim; ++d) {
          put(own + d, e.slope[p] * t.k[at + d]);
          put(all + at + d, e.slope[p] * t.q[own + d]);
          put(all + kv + at + d, e.weight[p] * t.dout[own + d]);
        }
      }
    }
  }
  // Scores are off by head_dim roundings of numbers of at most 0.25 sum |q k| ~ 20, so weights by 20 (head_dim + 8) of themselves; dout.v
  // and D by head_dim roundings of ~ head_dim; a cancellation dp - D makes ds off by that much of P times 40. Sums add one a term.
  const double off = (20.0 * (s.head_dim + 8) + 40.0 * s.head_dim + 300) * kRound;
  for (size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - expected[i]) <= off * (size[i] + 1));
}

void check_agreed(Training t) {
  const Setting& s = t.s;
  forward(t);
  const std::vector<float> got =
      agreed("attention_gradient", [&](int32_t isa, Split split) { return gradient(t, isa, split); });
  test_context = std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + "x" + std::to_string(s.head_dim);
  check_against_double(t, got);
}

}  // namespace

TEST(training, attention_gradient) {
  for (const Setting& s : kSettings) check_agreed(training(340, s, {37, 1, 16, 50}));
}

TEST(training, attention_gradient_in_parts) {
  CHECK(rb_attention_parts(511) == 0 && rb_attention_parts(512) == 1 && rb_attention_parts(1 << 20) == 3);
  for (const Setting& s : kLongSettings) check_agreed(training(342, s, kLongLengths));
}

// A sequence's bits are its own: alone, or beside others that have more parts.
TEST(training, attention_gradient_in_parts_is_that_of_the_sequence_alone) {
  for (const Setting& s : kLongSettings) {
    Training both = training(343, s, {513, 775}), alone = training(343, s, {513});
    const auto first = [](std::vector<float>& to, const std::vector<float>& from) {
      to.assign(from.begin(), from.begin() + static_cast<int64_t>(to.size()));
    };
    first(alone.q, both.q), first(alone.k, both.k), first(alone.v, both.v), first(alone.dout, both.dout);
    first(alone.dq, both.dq), first(alone.dk, both.dk), first(alone.dv, both.dv);
    forward(both), forward(alone);
    const std::vector<float> got = gradient(both, rb_best_isa(), Split::kWhole);
    const std::vector<float> want = gradient(alone, rb_best_isa(), Split::kWhole);
    const int64_t all = int64_t{both.rows} * both.width(), kv = int64_t{both.rows} * both.kv_width();
    const int64_t own = int64_t{alone.rows} * alone.width(), side = int64_t{alone.rows} * alone.kv_width();
    test_context = std::to_string(s.window);
    CHECK(std::equal(want.begin(), want.begin() + own, got.begin()));
    CHECK(std::equal(want.begin() + own, want.begin() + own + side, got.begin() + all));
    CHECK(std::equal(want.begin() + own + side, want.end(), got.begin() + all + kv));
  }
}

// What comes later in a sequence, and other sequences, have no say: NaN and infinity there reach no earlier row.
TEST(training, attention_gradient_of_earlier_rows_ignores_later_ones) {
  for (const Setting& s : kSettings) {
    Training t = training(341, s, {40, 20});
    forward(t);
    const std::vector<float> clean = gradient(t, rb_best_isa(), Split::kWhole);
    for (int32_t i = 35 * t.kv_width(); i < 40 * t.kv_width(); ++i) t.k[i] = NAN, t.v[i] = INFINITY;
    forward(t);
    for (const int32_t isa : available_isas()) {
      test_context = std::string("later ") + rb_isa_name(isa);
      const std::vector<float> got = gradient(t, isa, Split::kWhole);
      for (int32_t i = 0; i < t.rows * t.width(); ++i) {
        const int32_t row = i / t.width();
        if (row < 35 || row >= 40) CHECK(rb::bits_of(got[i]) == rb::bits_of(clean[i]));
      }
      CHECK(std::isnan(got[39 * t.width()]));
    }
  }
}
