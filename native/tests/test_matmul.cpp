// Matrix products: every format on every instruction set against double precision, and bit for bit against each other.
#include <algorithm>
#include <cmath>

#include "reference.h"
#include "support.h"
#include "test.h"

namespace {

struct Problem {
  int32_t type, n, k, rows, group;
  std::vector<uint8_t> stored;
  Buffer tiles;
  std::vector<float> x, bias, residual;
  std::vector<uint8_t> xq;
};

Problem problem(uint64_t seed, int32_t type, int32_t n, int32_t k, int32_t rows, int32_t group = 16) {
  Random random(seed);
  const std::vector<uint8_t> stored = random_stored(random, type, n, k);
  Problem p{type, n,  k, rows, group, stored, packed(type, stored, n, k), random.normals(static_cast<size_t>(rows) * k),
            {},   {}, {}};
  p.bias = random.normals(static_cast<size_t>(n));
  p.residual = random.normals(static_cast<size_t>(rows) * n);
  if (type > RB_BF16) p.xq = quantized(RB_ISA_SCALAR, p.x.data(), rows, k, group);
  return p;
}

std::vector<float> product(const Problem& p, int32_t isa, int32_t first, int32_t rows, bool plain,
                           Split split = Split::kWhole) {
  std::vector<float> y(static_cast<size_t>(rows) * p.n, NAN);
  rb_args args{};
  rb_matmul& a = args.matmul;
  a.w = {p.tiles.data(), p.type, p.n, p.k};
  a.x = p.x.data() + static_cast<size_t>(first) * p.k;
  a.xq = p.xq.empty() ? nullptr : p.xq.data() + static_cast<size_t>(first) * rb_quantized_stride(p.k);
  a.bias = plain ? nullptr : p.bias.data();
  a.residual = plain ? nullptr : p.residual.data() + static_cast<size_t>(first) * p.n;
  a.y = y.data();
  a.x_stride = p.k;
  a.y_stride = a.residual_stride = p.n;
  a.domain = RB_ROWS;
  a.group = p.group;
  run_launch(isa, RB_OP_MATMUL, args, rows_step(rows), split);
  return y;
}

// Every term enters by an fma (one rounding of a partial sum that is at most the sum of magnitudes) and block formats round
// dw dx and dx sum before it: chain + 2 roundings. Bias and residual add one each.
void check_against_double(const Problem& p, const std::vector<float>& y, bool plain) {
  for (int32_t j = 0; j < p.n; ++j) {
    const std::vector<Weight> w =
        decode_row(p.type, p.stored.data() + static_cast<int64_t>(p.stored.size()) / p.n * j, p.k);
    for (int32_t r = 0; r < p.rows; ++r) {
      std::vector<double> x(p.x.begin() + static_cast<int64_t>(r) * p.k,
                            p.x.begin() + (static_cast<int64_t>(r) + 1) * p.k);
      if (!p.xq.empty()) x = dequantized(p.xq.data() + static_cast<size_t>(r) * rb_quantized_stride(p.k), p.k);
      double sum = 0.0, magnitude = 0.0;
      for (size_t i = 0; i < x.size(); ++i) {
        sum += (w[i].product + w[i].minimum) * x[i];
        magnitude += (std::abs(w[i].product) + std::abs(w[i].minimum)) * std::abs(x[i]);
      }
      const size_t at = static_cast<size_t>(r) * p.n + j;
      if (!plain) sum += static_cast<double>(p.bias[j]) + p.residual[at];
      if (!plain) magnitude += std::abs(p.bias[j]) + std::abs(p.residual[at]);
      // Two roundings of the sum a group, three of a term (two products and a sum of the minimum's factor), bias, residual.
      const double chain = p.type <= RB_BF16 ? p.k : p.k / 32 * 2;
      CHECK(std::abs(y[at] - sum) <= (chain + 6) * kRound * magnitude);
    }
  }
}

// Inputs a scale of the activations that a type's products take.
std::vector<int32_t> groups_of(int32_t type) {
  if (type <= RB_BF16) return {16};
  return {16, 32};
}

std::string name_of(int32_t type, int32_t group, int32_t isa) {
  return type_name(type) + std::string(" per ") + std::to_string(group) + " " + rb_isa_name(isa);
}

int32_t small_k(int32_t type) { return type <= RB_BF16 ? 50 : type >= RB_Q4_K ? 512 : 160; }

}  // namespace

