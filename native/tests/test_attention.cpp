// Attention over the paged cache: against double precision, and the same bits for every grouping, instruction set and garbage tail.
#include <algorithm>
#include <cmath>

#include "cpu/half.h"
#include "reference.h"
#include "support.h"
#include "test.h"

namespace {

struct Setting {
  int32_t heads, kv_heads, head_dim, window;
  float softcap;
};

// Sequences of given lengths in shuffled blocks; every position's q is kept, so that any rows can be asked for.
struct Cache {
  Setting s;
  std::vector<int32_t> lengths, tables;
  int32_t table_stride = 0, blocks = 0;
  std::vector<std::vector<float>> q;  // [sequence][position][heads][head_dim]
  std::vector<uint16_t> keys, values;
};

Cache cache(uint64_t seed, const Setting& s, const std::vector<int32_t>& lengths) {
  Random random(seed);
  Cache c{s, lengths, {}, 0, 0, {}, {}, {}};
  for (const int32_t length : lengths)
    c.table_stride = std::max(c.table_stride, (length + 15) / 16), c.blocks += (length + 15) / 16;
  c.blocks += 2;
  std::vector<int32_t> order(static_cast<size_t>(c.blocks));
  for (int32_t i = 0; i < c.blocks; ++i) order[i] = i;
  for (int32_t i = c.blocks - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  const size_t block = static_cast<size_t>(s.kv_heads * s.head_dim * 16);
  c.keys.assign(c.blocks * block, 0x7fff);  // NaN wherever nothing was written
  c.values.assign(c.blocks * block, 0xfc01);
  c.tables.assign(lengths.size() * c.table_stride, -1);
  for (size_t i = 0, next = 0; i < lengths.size(); ++i) {
    for (int32_t b = 0; b * 16 < lengths[i]; ++b) c.tables[i * c.table_stride + b] = order[next++];
    c.q.push_back(random.normals(static_cast<size_t>(lengths[i] * s.heads * s.head_dim)));
    for (int32_t p = 0; p < lengths[i]; ++p) {
      const int32_t at = c.tables[i * c.table_stride + p / 16];
      for (int32_t h = 0; h < s.kv_heads; ++h) {
        for (int32_t d = 0; d < s.head_dim; ++d) {
          c.keys[((at * s.kv_heads + h) * s.head_dim + d) * 16 + p % 16] = rb::f32_to_f16(random.normal());
          c.values[((at * s.kv_heads + h) * 16 + p % 16) * s.head_dim + d] = rb::f32_to_f16(random.normal());
        }
      }
    }
  }
  return c;
}

struct Ask {
  int32_t sequence, first, count;
};

std::vector<float> attention(const Cache& c, int32_t isa, const std::vector<Ask>& asks, Split split = Split::kWhole) {
  const Setting& s = c.s;
  const int32_t width = s.heads * s.head_dim;
  std::vector<int32_t> positions, sequences;
  std::vector<float> q;
  for (const Ask& ask : asks) {
    for (int32_t p = ask.first; p < ask.first + ask.count; ++p) {
      positions.push_back(p), sequences.push_back(ask.sequence);
      q.insert(q.end(), c.q[ask.sequence].begin() + p * width, c.q[ask.sequence].begin() + (p + 1) * width);
    }
  }
  rb_step step = rows_step(static_cast<int32_t>(positions.size()));
  step.positions = positions.data(), step.sequences = sequences.data();
  step.tables = c.tables.data(), step.table_stride = c.table_stride;
  std::vector<float> out(q.size(), NAN);
  Buffer outq(s.head_dim % 32 == 0 ? rb_quantized_stride(width) * positions.size() : 0);
  std::memset(outq.data(), 0, outq.size());
  rb_args args{};
  args.attention = {q.data(),
                    c.keys.data(),
                    c.values.data(),
                    out.data(),
                    outq.size() > 0 ? outq.data() : nullptr,
                    width,
                    width,
                    s.heads,
                    s.kv_heads,
                    s.head_dim,
                    s.window,
                    c.table_stride * 16,
                    c.blocks,
                    1.0f / std::sqrt(static_cast<float>(s.head_dim)),
                    s.softcap};
  run_launch(isa, RB_OP_ATTENTION, args, step, split);
  if (outq.size() > 0)
    CHECK(std::memcmp(quantized(isa, out.data(), step.rows, width).data(), outq.data(), outq.size()) == 0);
  return out;
}

void reference_head(const Cache& c, const Ask& at, int32_t head, double* out, double* magnitude, double* largest) {
  const Setting& s = c.s;
  const int32_t p = at.first, start = s.window > 0 ? std::max(0, p - s.window + 1) : 0,
                kv = head / (s.heads / s.kv_heads);
  const float* q = c.q[at.sequence].data() + (p * s.heads + head) * s.head_dim;
  std::vector<double> score;
  *largest = 0.0;
  const auto half = [](const uint16_t& h) { return half_value(reinterpret_cast<const uint8_t*>(&h)); };
  for (int32_t j = start; j <= p; ++j) {
    const int32_t block = c.tables[at.sequence * c.table_stride + j / 16];
    double dot = 0.0, size = 0.0;
    for (int32_t d = 0; d < s.head_dim; ++d) {
      const double term = q[d] * half(c.keys[((block * s.kv_heads + kv) * s.head_dim + d) * 16 + j % 16]);
      dot += term, size += std::abs(term);
    }
    const double scale = 1.0 / std::sqrt(static_cast<double>(s.head_dim)), value = dot * scale;
    *largest = std::max(*largest, size * scale);
    score.push_back(s.softcap > 0 ? s.softcap * std::tanh(value / s.softcap) : value);
  }
  const double top = *std::max_element(score.begin(), score.end());
  double total = 0.0;
  for (double& v : score) total += v = std::exp(v - top);
  for (int32_t d = 0; d < s.head_dim; ++d) {
    out[d] = magnitude[d] = 0.0;
    for (int32_t j = start; j <= p; ++j) {
      const int32_t block = c.tables[at.sequence * c.table_stride + j / 16];
      const double term =
          score[j - start] / total * half(c.values[((block * s.kv_heads + kv) * 16 + j % 16) * s.head_dim + d]);
      out[d] += term, magnitude[d] += std::abs(term);
    }
  }
}

// A score is off by head_dim + 2 roundings of its terms (5 with a cap) and one each of s and max in s - max; so is, relatively, a weight, once
// for itself and once in the total. The sums add one rounding a position, e^x two, the total's tree four, the quotient one.
void check_against_double(const Cache& c, const Ask& ask, const std::vector<float>& y) {
  const Setting& s = c.s;
  for (int32_t p = ask.first; p < ask.first + ask.count; ++p) {
    for (int32_t h = 0; h < s.heads; ++h) {
      std::vector<double> expected(s.head_dim), magnitude(s.head_dim);
      double largest;
      reference_head(c, {ask.sequence, p, 1}, h, expected.data(), magnitude.data(), &largest);
      const double roundings = 2 * (s.head_dim + 8) * largest + 2 * (p + 1) + 12;
      for (int32_t d = 0; d < s.head_dim; ++d) {
        const float got = y[((p - ask.first) * s.heads + h) * s.head_dim + d];
        CHECK(std::abs(got - expected[d]) <= roundings * kRound * magnitude[d]);
      }
    }
  }
}

const Setting kSettings[] = {{1, 1, 16, 0, 0.0f}, {9, 3, 64, 0, 0.0f},   {7, 1, 32, 5, 0.0f},   {4, 1, 96, 40, 0.0f},
                             {8, 8, 32, 3, 2.0f}, {14, 2, 64, 0, 20.0f}, {12, 1, 256, 16, 0.0f}};

std::string name(const Setting& s, int32_t isa) {
  return std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + "x" + std::to_string(s.head_dim) + " window " +
         std::to_string(s.window) + " " + rb_isa_name(isa);
}

}  // namespace

TEST(attention, agrees_with_double_precision_and_between_instruction_sets) {
  for (const Setting& s : kSettings) {
    const Cache c = cache(200, s, {77});
    const Ask all{0, 0, 77};
    const std::vector<float> scalar = attention(c, RB_ISA_SCALAR, {all});
    test_context = name(s, RB_ISA_SCALAR);
    check_against_double(c, all, scalar);
    for (const int32_t isa : available_isas()) {
      test_context = name(s, isa);
      for (const Split split : {Split::kWhole, Split::kSingle, Split::kBackwards})
        CHECK(same_bits(attention(c, isa, {all}, split), scalar));
    }
  }
}

TEST(attention, chunks_and_neighbours_change_nothing) {
  for (const Setting& s : kSettings) {
    const Cache c = cache(201, s, {50, 1, 33, 16});
    const int32_t width = s.heads * s.head_dim;
    for (const int32_t isa : available_isas()) {
      test_context = name(s, isa);
      const std::vector<float> whole = attention(c, isa, {{0, 0, 50}});
      for (const int32_t chunk : {1, 2, 7}) {
        std::vector<float> parts;
        for (int32_t first = 0; first < 50; first += chunk) {
          const std::vector<float> part = attention(c, isa, {{0, first, std::min(chunk, 50 - first)}});
          parts.insert(parts.end(), part.begin(), part.end());
        }
        CHECK(same_bits(parts, whole));
      }
      const std::vector<float> mixed = attention(c, isa, {{1, 0, 1}, {0, 20, 5}, {2, 32, 1}, {3, 0, 16}});
      CHECK(same_bits(std::vector<float>(mixed.begin() + width, mixed.begin() + 6 * width),
                      {whole.begin() + 20 * width, whole.begin() + 25 * width}));
    }
  }
}

// What stands behind a row's position belongs to nobody: other values there, infinities and NaN included, must not reach the row, not
// even when a later row of the same batch reads them.
TEST(attention, later_positions_have_no_influence) {
  for (const Setting& s : kSettings) {
    Cache c = cache(202, s, {40});
    const int32_t width = s.heads * s.head_dim;
    for (const int32_t isa : available_isas()) {
      test_context = name(s, isa);
      const std::vector<float> clean = attention(c, isa, {{0, 0, 40}});
      Cache dirty = c;
      for (int32_t p = 35; p < 40; ++p) {
        const int32_t block = c.tables[p / 16];
        for (int32_t i = 0; i < s.kv_heads * s.head_dim; ++i) {
          dirty.keys[(block * s.kv_heads * s.head_dim + i) * 16 + p % 16] = p % 2 ? 0x7e00 : 0x7c00;
          dirty.values[((block * s.kv_heads + i / s.head_dim) * 16 + p % 16) * s.head_dim + i % s.head_dim] =
              p % 2 ? 0xfc00 : 0x7e01;
        }
      }
      const std::vector<float> y = attention(dirty, isa, {{0, 0, 40}});
      CHECK(same_bits(std::vector<float>(y.begin(), y.begin() + 35 * width),
                      {clean.begin(), clean.begin() + 35 * width}));
      CHECK(std::all_of(y.begin() + 35 * width, y.end(), [](float v) { return std::isnan(v); }));
    }
  }
}
