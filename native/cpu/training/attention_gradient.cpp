// The gradient of attention over whole sequences (Dao, arXiv:2307.08691: weights are worked out again, never kept).
//
// A task is a part of a sequence and a key/value head: keys and values become floats once, in the two directions they are read in; then
// queries (row by row, the heads of a row ascending) go through in batches of kBatch that share every load. For a batch: scores and
// weights P, then e = scale ds, then dq of its own, and dk and dv of the positions it sees. So every sum has the order of
// rebar_training.h, whatever shares a batch. Positions that a query does not see are never multiplied in.
//
// Parts cost the memory of their dk and dv, and nothing is computed twice. (Keys cut among tasks instead would have each of them work out
// all scores and slopes again, 7 products for 5.)
#include <assert.h>
#include <string.h>

#include "cpu/attention_range.h"
#include "cpu/kv.h"
#include "cpu/math.h"
#include "cpu/sums.h"
#include "cpu/training/attention_parts.h"
#include "cpu/training/kernels.h"

namespace rb::RB_NS {

namespace {

// Queries in flight: sums of two vectors each (one where a vector is several registers) and what is loaded stay in registers.
#ifdef RB_SANITIZED
constexpr int kBatch = 3, kVectors = 2;
#else
constexpr int kBatch = kLanes == 16 ? 12 : kLanes == 1 ? 4 : 6, kVectors = kLanes == 16 ? 2 : 1;
#endif
// Positions whose dk or dv are in registers together, and vectors of each.
constexpr int kPositions = kLanes == 16 ? 4 : 2, kWide = kLanes == 16 ? 4 : 2;

// A thread's room: keys as [block][head_dim][16] and [position][head_dim], values as [block][head_dim][16]; of a batch: q and dout as
// [head_dim][16], and for each query the positions' scores (then slopes, then e) and weights.
struct Room {
  float *keys, *keys_turned, *values, *q, *dout, *score, *weight;
  int64_t stride;  // from one query's scores to the next: an odd number of cache lines

