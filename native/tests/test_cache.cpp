// What is stored in the paged cache: f16, int8, and with the rotation in the same launch.
#include <algorithm>
#include <cmath>

#include "agreed.h"
#include "cpu/half.h"
#include "support.h"
#include "test.h"

TEST(cache, append_rounds_to_f16_and_touches_nothing_else) {
  Random random(104);
  const int32_t rows = 5, kv_heads = 2, head_dim = 24, blocks = 4, width = kv_heads * head_dim;
  std::vector<float> k = random.normals(rows * width), v = random.normals(rows * width);
  for (int i = 0; i < 24; ++i)
    k[i] = std::ldexp(k[i], i - 30), v[i] = std::ldexp(v[i], i);  // subnormal and overflowing halves
  k[30] = NAN;
  k[31] = 65519.996f, k[32] = 65520.0f, k[33] = INFINITY, k[34] = -0.0f, k[35] = 0x1.002p0f, k[36] = 0x1.006p0f;
  const std::vector<int32_t> positions = {14, 15, 16, 17, 3}, sequences = {0, 0, 0, 0, 1}, tables = {2, 0, 3, 1};
  rb_step step = rows_step(rows);
  step.positions = positions.data(), step.sequences = sequences.data(), step.tables = tables.data(),
  step.table_stride = 2;
  const int64_t head = 32 * head_dim, stride = 2 * kv_heads * head + 64;  // a stranger's 64 bytes between two blocks
  const std::vector<float> out = agreed("append", [&](int32_t isa, Split split) {
    Buffer cache(static_cast<size_t>(blocks * stride));
    rb_args args{};
    args.append = {k.data(), v.data(), cache.data(), stride, RB_KV_F16, width, width, kv_heads, head_dim, blocks};
    run_launch(isa, RB_OP_APPEND, args, step, split);
    return as_floats(cache);
  });
  std::vector<uint16_t> cache(static_cast<size_t>(blocks * stride / 2)), expected(cache.size(), 0xffff);
  std::memcpy(cache.data(), out.data(), cache.size() * 2);
  for (int32_t i = 0; i < rows * width; ++i) {
    const int32_t r = i / width, h = i % width / head_dim, d = i % head_dim, slot = positions[r] % 16;
    const int64_t block = tables[sequences[r] * 2 + positions[r] / 16] * stride / 2;
    expected[block + h * head / 2 + d * 16 + slot] = rb::f32_to_f16(k[i]);
    expected[block + (kv_heads + h) * head / 2 + slot * head_dim + d] = rb::f32_to_f16(v[i]);
  }
  CHECK(cache == expected);
}

// Written from the formula of rebar.h, group by group of 32 (the last of 48 dimensions has 16).
void expect_group(const float* x, int32_t n, int32_t step, int8_t* q, uint16_t* scale) {
  float largest = 0.0f;
  bool finite = true;
  for (int32_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(x[i])), finite = finite && std::isfinite(x[i]);
  *scale = rb::f32_to_f16(finite ? largest / 127.0f : NAN);
  const float d = rb::f16_to_f32(*scale);
  for (int32_t i = 0; i < n; ++i) {
    const float scaled = finite && d > 0.0f ? x[i] * (1.0f / d) : 0.0f;
    q[i * step] = static_cast<int8_t>(std::nearbyint(std::min(std::max(scaled, -127.0f), 127.0f)));
  }
}

TEST(cache, append_in_int8) {
  Random random(110);
  const int32_t rows = 20, kv_heads = 2, head_dim = 48, width = kv_heads * head_dim, blocks = 3;
  std::vector<float> k = random.normals(rows * width), v = random.normals(rows * width);
  k[3] = NAN, k[width + 40] = INFINITY, k[2 * width] = 1e7f, k[3 * width + 5] = 3e38f;
  for (int32_t d = 0; d < head_dim; ++d) v[d] *= 1e-6f, v[width + d] *= 1e-9f, v[2 * width + d] = 0.0f;
  std::vector<int32_t> positions, sequences(rows, 0), tables = {2, 0};
  for (int32_t i = 0; i < rows; ++i) positions.push_back(9 + i);
  rb_step step = rows_step(rows);
  step.positions = positions.data(), step.sequences = sequences.data(), step.tables = tables.data();
  step.table_stride = 2;
  const int64_t head = 16 * head_dim + 2 * 32, stride = 2 * kv_heads * head;
  CHECK(rb_kv_bytes(RB_KV_INT8, kv_heads, head_dim) == static_cast<uint64_t>(stride));
  const std::vector<float> out = agreed("append int8", [&](int32_t isa, Split split) {
    Buffer cache(static_cast<size_t>(blocks * stride));
    rb_args args{};
    args.append = {k.data(), v.data(), cache.data(), stride, RB_KV_INT8, width, width, kv_heads, head_dim, blocks};
    run_launch(isa, RB_OP_APPEND, args, step, split);
    return as_floats(cache);
  });
  std::vector<uint8_t> cache(static_cast<size_t>(blocks * stride)), expected(cache.size(), 0xff);
  std::memcpy(cache.data(), out.data(), cache.size());
  for (int32_t r = 0; r < rows; ++r) {
    for (int32_t h = 0; h < 2 * kv_heads; ++h) {
      const int32_t slot = positions[r] % 16;
      uint8_t* to = expected.data() + tables[positions[r] / 16] * stride + h * head;
      const bool key = h < kv_heads;
      const float* from = (key ? k : v).data() + r * width + h % kv_heads * head_dim;
      std::vector<float> x(from, from + head_dim);
      for (int32_t half = key ? 8 : 0; half > 0; half /= 2) {  // 16 is the largest power of two in 48
        const std::vector<float> y = x;
        for (int32_t d = 0; d < head_dim; ++d) x[d] = d & half ? y[d - half] - y[d] : y[d] + y[d + half];
      }
      for (int32_t d = 0; d < head_dim; d += 32) {
        uint16_t scale;
        expect_group(x.data() + d, std::min(32, head_dim - d), key ? 16 : 1,
                     reinterpret_cast<int8_t*>(to + (key ? d * 16 + slot : slot * head_dim + d)), &scale);
        std::memcpy(to + 16 * head_dim + d + slot * 2, &scale, 2);
      }
    }
  }
  CHECK(cache == expected);
}

