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
  int32_t type;
};

// Sequences of given lengths in shuffled blocks; every position's q is kept, so that any rows can be asked for. The layer is the
// second of three: its part of a block has strangers (NaN) before and behind it.
struct Cache {
  Setting s;
  std::vector<int32_t> lengths, tables;
  int32_t table_stride = 0, blocks = 0;
  int64_t stride = 0, part = 0, head = 0;
  std::vector<std::vector<float>> q;  // [sequence][position][heads][head_dim]
  std::vector<uint8_t> memory;

  uint8_t* layer() { return memory.data() + part; }
  const uint8_t* layer() const { return memory.data() + part; }
  // Where element d of a position's key (half 0) or value (1) lies, in elements of its head.
  int64_t element(int half, int32_t p, int32_t d) const {
    return half == 0 ? d * 16 + p % 16 : p % 16 * s.head_dim + d;
  }
  const uint8_t* head_of(int half, int32_t sequence, int32_t p, int32_t h) const {
    return layer() + tables[sequence * table_stride + p / 16] * stride + (half * s.kv_heads + h) * head;
  }
  uint8_t* head_of(int half, int32_t sequence, int32_t p, int32_t h) {
    return const_cast<uint8_t*>(static_cast<const Cache*>(this)->head_of(half, sequence, p, h));
  }
  int64_t scale_at(int32_t p, int32_t d) const { return 16 * s.head_dim + (d / 32 * 16 + p % 16) * 2; }

  double value(int half, int32_t sequence, int32_t p, int32_t h, int32_t d) const {
    const uint8_t* x = head_of(half, sequence, p, h);
    if (s.type == RB_KV_F16) return half_value(x + 2 * element(half, p, d));
    if (s.type == RB_KV_F32) {
      float f;
      std::memcpy(&f, x + 4 * element(half, p, d), 4);
      return f;
    }
    return static_cast<int8_t>(x[element(half, p, d)]) * half_value(x + scale_at(p, d));
  }
  // All of a position: ordinary numbers, or what `odd` says where it is not 0 (bits of f16: elements, or scales of int8).
  void fill(Random& random, int32_t sequence, int32_t p, uint16_t odd = 0) {
    for (int half = 0; half < 2; ++half) {
      for (int32_t h = 0; h < s.kv_heads; ++h) {
        uint8_t* x = head_of(half, sequence, p, h);
        for (int32_t d = 0; d < s.head_dim; ++d) {
          const uint16_t f16 =
              odd != 0 ? odd : rb::f32_to_f16(s.type != RB_KV_INT8 ? random.normal() : random.uniform(0.002f, 0.02f));
          if (s.type == RB_KV_F32) {
            const float f = odd != 0 ? rb::f16_to_f32(odd) : random.normal();
            std::memcpy(x + 4 * element(half, p, d), &f, 4);
            continue;
          }
          if (s.type == RB_KV_INT8) x[element(half, p, d)] = static_cast<uint8_t>(random.below(255) - 127);
          std::memcpy(x + (s.type == RB_KV_F16 ? 2 * element(half, p, d) : scale_at(p, d)), &f16, 2);
        }
      }
    }
  }
};

