// lora.h: what an adapter adds to a product, y + scale B A x, in two launches: down (a = A x), up.
//
// Rows of a step may take different adapters. Rows that stand together and take the same share every load of A and B; the order of each
// sum is that of rebar.h whatever shares it.
#pragma once
#include "cpu/rows.h"

namespace rb::RB_NS {

// Rows in flight: four chains each, and 32 registers of 16 lanes. With half as many lanes, or registers, four chains of one row do.
constexpr int kLoraRows = kLanes == 16 ? 4 : 1;
// A task: 8 rows of one part (576 inputs, rank 16: 74,000 multiply-adds, some 3 us) or of 256 columns of it.
constexpr int64_t kLoraBlock = 8, kLoraColumns = 256;

RB_INLINE int64_t lora_blocks(int64_t rows) { return (rows + kLoraBlock - 1) / kLoraBlock; }

// The rows of a task that share a slot.
struct LoraRun {
  int64_t row;
  int count;
  int32_t slot;  // -1: no adapter
};

RB_INLINE LoraRun lora_run(const rb_step* step, int32_t domain, int64_t row, int64_t end) {
  const auto slot = [&](int64_t r) {
    if (step->adapters == nullptr) return int32_t{-1};
    return step->adapters[domain == RB_LOGIT_ROWS ? step->logit_index[r] : r];
  };
  LoraRun run{row, 1, slot(row)};
  while (run.count < kLoraRows && row + run.count < end && slot(row + run.count) == run.slot) ++run.count;
  return run;
}

template <int R>
RB_INLINE void down_tile(const float* x, int64_t x_stride, const float* tile, int64_t k, F* sum) {
  F c[R][4];
  RB_UNROLL for (int r = 0; r < R; ++r) RB_UNROLL for (int j = 0; j < 4; ++j) c[r][j] = set1(0.0f);
  int64_t i = 0;
  for (; i + 4 <= k; i += 4) {
    RB_UNROLL for (int j = 0; j < 4; ++j) {
      const F w = load(tile + 16 * (i + j));
      RB_UNROLL for (int r = 0; r < R; ++r) c[r][j] = fma(set1(x[r * x_stride + i + j]), w, c[r][j]);
    }
  }
  RB_UNROLL for (int j = 0; j < 3; ++j) {
    if (i + j >= k) break;
    const F w = load(tile + 16 * (i + j));
    RB_UNROLL for (int r = 0; r < R; ++r) c[r][j] = fma(set1(x[r * x_stride + i + j]), w, c[r][j]);
  }
  RB_UNROLL for (int r = 0; r < R; ++r) sum[r] = add(add(c[r][0], c[r][2]), add(c[r][1], c[r][3]));
}

template <int R>
static void down_rows(const rb_lora_down& a, const rb_lora_slot& slot, int64_t row, int64_t part) {
  float* out = a.a + row * a.a_stride + part * a.rank;
  for (int32_t j = 0; j < slot.rank; j += 16) {
    F sum[R];
    down_tile<R>(a.x + row * a.x_stride, a.x_stride, slot.a + static_cast<int64_t>(j) * a.k, a.k, sum);
    RB_UNROLL for (int r = 0; r < R; ++r) store(out + r * a.a_stride + j, sum[r], slot.rank - j);
  }
}

static int64_t lora_down_tasks(const rb_args* args, const rb_step* step) {
  return lora_blocks(domain_rows(step, args->lora_down.domain)) * args->lora_down.parts;
}

static void lora_down_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_lora_down& a = args->lora_down;
  const int64_t rows = domain_rows(step, a.domain);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t part = task % a.parts, first = task / a.parts * kLoraBlock, past = first + kLoraBlock;
    for (int64_t row = first; row < past && row < rows;) {
      const LoraRun run = lora_run(step, a.domain, row, past < rows ? past : rows);
      const rb_lora_slot slot = run.slot < 0 ? rb_lora_slot{} : a.slots[run.slot * a.parts + part];
      for (int r = 0; r < run.count; ++r) {
        float* out = a.a + (row + r) * a.a_stride + part * a.rank;
        memset(out + slot.rank, 0, static_cast<size_t>(a.rank - slot.rank) * sizeof(float));
      }
      if (run.count == kLoraRows) {
        down_rows<kLoraRows>(a, slot, row, part);
      } else {
        for (int r = 0; r < run.count; ++r) down_rows<1>(a, slot, row + r, part);
      }
      row += run.count;
    }
  }
}

