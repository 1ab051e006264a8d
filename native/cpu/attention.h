// attention.h: softmax(scale q k) v over the paged cache, for whatever rows the step brings: how the work is cut.
//
// A batch is consecutive rows of one sequence times query heads of one key/value head; it shares every load of keys and values. A
// query's arithmetic is its own whatever shares the batch (attention_chunk.h). Many rows: a task is a batch with all its chunks.
// Few rows over several chunks: a task is one chunk of a batch; what it finds goes to `work`, and attention_merge puts the chunks
// together in the same order and by the same formula, so which of the two ways was taken does not show.
#pragma once
#include "cpu/attention_chunk.h"

namespace rb::RB_NS {

struct AttentionPlan {
  int64_t row_step, row_ranges, head_step, head_ranges;
  int64_t chunk_tasks;  // over all row ranges; 0: not split by chunks
};

struct Chunks {
  int32_t first, last;
};

RB_INLINE Query range_of(const rb_attention& a, int32_t position) { return seen_from(position, a.window); }

RB_INLINE bool follows(const rb_step* step, int64_t row) {
  return step->sequences[row] == step->sequences[row - 1] && step->positions[row] == step->positions[row - 1] + 1;
}

// Most chunks that a run of following rows within begin..end-1 sees.
static int64_t chunks_of(const rb_attention& a, const rb_step* step, int64_t begin, int64_t end) {
  int64_t most = 0;
  int32_t first = 0;
  for (int64_t r = begin; r < end; ++r) {
    const Query q = range_of(a, step->positions[r]);
    if (r == begin || !follows(step, r)) first = q.first / kChunk;
    const int64_t run = q.last / kChunk - first + 1;
    most = run > most ? run : most;
  }
  return most;
}

// Rows share loads only within a sequence: alone where most rows are (decode), else as many as fill a batch.
static AttentionPlan attention_plan(const rb_attention& a, const rb_step* step) {
  const int64_t rows = step->rows, shared = a.heads / a.kv_heads;
  AttentionPlan p{1, rows, (shared - 1) / ((shared + kQueries - 1) / kQueries) + 1, 1, 0};
  int64_t runs = 1;
  for (int64_t r = 1; r < rows; ++r) runs += follows(step, r) ? 0 : 1;
  if (runs * 2 <= rows && shared * 2 <= kQueries) p.row_step = kQueries / shared;
  p.row_ranges = (rows + p.row_step - 1) / p.row_step;
  int64_t units = p.row_ranges;
  if (a.work != nullptr && rows <= RB_ATTENTION_SPLIT_ROWS && chunks_of(a, step, 0, rows) > 1) {
    for (int64_t r = 0; r < rows; r += p.row_step)
      p.chunk_tasks += chunks_of(a, step, r, r + p.row_step < rows ? r + p.row_step : rows);
    units = p.chunk_tasks;
  }
  if (units * a.kv_heads < 4 && shared > 1 && p.head_step == shared) p.head_step = (shared + 1) / 2;  // work for all
  p.head_ranges = (shared + p.head_step - 1) / p.head_step;
  return p;
}

// Rows row..row+rows-1 follow each other in one sequence; heads head..head+heads-1 share keys.
static Batch batch_of(const rb_attention& a, const rb_step* step, int64_t row, int64_t rows, int64_t head,
                      int64_t heads, const Room& room) {
  const int64_t kv_head = head / (a.heads / a.kv_heads), bytes = kv_head_bytes(a.kv_type, a.head_dim);
  Batch b;
  b.a = &a;
  b.table = step->tables + static_cast<int64_t>(step->sequences[row]) * step->table_stride;
  b.keys = a.cache + kv_head * bytes;
  b.values = a.cache + (a.kv_heads + kv_head) * bytes;
  b.count = 0;
  for (int64_t r = row; r < row + rows; ++r) {
    for (int64_t h = head; h < head + heads; ++h, ++b.count) {
      const float* q = a.q + r * a.q_stride + h * a.head_dim;
      for (int d = 0; d < a.head_dim; ++d) room.q[16 * d + b.count] = q[d];
      b.query[b.count] = range_of(a, step->positions[r]);
    }
  }
  if (a.kv_type == RB_KV_INT8) hadamard_lanes(room.q, a.head_dim);
  return b;
}

RB_INLINE void attend_any(const Batch& b, const Room& r, const Span& span) {
  if (b.a->kv_type == RB_KV_F16)
    attend<HalfKV>(b, r, span);
  else if (b.a->kv_type == RB_KV_F32)
    attend<FloatKV>(b, r, span);
  else
    attend<ByteKV>(b, r, span);
}

RB_INLINE float* work_of(const rb_attention& a, int64_t row, int64_t head, int64_t chunk) {
  const int64_t chunks = rb_attention_chunks(a.window, a.max_positions);
  return a.work + ((row * a.heads + head) * chunks + chunk) * (a.head_dim + 16);
}

// All chunks of a batch, to its end.
static void attend_whole(const rb_attention& a, const Batch& b, const Room& r, int64_t row, int64_t head,
                         int64_t heads) {
  begin_merge(r, b.count, a.head_dim);
  const int32_t last = b.query[b.count - 1].last / kChunk;
  for (int32_t chunk = b.query[0].first / kChunk; chunk <= last; ++chunk) {
    const Span span = span_of(b, chunk);
    attend_any(b, r, span);
    const Scales s = merge_totals(r.top, r.total, r.chunk_top, r.chunk_total);
    for (int i = 0; i < b.count; ++i) {
      const Query q = seen(b.query[i], span);
      if (q.first <= q.last) merge_sum(r.sum + i * a.head_dim, r.part + i * a.head_dim, a.head_dim, s.old[i], s.now[i]);
    }
  }
  for (int64_t i = 0; i < b.count; i += heads)
    put_heads(a, row + i / heads, head, heads, r.sum + i * a.head_dim, r.total + i);
}

// The n-th chunk that the batch sees, into `work` at the place it has among each query's own chunks.
static void attend_part(const rb_attention& a, const Batch& b, const Room& r, int64_t row, int64_t head, int64_t heads,
                        int64_t n) {
  const int32_t chunk = b.query[0].first / kChunk + static_cast<int32_t>(n);
  if (chunk > b.query[b.count - 1].last / kChunk) return;
  const Span span = span_of(b, chunk);
  attend_any(b, r, span);
  for (int i = 0; i < b.count; ++i) {
    const Query q = seen(b.query[i], span);
    if (q.first > q.last) continue;
    float* to = work_of(a, row + i / heads, head + i % heads, chunk - b.query[i].first / kChunk);
    to[0] = r.chunk_top[i];
    to[1] = r.chunk_total[i];
    memcpy(to + 16, r.part + i * a.head_dim, static_cast<size_t>(a.head_dim) * sizeof(float));
  }
}

// One range of rows, run by run; n: the chunk of a split launch, or -1 for all.
static void attend_rows(const rb_attention& a, const rb_step* step, int64_t begin, int64_t end, int64_t head,
                        int64_t heads, int64_t n, float* scratch) {
  const Room room = Room::at(scratch, a.head_dim);
  for (int64_t row = begin; row < end;) {
    int64_t rows = 1;
    while (row + rows < end && follows(step, row + rows)) ++rows;
    const Batch b = batch_of(a, step, row, rows, head, heads, room);
    if (n < 0)
      attend_whole(a, b, room, row, head, heads);
    else
      attend_part(a, b, room, row, head, heads, n);
    row += rows;
  }
}

static int64_t attention_tasks(const rb_args* a, const rb_step* step) {
  if (step->rows == 0) return 0;
  const AttentionPlan p = attention_plan(a->attention, step);
  return (p.chunk_tasks > 0 ? p.chunk_tasks : p.row_ranges) * a->attention.kv_heads * p.head_ranges;
}

static size_t attention_scratch(const rb_args* a, int32_t) {
  return static_cast<size_t>(Room::floats(a->attention.head_dim)) * sizeof(float);
}

static void attention_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void* scratch) {
  const rb_attention& a = args->attention;
  const AttentionPlan p = attention_plan(a, step);
  assert(a.head_dim % 16 == 0 && (a.outq == nullptr || a.head_dim % 32 == 0));
  const int64_t shared = a.heads / a.kv_heads, per_unit = a.kv_heads * p.head_ranges;
  for (int64_t task = begin; task < end; ++task) {
    int64_t row = task / per_unit * p.row_step, n = -1;
    if (p.chunk_tasks > 0) {
      n = task / per_unit;
      for (row = 0;; row += p.row_step) {
        const int64_t chunks = chunks_of(a, step, row, row + p.row_step < step->rows ? row + p.row_step : step->rows);
        if (n < chunks) break;
        n -= chunks;
      }
    }
    const int64_t in_group = task % per_unit % p.head_ranges * p.head_step;
    const int64_t head = task % per_unit / p.head_ranges * shared + in_group;
    const int64_t heads = shared - in_group < p.head_step ? shared - in_group : p.head_step;
    const int64_t row_end = row + p.row_step < step->rows ? row + p.row_step : step->rows;
    attend_rows(a, step, row, row_end, head, heads, n, static_cast<float*>(scratch));
  }
}