TEST(matmul, agrees_with_double_precision_and_between_instruction_sets) {
  for (int32_t type = 0; type < RB_WEIGHT_TYPES; ++type) {
    for (const int32_t group : groups_of(type)) {
      for (const int32_t n : {16, 40, 7}) {
        const Problem p = problem(10 + static_cast<uint64_t>(type), type, n, small_k(type), 11, group);
        for (const bool plain : {true, false}) {
          const std::vector<float> scalar = product(p, RB_ISA_SCALAR, 0, p.rows, plain);
          test_context = name_of(type, group, RB_ISA_SCALAR) + " n=" + std::to_string(n);
          check_against_double(p, scalar, plain);
          for (const int32_t isa : available_isas()) {
            test_context = name_of(type, group, isa) + " n=" + std::to_string(n);
            CHECK(same_bits(product(p, isa, 0, p.rows, plain), scalar));
          }
        }
      }
    }
  }
}

TEST(matmul, a_row_is_the_same_in_any_company) {
  for (int32_t type = 0; type < RB_WEIGHT_TYPES; ++type) {
    for (const int32_t group : groups_of(type)) {
      for (const int32_t isa : available_isas()) {
        const Problem p = problem(30, type, 200, small_k(type), isa == RB_ISA_SCALAR ? 12 : 70, group);
        const std::vector<float> all = product(p, isa, 0, p.rows, false);
        for (int32_t count = 1; count <= p.rows; count = count < 10 ? count + 1 : count + 13) {
          test_context = name_of(type, group, isa) + " rows=" + std::to_string(count);
          const int32_t first = p.rows - count;
          const std::vector<float> some = product(p, isa, first, count, false);
          CHECK(same_bits(some, {all.begin() + static_cast<int64_t>(first) * p.n, all.end()}));
        }
      }
    }
  }
}

TEST(matmul, tasks_may_run_in_any_order_and_size) {
  for (int32_t type = 0; type < RB_WEIGHT_TYPES; ++type) {
    for (const int32_t isa : available_isas()) {
      for (const int32_t rows : {1, 8, 33}) {
        test_context = type_name(type) + std::string(" ") + rb_isa_name(isa) + " rows=" + std::to_string(rows);
        const Problem p = problem(40, type, 520, small_k(type), rows);
        const std::vector<float> whole = product(p, isa, 0, rows, false);
        CHECK(same_bits(product(p, isa, 0, rows, false, Split::kSingle), whole));
        CHECK(same_bits(product(p, isa, 0, rows, false, Split::kBackwards), whole));
      }
    }
  }
}

// Sign tricks and 16-bit sums break at the ends of the ranges: all weights and activations at their largest magnitude.
TEST(matmul, extreme_quants_do_not_saturate) {
  for (int32_t type = RB_Q8_0; type < RB_WEIGHT_TYPES; ++type) {
    for (const int fill : {0x00, 0x7f, 0x80, 0xff, 0x100, 0x17f, 0x180, 0x1ff}) {  // from 0x100 on with a scale per 32
      Random random(50);
      Problem p = problem(51, type, 16, 256, 3, fill < 0x100 ? 16 : 32);
      const std::vector<uint8_t> scales = p.stored;
      for (uint8_t& byte : p.stored) byte = static_cast<uint8_t>(fill);
      const size_t block = p.stored.size() / (type >= RB_Q4_K ? 16 : 128), d = type == RB_Q6_K ? 208 : 0;
      for (size_t at = 0; at < p.stored.size(); at += block)
        std::memcpy(&p.stored[at + d], &scales[at + d],
                    type == RB_Q6_K || type == RB_Q8_0 || type == RB_Q4_0 || type == RB_Q5_0 ? 2 : 4);
      p.tiles = packed(type, p.stored, 16, 256);
      for (size_t i = 0; i < p.x.size(); ++i)
        p.x[i] = i < 256 ? 1.0f : i < 512 ? -1.0f : random.below(2) ? 1.0f : -1.0f;
      p.xq = quantized(RB_ISA_SCALAR, p.x.data(), p.rows, p.k, p.group);
      const std::vector<float> scalar = product(p, RB_ISA_SCALAR, 0, p.rows, true);
      test_context = type_name(type) + std::string(" fill=") + std::to_string(fill);
      check_against_double(p, scalar, true);
      for (const int32_t isa : available_isas()) CHECK(same_bits(product(p, isa, 0, p.rows, true), scalar));
    }
  }
}