Cache cache(uint64_t seed, const Setting& s, const std::vector<int32_t>& lengths) {
  Random random(seed);
  Cache c{s, lengths, {}, 0, 0, 0, 0, 0, {}, {}};
  for (const int32_t length : lengths)
    c.table_stride = std::max(c.table_stride, (length + 15) / 16), c.blocks += (length + 15) / 16;
  c.blocks += 2;
  std::vector<int32_t> order(static_cast<size_t>(c.blocks));
  for (int32_t i = 0; i < c.blocks; ++i) order[i] = i;
  for (int32_t i = c.blocks - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  c.part = static_cast<int64_t>(rb_kv_bytes(s.type, s.kv_heads, s.head_dim));
  c.stride = 3 * c.part, c.head = c.part / 2 / s.kv_heads;
  c.memory.assign(c.blocks * c.stride, 0xff);  // NaN wherever nothing was written
  c.tables.assign(lengths.size() * c.table_stride, -1);
  for (size_t i = 0, next = 0; i < lengths.size(); ++i) {
    for (int32_t b = 0; b * 16 < lengths[i]; ++b) c.tables[i * c.table_stride + b] = order[next++];
    c.q.push_back(random.normals(static_cast<size_t>(lengths[i] * s.heads * s.head_dim)));
    for (int32_t p = 0; p < lengths[i]; ++p) c.fill(random, static_cast<int32_t>(i), p);
  }
  return c;
}

struct Ask {
  int32_t sequence, first, count;
};

// work: whether few rows may be cut by chunks.
std::vector<float> attention(const Cache& c, int32_t isa, const std::vector<Ask>& asks, Split split = Split::kWhole,
                             bool work = true) {
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
  const int32_t rows = std::min(step.rows, RB_ATTENTION_SPLIT_ROWS), reach = c.table_stride * 16;
  Buffer room(static_cast<size_t>(rows * rb_attention_work(s.heads, s.head_dim, s.window, reach)) * sizeof(float));
  rb_args args{};
  args.attention = {q.data(),
                    c.layer(),
                    out.data(),
                    outq.size() > 0 ? outq.data() : nullptr,
                    work ? room.as<float>() : nullptr,
                    c.stride,
                    s.type,
                    width,
                    width,
                    s.heads,
                    s.kv_heads,
                    s.head_dim,
                    s.window,
                    reach,
                    c.blocks,
                    1.0f / std::sqrt(static_cast<float>(s.head_dim)),
                    s.softcap,
                    s.window > 0 ? 32 : 16};
  run_launch(isa, RB_OP_ATTENTION, args, step, split);
  run_launch(isa, RB_OP_ATTENTION_MERGE, args, step, split);
  if (outq.size() > 0)
    CHECK(std::memcmp(quantized(isa, out.data(), step.rows, width, args.attention.group).data(), outq.data(),
                      outq.size()) == 0);
  return out;
}

void reference_head(const Cache& c, const Ask& at, int32_t head, double* out, double* magnitude, double* largest) {
  const Setting& s = c.s;
  const int32_t p = at.first, start = s.window > 0 ? std::max(0, p - s.window + 1) : 0,
                kv = head / (s.heads / s.kv_heads);
  const float* q = c.q[at.sequence].data() + (p * s.heads + head) * s.head_dim;
  std::vector<double> score;
  *largest = 0.0;
  // int8 keys are stored turned: element (i, j) of the matrix is -1 to the number of ones that i and j share.
  const int32_t n = s.type == RB_KV_INT8 ? s.head_dim & -s.head_dim : 1;
  std::vector<double> turned(s.head_dim), size_of(s.head_dim);
  for (int32_t d = 0; d < s.head_dim; ++d) {
    for (int32_t i = 0; i < n; ++i) {
      const double x = q[d / n * n + i] / static_cast<double>(n);
      turned[d] += __builtin_popcount(static_cast<unsigned>(d % n & i)) % 2 != 0 ? -x : x;
      size_of[d] += std::abs(x);
    }
  }
  for (int32_t j = start; j <= p; ++j) {
    double dot = 0.0, size = 0.0;
    for (int32_t d = 0; d < s.head_dim; ++d) {
      const double key = c.value(0, at.sequence, j, kv, d);
      dot += turned[d] * key, size += size_of[d] * std::abs(key);
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
      const double term = score[j - start] / total * c.value(1, at.sequence, j, kv, d);
      out[d] += term, magnitude[d] += std::abs(term);
    }
  }
}

// A score is off by head_dim + 2 roundings of its terms (5 with a cap, one more for each 32 dimensions of int8 and 8 for turning q) and one each of s and max
// in s - max; so is, relatively, a weight, once for itself and once in the total. The sums add one rounding a position (two with int8's
// scale), e^x two, the total's tree four, a merge of chunks four for each factor (two differences of scores, e^x) and two, 1 / total two.
void check_against_double(const Cache& c, const Ask& ask, const std::vector<float>& y) {
  const Setting& s = c.s;
  for (int32_t p = ask.first; p < ask.first + ask.count; ++p) {
    for (int32_t h = 0; h < s.heads; ++h) {
      std::vector<double> expected(s.head_dim), magnitude(s.head_dim);
      double largest;
      reference_head(c, {ask.sequence, p, 1}, h, expected.data(), magnitude.data(), &largest);
      const double roundings = 2 * (s.head_dim + s.head_dim / 32 + 16) * largest + 3 * (p + 1) +
                               (p / RB_ATTENTION_CHUNK + 1) * (10 + 4 * largest) + 14;
      for (int32_t d = 0; d < s.head_dim; ++d) {
        const float got = y[((p - ask.first) * s.heads + h) * s.head_dim + d];
        CHECK(std::abs(got - expected[d]) <= roundings * kRound * magnitude[d]);
      }
    }
  }
}

const Setting kSettings[] = {
    {1, 1, 16, 0, 0.0f, RB_KV_F16},    {9, 3, 64, 0, 0.0f, RB_KV_F16},  {7, 1, 32, 5, 0.0f, RB_KV_F16},
    {4, 1, 96, 40, 0.0f, RB_KV_F16},   {8, 8, 32, 3, 2.0f, RB_KV_F16},  {14, 2, 64, 0, 20.0f, RB_KV_F16},
    {12, 1, 256, 16, 0.0f, RB_KV_F16}, {9, 3, 64, 0, 0.0f, RB_KV_F32},  {4, 1, 48, 7, 3.0f, RB_KV_F32},
    {2, 1, 48, 0, 0.0f, RB_KV_INT8},   {9, 3, 64, 0, 0.0f, RB_KV_INT8}, {4, 2, 32, 7, 3.0f, RB_KV_INT8},
    {26, 2, 16, 0, 0.0f, RB_KV_INT8}};

// Windows shorter and longer than a chunk, and none.
const Setting kLong[] = {{6, 2, 32, 0, 0.0f, RB_KV_F16},   {3, 1, 64, 100, 0.0f, RB_KV_F16},
                         {4, 1, 32, 300, 5.0f, RB_KV_F16}, {6, 2, 64, 100, 0.0f, RB_KV_F32},
                         {6, 3, 32, 0, 0.0f, RB_KV_INT8},  {2, 1, 64, 257, 0.0f, RB_KV_INT8}};

std::string name(const Setting& s, int32_t isa) {
  return std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + "x" + std::to_string(s.head_dim) + " window " +
         std::to_string(s.window) +
         (s.type == RB_KV_F16   ? " f16 "
          : s.type == RB_KV_F32 ? " f32 "
                                : " int8 ") +
         rb_isa_name(isa);
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
      Random random(203);
      for (int32_t p = 35; p < 40; ++p) dirty.fill(random, 0, p, p % 2 ? 0x7e00 : 0x7c00);
      const std::vector<float> y = attention(dirty, isa, {{0, 0, 40}});
      CHECK(same_bits(std::vector<float>(y.begin(), y.begin() + 35 * width),
                      {clean.begin(), clean.begin() + 35 * width}));
      CHECK(std::all_of(y.begin() + 35 * width, y.end(), [](float v) { return std::isnan(v); }));
    }
  }
}

