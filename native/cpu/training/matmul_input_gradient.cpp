// dx += dy w for weights of any format.
//
// A task is (rows x inputs). It goes through the outputs in blocks of kOutputs: the block's weights are unpacked once as [output][inputs],
// dy is scaled beside them, and every tile adds the chains of these outputs to dx. A tile's weights, 128 x 48 floats, are 24 KB and stay in L1 while all rows of the task pass.
#include "cpu/training/kernels.h"
#include "cpu/training/tile.h"
#include "cpu/training/unpack.h"

namespace rb::RB_NS {

namespace {

constexpr int64_t kOutputs = RB_GRADIENT_CHAIN, kInputs = 96, kMostRows = 256, kLeastRows = 128, kTasks = 12;
static_assert(kInputs % kTileColumns == 0 && kInputs % 32 == 0);

struct Plan {
  int64_t rows, row_step, row_ranges, input_ranges;
};

// Unpacking a weight takes as long as its product with about 16 rows: tasks of 128 rows or more, but work for some threads.
Plan input_plan(const rb_matrix& w, int64_t rows) {
  Plan p{rows, rows, 1, ceiling(w.k, kInputs)};
  const int64_t wanted = smaller(ceiling(kTasks, p.input_ranges), ceiling(rows, kLeastRows));
  p.row_ranges = wanted > ceiling(rows, kMostRows) ? wanted : ceiling(rows, kMostRows);
  if (rows > 0) p.row_step = ceiling(ceiling(rows, p.row_ranges), kTileRows) * kTileRows;
  p.row_ranges = rows > 0 ? ceiling(rows, p.row_step) : 0;
  return p;
}

struct Area {
  const rb_matmul_input_gradient* a;
  int64_t row, rows, input, inputs;
  float *weights, *dy;  // [kOutputs][kInputs], [rows][kOutputs]
};

// A tile's part for these inputs is a few KB and the next one's lies elsewhere, which the hardware does not foresee: it is asked for two
// tiles early.
void ask_for(const rb_matrix& w, int64_t output, int64_t input, int64_t inputs) {
  if (output >= w.n) return;
  const Format& f = kFormats[w.type];
  const uint8_t* tile = static_cast<const uint8_t*>(w.data) + output / 16 * tile_bytes(w.type, w.k);
  const int64_t begin = input / f.block * f.packed_bytes, end = ceiling(input + inputs, f.block) * f.packed_bytes;
  for (int64_t at = begin; at < end; at += 64) prefetch(tile + at);
}

void unpack_block(const Area& t, int64_t output, int64_t outputs) {
  const rb_matrix& w = t.a->w;
  const UnpackTile unpack = unpack_of(w.type);
  for (int64_t j = 0; j < outputs; j += 16) {
    const uint8_t* tile = static_cast<const uint8_t*>(w.data) + (output + j) / 16 * tile_bytes(w.type, w.k);
    ask_for(w, output + j + 32, t.input, t.inputs);
    unpack(tile, w.k, t.input, t.inputs, t.weights + j * kInputs, kInputs);
  }
}

void scale_block(const Area& t, int64_t output, int64_t outputs) {
  const F scale = set1(t.a->scale);
  for (int64_t r = 0; r < t.rows; ++r) {
    const float* from = t.a->dy + (t.row + r) * t.a->dy_stride + output;
    for (int64_t j = 0; j < outputs; j += 16) {
      const int n = static_cast<int>(smaller(16, outputs - j));
      store(t.dy + r * kOutputs + j, mul(scale, load(from + j, n)));
    }
  }
}

struct Tile {
  // dx: element 0 of the tile; lanes: of its last vector.
  template <int R, int V>
  static void run(float* dx, int64_t stride, int lanes, const float* dy, const float* weights, int64_t outputs) {
    F acc[R][V];
    RB_UNROLL for (int r = 0; r < R; ++r) { RB_UNROLL for (int v = 0; v < V; ++v) acc[r][v] = set1(0.0f); }
    multiply_tile<R, V>(dy, kOutputs, 1, weights, kInputs, outputs, acc);
    RB_UNROLL for (int r = 0; r < R; ++r) {
      float* to = dx + r * stride;
      RB_UNROLL for (int v = 0; v + 1 < V; ++v) store(to + 16 * v, add(load(to + 16 * v), acc[r][v]));
      store(to + 16 * (V - 1), add(load(to + 16 * (V - 1), lanes), acc[r][V - 1]), lanes);
    }
  }
};

void add_block(const Area& t, int64_t outputs) {
  for (int64_t i = 0; i < t.inputs; i += kTileColumns) {
    const int64_t columns = smaller(kTileColumns, t.inputs - i);
    const int vectors = static_cast<int>(ceiling(columns, 16)), lanes = static_cast<int>(columns - 16 * (vectors - 1));
    for (int64_t r = 0; r < t.rows; r += kTileRows) {
      float* dx = t.a->dx + (t.row + r) * t.a->dx_stride + t.input + i;
      const int64_t stride = t.a->dx_stride;
      const float *dy = t.dy + r * kOutputs, *weights = t.weights + i;
      for_tile<Tile>(static_cast<int>(smaller(kTileRows, t.rows - r)), vectors, dx, stride, lanes, dy, weights,
                     outputs);
    }
  }
}

}  // namespace

int64_t matmul_input_gradient_tasks(const rb_args* args, const rb_step* step) {
  const rb_matmul_input_gradient& a = args->matmul_input_gradient;
  const Plan p = input_plan(a.w, domain_rows(step, a.domain));
  return p.row_ranges * p.input_ranges;
}

size_t matmul_input_gradient_scratch(const rb_args*, int32_t max_rows) {
  const int64_t rows = smaller(kMostRows + kTileRows, max_rows);
  return static_cast<size_t>(kOutputs * (kInputs + rows)) * sizeof(float);
}

void matmul_input_gradient_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void* scratch) {
  const rb_matmul_input_gradient& a = args->matmul_input_gradient;
  const Plan p = input_plan(a.w, domain_rows(step, a.domain));
  float* weights = static_cast<float*>(scratch);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t row = task / p.input_ranges * p.row_step, input = task % p.input_ranges * kInputs;
    const Area t{&a,
                 row,
                 smaller(p.row_step, p.rows - row),
                 input,
                 smaller(kInputs, a.w.k - input),
                 weights,
                 weights + kOutputs * kInputs};
    for (int64_t j = 0; j < a.w.n; j += kOutputs) {
      const int64_t outputs = smaller(kOutputs, a.w.n - j);
      unpack_block(t, j, outputs);
      scale_block(t, j, outputs);
      add_block(t, outputs);
    }
  }
}

}  // namespace rb::RB_NS