TEST(matmul, a_nan_stays_in_its_row) {
  for (int32_t type = 0; type < RB_WEIGHT_TYPES; ++type) {
    for (const int32_t isa : available_isas()) {
      test_context = type_name(type) + std::string(" ") + rb_isa_name(isa);
      Problem p = problem(60, type, 40, small_k(type), 9);
      const std::vector<float> clean = product(p, isa, 0, p.rows, true);
      p.x[static_cast<size_t>(4 * p.k + 3)] = type % 2 ? NAN : INFINITY;
      if (type > RB_BF16) p.xq = quantized(isa, p.x.data(), p.rows, p.k);
      const std::vector<float> y = product(p, isa, 0, p.rows, true);
      for (size_t i = 0; i < y.size(); ++i) {
        if (i / 40 == 4)
          CHECK(type <= RB_BF16 ? !std::isfinite(y[i]) : std::isnan(y[i]));
        else
          CHECK(y[i] == clean[i]);
      }
    }
  }
}

// A product with the scale is exact only while kUnit times it is finite: beyond 3e33 no instruction set gives a number.
TEST(matmul, activations_past_all_use_are_the_same_everywhere) {
  Problem p = problem(65, RB_Q4_1, 16, 64, 2, 32);
  for (size_t i = 0; i < 64; ++i) p.x[i] *= 1e36f;
  p.xq = quantized(RB_ISA_SCALAR, p.x.data(), p.rows, p.k, p.group);
  const std::vector<float> scalar = product(p, RB_ISA_SCALAR, 0, p.rows, true);
  for (const int32_t isa : available_isas()) {
    const std::vector<float> y = product(p, isa, 0, p.rows, true);
    for (size_t j = 0; j < 16; ++j) CHECK(!std::isfinite(y[j]));
    for (size_t j = 16; j < 32; ++j) CHECK(y[j] == scalar[j] && std::isfinite(y[j]));
  }
}

TEST(matmul, y_may_be_a_slice_and_residual_may_be_y) {
  for (const int32_t isa : available_isas()) {
    test_context = rb_isa_name(isa);
    const Problem p = problem(70, RB_Q4_1, 23, 64, 5);
    const std::vector<float> expected = product(p, isa, 0, p.rows, false);
    std::vector<float> wide(5 * 40, 7.0f);
    for (int r = 0; r < 5; ++r) std::copy_n(p.residual.begin() + r * 23, 23, wide.begin() + r * 40 + 10);
    rb_args args{};
    args.matmul = {{p.tiles.data(), RB_Q4_1, 23, 64},
                   nullptr,
                   p.xq.data(),
                   p.bias.data(),
                   wide.data() + 10,
                   wide.data() + 10,
                   0,
                   40,
                   40,
                   RB_LOGIT_ROWS,
                   16};
    run_launch(isa, RB_OP_MATMUL, args, rows_step(5));
    for (int i = 0; i < 200; ++i) {
      const bool inside = i % 40 >= 10 && i % 40 < 33;
      CHECK(wide[static_cast<size_t>(i)] == (inside ? expected[static_cast<size_t>(i / 40 * 23 + i % 40 - 10)] : 7.0f));
    }
  }
}

// All 65536 values of each 16-bit float through k = 1, x = 1: the hardware's conversions against the specification.
TEST(matmul, every_16_bit_float_is_converted_exactly) {
  for (const int32_t type : {RB_F16, RB_BF16}) {
    std::vector<uint8_t> stored(2 << 16);
    for (int i = 0; i < 1 << 16; ++i)
      stored[2 * i] = static_cast<uint8_t>(i), stored[2 * i + 1] = static_cast<uint8_t>(i >> 8);
    const Buffer tiles = packed(type, stored, 1 << 16, 1);
    const float one = 1.0f;
    for (const int32_t isa : available_isas()) {
      std::vector<float> y(1 << 16);
      rb_args args{};
      args.matmul = {
          {tiles.data(), type, 1 << 16, 1}, &one, nullptr, nullptr, nullptr, y.data(), 1, 1 << 16, 0, RB_ROWS, 0};
      run_launch(isa, RB_OP_MATMUL, args, rows_step(1));
      for (int i = 0; i < 1 << 16; ++i) {
        test_context = type_name(type) + std::string(" ") + rb_isa_name(isa) + " bits=" + std::to_string(i);
        const double expected = decode_row(type, stored.data() + 2 * i, 1)[0].product;
        CHECK(std::isnan(expected) ? std::isnan(y[static_cast<size_t>(i)]) : y[static_cast<size_t>(i)] == expected);
      }
    }
  }
}