// A task is a row and a key/value head.
static int64_t attention_merge_tasks(const rb_args* a, const rb_step* step) {
  if (step->rows == 0 || attention_plan(a->attention, step).chunk_tasks == 0) return 0;
  return static_cast<int64_t>(step->rows) * a->attention.heads;
}

static size_t attention_merge_scratch(const rb_args* a, int32_t) {
  return static_cast<size_t>(64 + a->attention.head_dim) * sizeof(float);
}

static void attention_merge_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void* scratch) {
  const rb_attention& a = args->attention;
  float *top = static_cast<float*>(scratch), *total = top + 16, *chunk = total + 16, *sum = top + 64;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t row = task / a.heads, head = task % a.heads;
    const Query q = range_of(a, step->positions[row]);
    store(top, set1(-__FLT_MAX__));
    store(total, set1(0.0f));
    memset(sum, 0, static_cast<size_t>(a.head_dim) * sizeof(float));
    for (int64_t n = 0; n <= q.last / kChunk - q.first / kChunk; ++n) {
      const float* from = work_of(a, row, head, n);
      store(chunk, set1(from[0]));
      store(chunk + 16, set1(from[1]));
      const Scales s = merge_totals(top, total, chunk, chunk + 16);
      merge_sum(sum, from + 16, a.head_dim, s.old[0], s.now[0]);
    }
    put_heads(a, row, head, 1, sum, total);
  }
}

}  // namespace rb::RB_NS