// One launch for what three do: the same bits, out and cache, f16 and int8, with elements beyond the rotation.
TEST(cache, rope_append_as_the_three_launches) {
  Random random(111);
  const int32_t rows = 37, heads = 4, kv_heads = 2, head_dim = 64, dim = 48, blocks = 4;
  const int32_t q_width = heads * head_dim, kv_width = kv_heads * head_dim, width = q_width + 2 * kv_width;
  const std::vector<float> x = random.normals(rows * width), table = random.normals(64 * dim);
  std::vector<int32_t> positions, sequences(rows, 0), tables = {3, 1, 0};
  for (int32_t i = 0; i < rows; ++i) positions.push_back(5 + i);
  rb_step step = rows_step(rows);
  step.positions = positions.data(), step.sequences = sequences.data(), step.tables = tables.data();
  step.table_stride = 3;
  for (const int32_t type : {RB_KV_F16, RB_KV_INT8, RB_KV_F32}) {
    const int64_t stride = static_cast<int64_t>(rb_kv_bytes(type, kv_heads, head_dim));
    const auto results = [&](int32_t isa, Split split, bool fused) {
      std::vector<float> q(static_cast<size_t>(rows * q_width)), k(static_cast<size_t>(rows * kv_width));
      Buffer cache(static_cast<size_t>(blocks * stride));
      rb_args a{}, b{}, c{};
      a.rope = {x.data(), q.data(), table.data(), width, q_width, heads, head_dim, dim, 64};
      b.rope = {x.data() + q_width, k.data(), table.data(), width, kv_width, kv_heads, head_dim, dim, 64};
      c.append = {x.data() + q_width,
                  x.data() + q_width + kv_width,
                  cache.data(),
                  stride,
                  type,
                  width,
                  width,
                  kv_heads,
                  head_dim,
                  blocks};
      if (fused) {
        rb_args all{};
        all.rope_append = {a.rope, c.append};
        run_launch(isa, RB_OP_ROPE_APPEND, all, step, split);
      } else {
        run_launch(isa, RB_OP_ROPE, a, step, split);
        run_launch(isa, RB_OP_ROPE, b, step, split);
        c.append.k = k.data(), c.append.k_stride = kv_width;
        run_launch(isa, RB_OP_APPEND, c, step, split);
      }
      const std::vector<float> stored = as_floats(cache);
      q.insert(q.end(), stored.begin(), stored.end());
      return q;
    };
    const std::vector<float> apart = results(RB_ISA_SCALAR, Split::kWhole, false);
    CHECK(same_bits(agreed("rope_append", [&](int32_t isa, Split split) { return results(isa, split, true); }), apart));
  }
}

// Full precision: what comes in stands there, a key's elements 16 apart, a value's beside each other.
TEST(cache, append_in_f32) {
  Random random(112);
  const int32_t rows = 20, kv_heads = 2, head_dim = 24, width = kv_heads * head_dim, blocks = 3;
  std::vector<float> k = random.normals(rows * width), v = random.normals(rows * width);
  k[3] = NAN, v[5] = INFINITY, v[width] = 1e-41f;
  std::vector<int32_t> positions, sequences(rows, 0), tables = {2, 0};
  for (int32_t i = 0; i < rows; ++i) positions.push_back(9 + i);
  rb_step step = rows_step(rows);
  step.positions = positions.data(), step.sequences = sequences.data(), step.tables = tables.data();
  step.table_stride = 2;
  const int64_t head = 16 * head_dim, stride = 2 * kv_heads * head;
  CHECK(rb_kv_bytes(RB_KV_F32, kv_heads, head_dim) == static_cast<uint64_t>(4 * stride));
  const std::vector<float> out = agreed("append f32", [&](int32_t isa, Split split) {
    Buffer cache(static_cast<size_t>(4 * blocks * stride));
    rb_args args{};
    args.append = {k.data(), v.data(), cache.data(), 4 * stride, RB_KV_F32, width, width, kv_heads, head_dim, blocks};
    run_launch(isa, RB_OP_APPEND, args, step, split);
    return as_floats(cache);
  });
  std::vector<float> expected(out.size());
  std::memset(expected.data(), 0xff, expected.size() * 4);
  for (int32_t i = 0; i < rows * width; ++i) {
    const int32_t r = i / width, h = i % width / head_dim, d = i % head_dim, slot = positions[r] % 16;
    float* block = expected.data() + tables[positions[r] / 16] * stride;
    block[h * head + d * 16 + slot] = k[i];
    block[(kv_heads + h) * head + slot * head_dim + d] = v[i];
  }
  CHECK(same_bits(out, expected));
}