  static int64_t positions(const rb_attention_gradient& a) {
    return (static_cast<int64_t>(a.max_positions) + kBlock - 1) / kBlock * kBlock;
  }
  static int64_t stride_of(const rb_attention_gradient& a) { return positions(a) / 32 * 32 + 48; }
  static int64_t floats(const rb_attention_gradient& a) {
    return a.head_dim * (3 * positions(a) + 2 * kBlock) + 2 * kBatch * stride_of(a);
  }
  static Room at(const rb_attention_gradient& a, float* x) {
    const int64_t all = positions(a) * a.head_dim, side = kBlock * static_cast<int64_t>(a.head_dim);
    float *q = x + 3 * all, *score = q + 2 * side;
    return {x, x + all, x + 2 * all, q, q + side, score, score + kBatch * stride_of(a), stride_of(a)};
  }
};

struct Batch {
  int count;
  Query seen[kBatch];
  const float *q[kBatch], *out[kBatch], *dout[kBatch];
  float* dq[kBatch];
  Query any, all;  // positions that some query sees, and that every one does (empty: first > last)
};

template <class KV>
void unpack_heads(const Sequence& s, const Room& r, int64_t positions) {
  const rb_attention_gradient& a = *s.a;
  const int64_t bytes = kv_head_bytes(a.kv_type, a.head_dim);
  for (int64_t p = 0; p < positions; p += kBlock) {
    const int32_t sequence = s.step->sequences[s.row];
    const uint8_t* layer = a.cache + block_of(s.step, sequence, static_cast<int32_t>(p), a.blocks) * a.block_stride;
    const uint8_t *key = layer + s.kv_head * bytes, *value = layer + (a.kv_heads + s.kv_head) * bytes;
    for (int d = 0; d < a.head_dim; d += 16) {
      F x[16];
      for (int i = 0; i < 16; ++i) {
        x[i] = KV::load16(key + (d + i) * kBlock * KV::kBytes);
        store(r.keys + p * a.head_dim + (d + i) * kBlock, x[i]);
      }
      transpose(x);
      for (int i = 0; i < 16; ++i) store(r.keys_turned + (p + i) * a.head_dim + d, x[i]);
      for (int i = 0; i < 16; ++i) x[i] = KV::load16(value + (i * a.head_dim + d) * KV::kBytes);
      transpose(x);
      for (int i = 0; i < 16; ++i) store(r.values + p * a.head_dim + (d + i) * kBlock, x[i]);
    }
  }
}

// Queries first..end-1 of the sequence's rows times the heads that share the kv head, as many as go together.
Batch batch_of(const Sequence& s, const Room& r, int64_t first, int64_t end) {
  const rb_attention_gradient& a = *s.a;
  const int64_t shared = a.heads / a.kv_heads;
  Batch b{};
  for (int64_t u = first; u < end && b.count < kBatch; ++u, ++b.count) {
    const int64_t row = s.row + u / shared, at = (s.kv_head * shared + u % shared) * a.head_dim;
    const int i = b.count;
    b.seen[i] = seen_from(s.step->positions[row], a.window);
    b.q[i] = a.q + row * a.q_stride + at;
    b.out[i] = a.out + row * a.out_stride + at;
    b.dout[i] = a.dout + row * a.dout_stride + at;
    b.dq[i] = a.dq + row * a.dq_stride + at;
    for (int d = 0; d < a.head_dim; ++d) r.q[16 * d + i] = b.q[i][d], r.dout[16 * d + i] = b.dout[i][d];
  }
  for (int i = b.count; i < kBatch; ++i) {  // nobody: results are written and not read
    b.seen[i] = {0, -1};
    for (int d = 0; d < a.head_dim; ++d) r.q[16 * d + i] = r.dout[16 * d + i] = 0.0f;
  }
  b.any = {b.seen[0].first, b.seen[b.count - 1].last};  // both ascend with the rows
  b.all = {b.seen[b.count - 1].first, b.seen[0].last};
  return b;
}

// dot[i] = side[i] . x of a block's positions, one chain over ascending d.
RB_INLINE void dots(const float* side, const float* x, int head_dim, F (&dot)[kBatch]) {
  RB_UNROLL for (int i = 0; i < kBatch; ++i) dot[i] = set1(0.0f);
  for (int d = 0; d < head_dim; ++d) {
    const F value = load(x + d * kBlock);
    RB_UNROLL for (int i = 0; i < kBatch; ++i) dot[i] = fma(set1(side[16 * d + i]), value, dot[i]);
  }
}

void score_pass(const Sequence& s, const Room& r, const Batch& b) {
  const rb_attention_gradient& a = *s.a;
  const F scale = set1(a.scale);
  for (int32_t base = b.any.first / kBlock * kBlock; base <= b.any.last; base += kBlock) {
    F dot[kBatch];
    dots(r.q, r.keys + static_cast<int64_t>(base) * a.head_dim, a.head_dim, dot);
    RB_UNROLL for (int i = 0; i < kBatch; ++i) {
      F v = mul(dot[i], scale);
      if (a.softcap > 0.0f) v = softcap(v, a.softcap);
      store(r.score + i * r.stride + base, visible(v, base, b.seen[i]));
    }
  }
}

// Scores -> weights, and with a cap the slopes 1 - (s / cap)^2 in their place.
void weight_pass(const Sequence& s, const Room& r, const Batch& b) {
  const int32_t begin = b.any.first / kBlock * kBlock, end = b.any.last + 1;
  const float cap = s.a->softcap;
  for (int i = 0; i < b.count; ++i) {
    float *score = r.score + i * r.stride, *weight = r.weight + i * r.stride;
    F top = set1(-__FLT_MAX__), total = set1(0.0f);
    for (int32_t p = begin; p < end; p += kBlock) top = max(top, load(score + p));
    const F largest = set1(max_lanes(top));
    for (int32_t p = begin; p < end; p += kBlock) {
      const F x = load(score + p), e = exp_down(sub(x, largest));
      store(weight + p, e);
      total = add(total, e);
      if (cap > 0.0f) {
        const F t = div(x, set1(cap));
        store(score + p, fma(sub(set1(0.0f), t), t, set1(1.0f)));
      }
    }
    const F by = set1(1.0f / sum_lanes(total));
    for (int32_t p = begin; p < end; p += kBlock) store(weight + p, mul(load(weight + p), by));
  }
}

// e = scale P (dout.v - D), times the slope.
void slope_pass(const Sequence& s, const Room& r, const Batch& b) {
  const rb_attention_gradient& a = *s.a;
  const F scale = set1(a.scale);
  float whole[kBatch] = {};
  for (int i = 0; i < b.count; ++i) whole[i] = sum_of_products(b.out[i], b.dout[i], a.head_dim);
  for (int32_t base = b.any.first / kBlock * kBlock; base <= b.any.last; base += kBlock) {
    F dot[kBatch];
    dots(r.dout, r.values + static_cast<int64_t>(base) * a.head_dim, a.head_dim, dot);
    RB_UNROLL for (int i = 0; i < kBatch; ++i) {
      float* score = r.score + i * r.stride + base;
      F ds = mul(load(r.weight + i * r.stride + base), sub(dot[i], set1(whole[i])));
      if (a.softcap > 0.0f) ds = mul(ds, load(score));
      store(score, mul(scale, ds));
    }
  }
}

// dq of queries first..first+N-1 goes on over positions from..to.
template <int N, int V>
RB_INLINE void query_columns(const Room& r, const Batch& b, int first, Query range, int head_dim, int d) {
  const float* e = r.score + first * r.stride;
  const float* keys = r.keys_turned + d;
  F sum[N][V];
  RB_UNROLL for (int i = 0; i < N; ++i) {
    RB_UNROLL for (int v = 0; v < V; ++v) sum[i][v] = load(b.dq[first + i] + d + 16 * v);
  }
  for (int64_t p = range.first; p <= range.last; ++p) {
    F k[V];
    RB_UNROLL for (int v = 0; v < V; ++v) k[v] = load(keys + p * head_dim + 16 * v);
    RB_UNROLL for (int i = 0; i < N; ++i) {
      const F x = set1(e[i * r.stride + p]);
      RB_UNROLL for (int v = 0; v < V; ++v) sum[i][v] = fma(x, k[v], sum[i][v]);
    }
  }
  RB_UNROLL for (int i = 0; i < N; ++i) {
    RB_UNROLL for (int v = 0; v < V; ++v) store(b.dq[first + i] + d + 16 * v, sum[i][v]);
  }
}

template <int N>
void query_range(const Room& r, const Batch& b, int first, Query range, int head_dim) {
  if (range.first > range.last) return;
  int d = 0;
  for (; d + 16 * kVectors <= head_dim; d += 16 * kVectors) query_columns<N, kVectors>(r, b, first, range, head_dim, d);
  for (; d < head_dim; d += 16) query_columns<N, 1>(r, b, first, range, head_dim, d);
}

// What all queries of a full batch see is done together, the positions before and after by each alone, in ascending order for each.
void query_pass(const Sequence& s, const Room& r, const Batch& b) {
  const int head_dim = s.a->head_dim;
  const bool together = b.count == kBatch && b.all.first <= b.all.last;
  for (int i = 0; i < b.count; ++i) {
    const int32_t last = together ? b.all.first - 1 : b.seen[i].last;
    query_range<1>(r, b, i, {b.seen[i].first, last}, head_dim);
  }
  if (!together) return;
  query_range<kBatch>(r, b, 0, b.all, head_dim);
  for (int i = 0; i < b.count; ++i) query_range<1>(r, b, i, {b.all.last + 1, b.seen[i].last}, head_dim);
}

struct Positions {
  float* to;  // dk or dv of position 0
  int64_t stride;
  const float* factor;  // e or P of the batch
  const float* const* side;
};

// Positions p..p+P-1 go on over queries begin..end-1, which see them all.
template <int P, int V>
RB_INLINE void position_columns(const Room& r, const Positions& x, int64_t p, int begin, int end, int d) {
  float* to = x.to + p * x.stride + d;
  F sum[P][V];
  RB_UNROLL for (int j = 0; j < P; ++j) {
    RB_UNROLL for (int v = 0; v < V; ++v) sum[j][v] = load(to + j * x.stride + 16 * v);
  }
  for (int i = begin; i < end; ++i) {
    const float *side = x.side[i] + d, *factor = x.factor + i * r.stride + p;
    F y[V];
    RB_UNROLL for (int v = 0; v < V; ++v) y[v] = load(side + 16 * v);
    RB_UNROLL for (int j = 0; j < P; ++j) {
      const F by = set1(factor[j]);
      RB_UNROLL for (int v = 0; v < V; ++v) sum[j][v] = fma(by, y[v], sum[j][v]);
    }
  }
  RB_UNROLL for (int j = 0; j < P; ++j) {
    RB_UNROLL for (int v = 0; v < V; ++v) store(to + j * x.stride + 16 * v, sum[j][v]);
  }
}

template <int P>
RB_INLINE void add_positions(const Room& r, const Positions& x, int64_t p, int begin, int end, int head_dim) {
  int d = 0;
  for (; d + 16 * kWide <= head_dim; d += 16 * kWide) position_columns<P, kWide>(r, x, p, begin, end, d);
  for (; d < head_dim; d += 16) position_columns<P, 1>(r, x, p, begin, end, d);
}

// The queries that see a position follow each other: later rows lie behind it, earlier ones within their window.
void position_pass(const Room& r, const Batch& b, const Positions& x, int head_dim) {
  int begin = 0, end = 0;
  for (int32_t p = b.any.first; p <= b.any.last;) {
    while (begin < b.count && b.seen[begin].last < p) ++begin;
    while (end < b.count && b.seen[end].first <= p) ++end;
    if (p >= b.all.first && p + kPositions - 1 <= b.all.last) {
      add_positions<kPositions>(r, x, p, 0, b.count, head_dim);
      p += kPositions;
    } else {
      add_positions<1>(r, x, p, begin, end, head_dim);
      ++p;
    }
  }
}

void run_gradient(const Sequence& s, const Room& r, const Run& run, const Sums& sums) {
  const rb_attention_gradient& a = *s.a;
  const int64_t shared = a.heads / a.kv_heads;
  for (int64_t first = run.begin * shared; first < run.end * shared; first += kBatch) {
    const Batch b = batch_of(s, r, first, run.end * shared);
    score_pass(s, r, b);
    weight_pass(s, r, b);
    slope_pass(s, r, b);
    query_pass(s, r, b);
    position_pass(r, b, {sums.dk, sums.dk_stride, r.score, b.q}, a.head_dim);
    position_pass(r, b, {sums.dv, sums.dv_stride, r.weight, b.dout}, a.head_dim);
  }
}

void part_gradient(const Sequence& s, int64_t part, float* scratch) {
  const rb_attention_gradient& a = *s.a;
  const Room r = Room::at(a, scratch);
  if (a.kv_type == RB_KV_F32)
    unpack_heads<FloatKV>(s, r, s.seen(part));
  else
    unpack_heads<HalfKV>(s, r, s.seen(part));
  const Sums sums = sums_of(s, part);
  const size_t bytes = static_cast<size_t>(a.head_dim) * sizeof(float);
  for (int64_t p = 0; part > 0 && p < s.seen(part); ++p) {
    memset(sums.dk + p * sums.dk_stride, 0, bytes);
    memset(sums.dv + p * sums.dv_stride, 0, bytes);
  }
  run_gradient(s, r, s.run(part), sums);
  run_gradient(s, r, s.run(2 * s.parts() - 1 - part), sums);
}

// to += the parts of a row of the sequence, ascending; those that see it come first.
void merge_row(const Sequence& s, int64_t row) {
  const rb_attention_gradient& a = *s.a;
  const int width = a.kv_heads * a.head_dim;
  for (int64_t t = 1; t < s.parts() && row < s.seen(t); ++t) {
    const Sums own = sums_of(s, 0), part = sums_of(s, t);
    const float *from_k = part.dk + row * part.dk_stride, *from_v = part.dv + row * part.dv_stride;
    float *dk = own.dk + row * own.dk_stride, *dv = own.dv + row * own.dv_stride;
    for (int i = 0; i < width; i += 16) {
      store(dk + i, add(load(dk + i), load(from_k + i)));
      store(dv + i, add(load(dv + i), load(from_v + i)));
    }
  }
}

}  // namespace

int64_t attention_gradient_tasks(const rb_args* args, const rb_step* step) {
  int64_t parts = 0;
  for (int64_t row = 0; row < step->rows;) {
    const Sequence s = sequence_at(args->attention_gradient, step, row);
    parts += s.parts();
    row += s.rows;
  }
  return parts * args->attention_gradient.kv_heads;
}

size_t attention_gradient_scratch(const rb_args* args, int32_t) {
  return static_cast<size_t>(Room::floats(args->attention_gradient)) * sizeof(float);
}

void attention_gradient_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void* scratch) {
  const rb_attention_gradient& a = args->attention_gradient;
  assert(a.kv_type != RB_KV_INT8 && a.head_dim % 16 == 0);
  int64_t task = 0;
  for (int64_t row = 0; row < step->rows && task < end;) {
    Sequence s = sequence_at(args->attention_gradient, step, row);
    for (s.kv_head = 0; s.kv_head < a.kv_heads; ++s.kv_head) {
      for (int64_t part = 0; part < s.parts(); ++part, ++task)
        if (task >= begin && task < end) part_gradient(s, part, static_cast<float*>(scratch));
    }
    row += s.rows;
  }
}

// A task is a row.
int64_t attention_gradient_merge_tasks(const rb_args* args, const rb_step* step) {
  return rb_attention_parts(args->attention_gradient.max_positions) > 0 ? step->rows : 0;
}

void attention_gradient_merge_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  for (int64_t row = 0; row < end;) {
    const Sequence s = sequence_at(args->attention_gradient, step, row);
    for (int64_t r = begin > row ? begin - row : 0; r < s.rows && row + r < end; ++r) merge_row(s, r);
    row += s.rows;
  }
}

}  // namespace rb::RB_NS