// Columns begin..end-1 of the output, which lie in one part that begins at `origin`.
struct LoraColumns {
  int64_t part, origin, begin, end;
};

static int64_t lora_chunks(const rb_lora_up& a) {
  int64_t chunks = 0;
  for (int p = 0; p < a.parts; ++p)
    chunks += (a.ends[p] - (p > 0 ? a.ends[p - 1] : 0) + kLoraColumns - 1) / kLoraColumns;
  return chunks;
}

RB_INLINE LoraColumns columns_of(const rb_lora_up& a, int64_t chunk) {
  for (int p = 0;; ++p) {
    const int64_t origin = p > 0 ? a.ends[p - 1] : 0, width = a.ends[p] - origin;
    const int64_t chunks = (width + kLoraColumns - 1) / kLoraColumns;
    if (chunk < chunks) {
      const int64_t begin = origin + chunk * kLoraColumns, past = begin + kLoraColumns;
      return {p, origin, begin, past < a.ends[p] ? past : a.ends[p]};
    }
    chunk -= chunks;
  }
}

template <int R>
static void up_rows(const rb_lora_up& u, const rb_lora_slot& slot, int64_t row, const LoraColumns& c) {
  const float* a = u.a + row * u.a_stride + c.part * u.rank;
  const F scale = set1(slot.scale);
  for (int64_t j = c.begin; j < c.end; j += 16) {
    const float* tile = slot.b + (j - c.origin) * slot.rank;
    const int lanes = c.end - j < 16 ? static_cast<int>(c.end - j) : 16;
    F sum[R];
    RB_UNROLL for (int r = 0; r < R; ++r) sum[r] = set1(0.0f);
    for (int64_t i = 0; i < slot.rank; ++i) {
      const F w = load(tile + 16 * i);
      RB_UNROLL for (int r = 0; r < R; ++r) sum[r] = fma(set1(a[r * u.a_stride + i]), w, sum[r]);
    }
    RB_UNROLL for (int r = 0; r < R; ++r) {
      F y = load(u.x + (row + r) * u.x_stride + j, lanes);
      if (slot.rank > 0) y = fma(sum[r], scale, y);
      if (u.residual != nullptr) y = add(y, load(u.residual + (row + r) * u.residual_stride + j, lanes));
      store(u.y + (row + r) * u.y_stride + j, y, lanes);
    }
  }
}

static int64_t lora_up_tasks(const rb_args* args, const rb_step* step) {
  return lora_blocks(domain_rows(step, args->lora_up.domain)) * lora_chunks(args->lora_up);
}

static void lora_up_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_lora_up& u = args->lora_up;
  const int64_t rows = domain_rows(step, u.domain), chunks = lora_chunks(u);
  for (int64_t task = begin; task < end; ++task) {
    const LoraColumns columns = columns_of(u, task % chunks);
    const int64_t first = task / chunks * kLoraBlock, past = first + kLoraBlock;
    for (int64_t row = first; row < past && row < rows;) {
      const LoraRun run = lora_run(step, u.domain, row, past < rows ? past : rows);
      const rb_lora_slot slot = run.slot < 0 ? rb_lora_slot{} : u.slots[run.slot * u.parts + columns.part];
      if (run.count == kLoraRows) {
        up_rows<kLoraRows>(u, slot, row, columns);
      } else {
        for (int r = 0; r < run.count; ++r) up_rows<1>(u, slot, row + r, columns);
      }
      row += run.count;
    }
  }
}

}  // namespace rb::RB_NS
