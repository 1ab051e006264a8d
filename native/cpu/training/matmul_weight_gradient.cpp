// dw += dy x, packed F32.
//
// A task is (kTileVectors tiles of outputs x kInputs inputs). It goes through the rows in blocks of kRows: dy of the block and the tiles is
// scaled and laid out as [row][outputs], 24 KB that stay in L1; x is read where it stands, and what the next inputs need of it is asked for
// ahead. Each element goes on with its sum where the block before left it: one chain over ascending rows.
#include "cpu/layout.h"
#include "cpu/training/kernels.h"
#include "cpu/training/tile.h"

namespace rb::RB_NS {

namespace {

constexpr int64_t kRows = 128, kInputs = 192;
static_assert(kInputs % kTileRows == 0);

struct Area {
  const rb_matmul_weight_gradient* a;
  int64_t tile, vectors, input, inputs;
  float* dy;  // [kRows][kTileColumns]
};

void scale_rows(const Area& t, int64_t row, int64_t rows) {
  const F scale = set1(t.a->scale);
  const int64_t first = 16 * t.tile;
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = t.a->dy + (row + r) * t.a->dy_stride + first;
    for (int64_t v = 0; v < t.vectors; ++v) {
      const int n = static_cast<int>(smaller(16, t.a->dw.n - first - 16 * v));
      store(t.dy + r * kTileColumns + 16 * v, mul(scale, load(from + 16 * v, n)));
    }
  }
}

struct Tile {
  // Inputs 0..R-1 of V tiles that lie tile_floats apart; lanes: outputs of the last one.
  template <int R, int V>
  static void run(float* dw, int64_t tile_floats, int lanes, const float* x, int64_t x_stride, const float* dy,
                  int64_t rows) {
    F acc[R][V];
    RB_UNROLL for (int r = 0; r < R; ++r) {
      RB_UNROLL for (int v = 0; v < V; ++v) acc[r][v] = load(dw + v * tile_floats + 16 * r);
    }
    multiply_tile<R, V>(x, 1, x_stride, dy, kTileColumns, rows, acc);
    RB_UNROLL for (int r = 0; r < R; ++r) {
      RB_UNROLL for (int v = 0; v + 1 < V; ++v) store(dw + v * tile_floats + 16 * r, acc[r][v]);
      store(dw + (V - 1) * tile_floats + 16 * r, acc[r][V - 1], lanes);
    }
  }
};

void add_rows(const Area& t, int64_t row, int64_t rows) {
  const int64_t tile_floats = 16 * static_cast<int64_t>(t.a->dw.k), x_stride = t.a->x_stride;
  const int lanes = static_cast<int>(smaller(16, t.a->dw.n - 16 * (t.tile + t.vectors - 1)));
  float* dw = static_cast<float*>(const_cast<void*>(t.a->dw.data)) + t.tile * tile_floats;
  for (int64_t i = t.input; i < t.input + t.inputs; i += kTileRows) {
    const int count = static_cast<int>(smaller(kTileRows, t.input + t.inputs - i));
    const float* x = t.a->x + row * x_stride + i;
    float* to = dw + 16 * i;
    for_tile<Tile>(count, static_cast<int>(t.vectors), to, tile_floats, lanes, x, x_stride, t.dy, rows);
  }
}

int64_t input_ranges(const rb_matrix& dw) { return ceiling(dw.k, kInputs); }

}  // namespace

int64_t matmul_weight_gradient_tasks(const rb_args* args, const rb_step* step) {
  const rb_matmul_weight_gradient& a = args->matmul_weight_gradient;
  if (domain_rows(step, a.domain) == 0) return 0;
  return ceiling(tile_count(a.dw.n), kTileVectors) * input_ranges(a.dw);
}

size_t matmul_weight_gradient_scratch(const rb_args*, int32_t) {
  return static_cast<size_t>(kRows * kTileColumns) * sizeof(float);
}

void matmul_weight_gradient_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void* scratch) {
  const rb_matmul_weight_gradient& a = args->matmul_weight_gradient;
  const int64_t all = domain_rows(step, a.domain), ranges = input_ranges(a.dw);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t tile = task / ranges * kTileVectors, input = task % ranges * kInputs;
    const Area t{&a,
                 tile,
                 smaller(kTileVectors, tile_count(a.dw.n) - tile),
                 input,
                 smaller(kInputs, a.dw.k - input),
                 static_cast<float*>(scratch)};
    for (int64_t row = 0; row < all; row += kRows) {
      const int64_t rows = smaller(kRows, all - row);
      scale_rows(t, row, rows);
      add_rows(t, row, rows);
    }
  }
}

}  // namespace rb::RB_NS