// Positions at and around the borders of chunks, alone (cut by chunks or not), as part of a prompt, and beside other sequences.
TEST(attention, a_chunk_border_changes_nothing) {
  for (const Setting& s : kLong) {
    const Cache c = cache(204, s, {530, 300});
    const int32_t width = s.heads * s.head_dim;
    const std::vector<float> scalar = attention(c, RB_ISA_SCALAR, {{0, 0, 530}});
    test_context = name(s, RB_ISA_SCALAR);
    for (const int32_t p : {254, 255, 256, 300, 511, 512, 529}) {
      const auto row = [&](const std::vector<float>& from, int32_t at) {
        return std::vector<float>(from.begin() + at * width, from.begin() + (at + 1) * width);
      };
      check_against_double(c, {0, p, 1}, row(scalar, p));
      for (const int32_t isa : available_isas()) {
        test_context = name(s, isa) + " position " + std::to_string(p);
        for (const Split split : {Split::kWhole, Split::kSingle, Split::kBackwards})
          CHECK(same_bits(attention(c, isa, {{0, p, 1}}, split), row(scalar, p)));
        CHECK(same_bits(attention(c, isa, {{0, p, 1}}, Split::kWhole, false), row(scalar, p)));
        CHECK(same_bits(row(attention(c, isa, {{1, 299, 1}, {0, p - 2, 3}, {1, 10, 2}}), 3), row(scalar, p)));
        CHECK(same_bits(row(attention(c, isa, {{0, p - 40, 41}, {1, 0, 3}}), 40), row(scalar, p)));
      }
    }
    for (const int32_t isa : available_isas()) {
      test_context = name(s, isa);
      CHECK(same_bits(attention(c, isa, {{0, 0, 530}}, Split::kBackwards), scalar));
    }
  }
}

// 64 rows of as many sequences as there are lengths, longer and shorter than a chunk: what a busy server decodes.
TEST(attention, many_sequences_at_once_as_each_alone) {
  const Setting s{6, 2, 32, 0, 0.0f, RB_KV_F16};
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 64; ++i) lengths.push_back(1 + i * 37 % 600);
  const Cache c = cache(205, s, lengths);
  std::vector<Ask> all;
  for (int32_t i = 0; i < 64; ++i) all.push_back({i, lengths[i] - 1, 1});
  const int32_t width = s.heads * s.head_dim;
  for (const int32_t isa : available_isas()) {
    const std::vector<float> together = attention(c, isa, all);
    for (int32_t i = 0; i < 64; ++i) {
      test_context = name(s, isa) + " sequence " + std::to_string(i);
      CHECK(same_bits(attention(c, isa, {all[i]}), {together.begin() + i * width, together.begin() + (i + 1) * width}));
    }
  }
}
