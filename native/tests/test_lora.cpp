// What adapters add to a product.
#include <cmath>

#include "agreed.h"
#include "support.h"
#include "test.h"

namespace {

constexpr int32_t kSlots = 3, kParts = 2, kMost = 20;

// Slot 0 has both parts, slot 1 the second alone, slot 2 a small first one. `k` inputs, outputs of `widths`.
struct Adapters {
  int32_t k;
  std::vector<int32_t> widths = {40, 300};
  std::vector<std::vector<uint8_t>> stored;
  std::vector<Buffer> tiles;
  std::vector<rb_lora_slot> slots = std::vector<rb_lora_slot>(kSlots * kParts);

  Adapters(Random& random, int32_t inputs) : k(inputs), stored(2 * kSlots * kParts) {
    tiles.reserve(stored.size());
    const int32_t ranks[kSlots * kParts] = {16, 20, 0, 8, 3, 0};
    for (int32_t i = 0; i < kSlots * kParts; ++i) {
      if (ranks[i] == 0) continue;
      const float* a = matrix(random, 2 * i, ranks[i], k);
      const float* b = matrix(random, 2 * i + 1, widths[i % kParts], ranks[i]);
      slots[i] = {a, b, ranks[i], 0.25f * static_cast<float>(i + 1)};
    }
  }
  const float* matrix(Random& random, int32_t at, int32_t n, int32_t inputs) {
    stored[at] = random_stored(random, RB_F32, n, inputs);
    tiles.push_back(packed(RB_F32, stored[at], n, inputs));
    return tiles.back().as<float>();
  }
  float value(int32_t at, int64_t index) const {
    float out;
    std::memcpy(&out, stored[at].data() + 4 * index, 4);
    return out;
  }
};

// Runs of each length that shares loads, of every slot, and rows without one.
const std::vector<int32_t> kRows = {0, 0, 0, 0, 0, 1, 1, -1, 2, 2, 2, -1, -1, 0, 2, 1, 0};

float chains(const Adapters& w, int32_t at, int32_t j, const float* x) {
  float c[4] = {};
  for (int32_t i = 0; i < w.k; ++i) c[i % 4] = std::fma(x[i], w.value(at, static_cast<int64_t>(j) * w.k + i), c[i % 4]);
  return (c[0] + c[2]) + (c[1] + c[3]);
}

rb_step adapted_step() {
  rb_step step = rows_step(static_cast<int32_t>(kRows.size()));
  step.adapters = kRows.data();
  return step;
}

}  // namespace

TEST(lora, down_is_four_chains_an_element) {
  Random random(200);
  for (const int32_t k : {1, 30, 64}) {
    const Adapters w(random, k);
    const int32_t rows = static_cast<int32_t>(kRows.size()), width = kParts * kMost;
    const std::vector<float> x = random.normals(static_cast<size_t>(rows * k));
    const std::vector<float> a = agreed("lora_down", [&](int32_t isa, Split split) {
      std::vector<float> out(static_cast<size_t>(rows * width), NAN);
      rb_args args{};
      args.lora_down = {w.slots.data(), x.data(), out.data(), k, width, k, kParts, kMost, RB_ROWS};
      run_launch(isa, RB_OP_LORA_DOWN, args, adapted_step(), split);
      return out;
    });
    for (int32_t i = 0; i < rows * width; ++i) {
      const int32_t r = i / width, part = i % width / kMost, j = i % kMost, slot = kRows[r];
      const int32_t at = slot < 0 ? 0 : slot * kParts + part;
      const bool there = slot >= 0 && j < w.slots[at].rank;
      CHECK(a[i] == (there ? chains(w, 2 * at, j, x.data() + r * k) : 0.0f));
    }
  }
}

TEST(lora, up_adds_to_the_columns_of_each_part) {
  Random random(201);
  const Adapters w(random, 5);
  const int32_t rows = static_cast<int32_t>(kRows.size()), width = kParts * kMost, n = w.widths[0] + w.widths[1];
  const std::vector<float> a = random.normals(rows * width), x = random.normals(rows * n),
                           residual = random.normals(rows * n);
  for (const bool with_residual : {false, true}) {
    const std::vector<float> y = agreed("lora_up", [&](int32_t isa, Split split) {
      std::vector<float> out = x;
      rb_args args{};
      args.lora_up = {w.slots.data(),
                      a.data(),
                      out.data(),
                      with_residual ? residual.data() : nullptr,
                      out.data(),
                      width,
                      n,
                      n,
                      n,
                      kParts,
                      kMost,
                      RB_ROWS,
                      {40, n}};
      run_launch(isa, RB_OP_LORA_UP, args, adapted_step(), split);
      return out;
    });
    for (int32_t i = 0; i < rows * n; ++i) {
      const int32_t r = i / n, part = i % n >= w.widths[0], j = i % n - (part ? w.widths[0] : 0), slot = kRows[r];
      float want = x[i];
      if (slot >= 0 && w.slots[slot * kParts + part].rank > 0) {
        const rb_lora_slot& s = w.slots[slot * kParts + part];
        const int32_t b = 2 * (slot * kParts + part) + 1;
        float sum = 0.0f;
        for (int32_t c = 0; c < s.rank; ++c)
          sum = std::fma(a[r * width + part * kMost + c], w.value(b, static_cast<int64_t>(j) * s.rank + c), sum);
        want = std::fma(sum, s.scale, want);
      }
      CHECK(y[i] == (with_residual ? want + residual[i] : want));
    }
  }
}

TEST(lora, rows_that_want_logits_take_their_own_adapter) {
  Random random(202);
  const Adapters w(random, 30);
  const std::vector<int32_t> index = {16, 8, 7, 5};
  rb_step step = adapted_step();
  step.logit_rows = 4, step.logit_index = index.data();
  const int32_t width = kParts * kMost;
  const std::vector<float> x = random.normals(4 * 30);
  const std::vector<float> a = agreed("lora_down of logit rows", [&](int32_t isa, Split split) {
    std::vector<float> out(static_cast<size_t>(4 * width), NAN);
    rb_args args{};
    args.lora_down = {w.slots.data(), x.data(), out.data(), 30, width, 30, kParts, kMost, RB_LOGIT_ROWS};
    run_launch(isa, RB_OP_LORA_DOWN, args, step, split);
    return out;
  });
  CHECK(a[0] == chains(w, 0, 0, x.data()));
  CHECK(a[width] == chains(w, 2 * (2 * kParts), 0, x.data() + 30));
  CHECK(a[2 * width] == 0.0f && a[2 * width + kMost] == 0.0f);
  CHECK(a[3 * width] == 0.0f && a[3 * width + kMost] == chains(w, 2 * (kParts + 1), 0, x.data() + 90));
}

TEST(lora, a_step_without_adapters_leaves_everything_as_it_is) {
  Random random(203);
  const Adapters w(random, 30);
  const int32_t rows = 9, n = 340, width = kParts * kMost;
  const std::vector<float> x = random.normals(rows * n), a(static_cast<size_t>(rows * width), NAN);
  const std::vector<float> y = agreed("lora_up of none", [&](int32_t isa, Split split) {
    std::vector<float> out(x.size());
    rb_args args{};
    args.lora_up = {w.slots.data(), a.data(), x.data(), nullptr, out.data(), width, n, n, n,
                    kParts,         kMost,    RB_ROWS,  {40, n}};
    run_launch(isa, RB_OP_LORA_UP, args, rows_step(rows), split);
    return out;
  });
  CHECK(same_bits(x, y));
}
