// Gradients of a product: chains of multiply-adds in the order of rebar_training.h, for every weight format.
#include <algorithm>
#include <cmath>

#include "agreed.h"
#include "support.h"
#include "test.h"
#include "training_reference.h"

namespace {

struct Shape {
  int32_t rows, n, k;
};

// Below, at and over tiles, blocks and tasks.
const Shape kFloats[] = {{1, 1, 1}, {3, 8, 17}, {8, 16, 48}, {9, 50, 100}, {70, 129, 97}, {5, 300, 31}, {300, 20, 33}};
const Shape kBlocks[] = {{1, 5, 256}, {9, 33, 256}, {70, 130, 512}};

std::vector<float> values_of(const Buffer& tiles, int32_t type, int32_t n, int32_t k) {
  std::vector<float> out(static_cast<size_t>(n * k));
  const rb_matrix w{tiles.data(), type, n, k};
  CHECK(rb_unpack(&w, out.data()) == RB_PACK_OK);
  return out;
}

void check_input_gradient(Random& random, int32_t type, const Shape& s, float scale) {
  const int32_t dy_stride = s.n + 3, dx_stride = s.k + 2;
  const Buffer tiles = packed(type, random_stored(random, type, s.n, s.k), s.n, s.k);
  std::vector<float> dy = random.normals(static_cast<size_t>(s.rows * dy_stride));
  const std::vector<float> dx = random.normals(static_cast<size_t>(s.rows * dx_stride));
  if (s.rows > 8) dy[2 * dy_stride] = NAN, dy[4 * dy_stride + 1] = INFINITY;
  const std::vector<float> got = agreed("matmul_input_gradient", [&](int32_t isa, Split split) {
    std::vector<float> out = dx;
    rb_args args{};
    args.matmul_input_gradient = {
        {tiles.data(), type, s.n, s.k}, dy.data(), out.data(), dy_stride, dx_stride, RB_ROWS, scale};
    run_launch(isa, RB_OP_MATMUL_INPUT_GRADIENT, args, rows_step(s.rows), split);
    return out;
  });
  const std::vector<float> w = values_of(tiles, type, s.n, s.k);
  std::vector<float> expected = dx;
  std::vector<float> chain(static_cast<size_t>(s.k));
  for (int32_t r = 0; r < s.rows; ++r) {
    for (int32_t j = 0; j < s.n; ++j) {
      if (j % RB_GRADIENT_CHAIN == 0) std::fill(chain.begin(), chain.end(), 0.0f);
      const float by = scale * dy[r * dy_stride + j];
      for (int32_t i = 0; i < s.k; ++i) chain[i] = std::fma(by, w[j * s.k + i], chain[i]);
      if ((j + 1) % RB_GRADIENT_CHAIN != 0 && j + 1 < s.n) continue;
      for (int32_t i = 0; i < s.k; ++i) expected[r * dx_stride + i] += chain[i];
    }
  }
  test_context = std::string(type_name(type)) + " " + std::to_string(s.rows) + " " + std::to_string(s.n) + " " +
                 std::to_string(s.k);
  CHECK(same_numbers(got, expected));
}

}  // namespace

TEST(training, matmul_input_gradient_of_floats) {
  Random random(330);
  for (const Shape& s : kFloats) {
    for (const int32_t type : {RB_F32, RB_F16, RB_BF16}) check_input_gradient(random, type, s, 1.0f);
  }
  check_input_gradient(random, RB_F32, {20, 40, 60}, 0.37f);
}

TEST(training, matmul_input_gradient_of_blocks) {
  Random random(331);
  for (const Shape& s : kBlocks) {
    for (int32_t type = RB_Q8_0; type < RB_WEIGHT_TYPES; ++type) check_input_gradient(random, type, s, 1.0f);
  }
  for (const int32_t k : {32, 96, 160}) check_input_gradient(random, RB_Q4_1, {11, 21, k}, 0.37f);
}

// The padding outputs of the last tile keep what stood there, NaN in x or not.
TEST(training, matmul_weight_gradient) {
  Random random(332);
  for (const Shape& s : kFloats) {
    for (const float scale : {1.0f, 0.37f}) {
      const int32_t x_stride = s.k + 5, dy_stride = s.n + 1;
      std::vector<float> x = random.normals(static_cast<size_t>(s.rows * x_stride));
      const std::vector<float> dy = random.normals(static_cast<size_t>(s.rows * dy_stride)),
                               dw = random.normals(static_cast<size_t>((s.n + 15) / 16 * 16 * s.k));
      if (s.rows > 8) x[3 * x_stride] = NAN, x[5 * x_stride + 1] = -INFINITY;
      const std::vector<float> got = agreed("matmul_weight_gradient", [&](int32_t isa, Split split) {
        Buffer tiles(dw.size() * 4);
        std::memcpy(tiles.data(), dw.data(), tiles.size());
        rb_args args{};
        args.matmul_weight_gradient = {
            {tiles.data(), RB_F32, s.n, s.k}, x.data(), dy.data(), x_stride, dy_stride, RB_LOGIT_ROWS, scale};
        run_launch(isa, RB_OP_MATMUL_WEIGHT_GRADIENT, args, rows_step(s.rows), split);
        return as_floats(tiles);
      });
      std::vector<float> expected = dw;
      for (int32_t r = 0; r < s.rows; ++r) {
        for (int32_t j = 0; j < s.n; ++j) {
          const float by = scale * dy[r * dy_stride + j];
          for (int32_t i = 0; i < s.k; ++i) {
            float& to = expected[tiled(s.k, j, i)];
            to = std::fma(by, x[r * x_stride + i], to);
          }
        }
      }
      test_context = std::to_string(s.rows) + " " + std::to_string(s.n) + " " + std::to_string(s.k);
      CHECK(same_numbers(got, expected));
    }
  }
}
