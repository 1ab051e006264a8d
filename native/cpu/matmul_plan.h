// matmul_plan.h: how a product is cut into tasks of (tiles x rows).
#pragma once
#include "cpu/rows.h"
#include "cpu/tiles.h"

namespace rb::RB_NS {

struct MatmulPlan {
  int64_t rows, row_step, row_ranges, tiles, tile_step, tile_ranges;
};

static int64_t panel_row_bytes(const rb_matrix& w) {
  if (is_float(w.type)) return int64_t{4} * w.k;
  return w.k / 32 * (kTiles[w.type].m >= 0 ? int64_t{44} : int64_t{48});
}

RB_INLINE int64_t whole_panels(int64_t rows) { return (rows + kPanelRows - 1) / kPanelRows * kPanelRows; }

// Panels of a task fill at most a quarter of a 1 MB L2, and are at most 128 rows or so: whole panels, one at least.
static int64_t most_rows(const rb_matrix& w) {
  const int64_t fit = (int64_t{256} << 10) / panel_row_bytes(w);
  return whole_panels(fit < 1 ? 1 : fit > 128 ? 128 : fit);
}

constexpr int64_t kFewRows = 8;

// Few rows are bound by reading weights: tasks of 8 KB (0.4 us at 20 GB/s) or more, 256 at most. With more rows a
// task has twelve tiles, and rows are cut until there are about 32 tasks. A thread fills its panels once for all of them.
static MatmulPlan plan_of(const rb_matrix& w, int64_t rows) {
  MatmulPlan p{rows, rows, 1, tile_count(w.n), 1, 1};
  if (rows <= kFewRows) {
    const int64_t bytes = tile_bytes(w.type, w.k), by_count = (p.tiles + 255) / 256;
    p.tile_step = bytes >= 8192 ? 1 : 8192 / bytes;
    if (p.tile_step < by_count) p.tile_step = by_count;
  } else {
    const int64_t wide = (p.tiles + 11) / 12, ranges = (31 + wide) / wide;
    p.tile_step = (p.tiles + wide - 1) / wide;
    p.row_step = whole_panels((rows + ranges - 1) / ranges);
    if (p.row_step > most_rows(w)) p.row_step = most_rows(w);
  }
  p.row_ranges = (rows + p.row_step - 1) / p.row_step;
  p.tile_ranges = (p.tiles + p.tile_step - 1) / p.tile_step;
  return p;
}

// Where a task's rows and tiles begin: a thread's pieces follow each other, so that it goes through all tiles with the
// panels of some rows before it fills them with the next.
struct MatmulTask {
  int64_t row, row_end, tile, tile_end;
};

static MatmulTask task_of(const MatmulPlan& p, int64_t task) {
  const int64_t row = task / p.tile_ranges * p.row_step, tile = task % p.tile_ranges * p.tile_step;
  const int64_t row_end = row + p.row_step, tile_end = tile + p.tile_step;
  return {row, row_end < p.rows ? row_end : p.rows, tile, tile_end < p.tiles ? tile_end : p.tiles};
}

// Scratch: 64 bytes whose first eight name the row after the first of the panels behind them (0: none yet), then panels.
constexpr int kScratchHead = 64;

static int64_t matmul_tasks(const rb_args* a, const rb_step* step) {
  const MatmulPlan p = plan_of(a->matmul.w, domain_rows(step, a->matmul.domain));
  return p.rows > 0 ? p.row_ranges * p.tile_ranges : 0;
}

}  // namespace rb::RB_NS
