// attention_chunk.h: up to kQueries queries that share a key/value head, against one chunk of positions, and how chunks are merged.
//
// The order of every sum is a function of absolute positions alone. Chunk c is positions c*kChunk .. c*kChunk+kChunk-1; of them a
// query sees those of its own range. A chunk gives a query three things: its largest score m, the total l of exp(s - m) and their
// weighted sum o of values. Chunks are merged in ascending order. Positions a query does not see are never multiplied in, so
// garbage there cannot matter, and a chunk of which it sees nothing is passed over.
#pragma once
#include "cpu/attention_range.h"
#include "cpu/elementwise.h"
#include "cpu/kv.h"

namespace rb::RB_NS {

constexpr int kChunk = RB_ATTENTION_CHUNK;
constexpr int kScoreStride =
    kChunk + 16;  // a stride of 1 KB would put all queries' weights of one position into few cache sets
// Queries in flight: their sums and a load have to stay in registers (32 of 16 lanes; 16 of 8, two to a vector; 32 of 4, four).
#ifdef RB_SANITIZED
constexpr int kQueries = 3;
#else
constexpr int kQueries = kLanes == 16 ? 12 : kLanes == 1 ? 4 : 6;
#endif

struct Batch {
  const rb_attention* a;
  const int32_t* table;
  const uint8_t *keys, *values;  // of its key/value head in block 0
  int count;
  Query query[kQueries];
};

// A thread's room; 64-byte aligned. Lane i of a vector is query i.
struct Room {
  float *top, *total;              // [16] over the chunks so far
  float *chunk_top, *chunk_total;  // [16] of this chunk
  float* q;                        // [head_dim][16] queries side by side
  float* score;                    // [kQueries][kScoreStride] of this chunk's positions, later the weights
  float* part;                     // [kQueries][head_dim] o of this chunk
  float* sum;                      // [kQueries][head_dim] over the chunks so far

  static constexpr int64_t floats(int64_t head_dim) {
    return 4 * 16 + 16 * head_dim + kQueries * (kScoreStride + 2 * head_dim);
  }
  static Room at(float* x, int64_t head_dim) {
    float *q = x + 64, *score = q + 16 * head_dim, *part = score + kQueries * kScoreStride;
    return {x, x + 16, x + 32, x + 48, q, score, part, part + kQueries * head_dim};
  }
};

// The blocks of a chunk that some query of the batch sees; the chunk's first position.
struct Span {
  int32_t begin, first_block, last_block;
};

static Span span_of(const Batch& b, int32_t chunk) {
  int32_t first = INT32_MAX, last = 0;
  for (int i = 0; i < b.count; ++i) first = least(first, b.query[i].first), last = most(last, b.query[i].last);
  const int32_t begin = chunk * kChunk;
  return {begin, most(first, begin) / kBlock, least(last, begin + kChunk - 1) / kBlock};
}

// The part of a chunk that a query sees; empty when first > last.
RB_INLINE Query seen(const Query& q, const Span& s) {
  return {most(q.first, s.begin), least(q.last, s.begin + kChunk - 1)};
}

RB_INLINE const uint8_t* in_block(const Batch& b, const uint8_t* head, int32_t block) {
  assert(b.table[block] >= 0 && b.table[block] < b.a->blocks);
  return head + b.table[block] * b.a->block_stride;
}

// Blocks lie anywhere, so the hardware does not foresee the next one. A pass over keys is followed by one over values: what is read
// kBlocksAhead blocks later is asked for now, into the second cache (locality 2), which waits for more lines at once than the first: 29
// against 24 GB/s at a depth of 4096. A head of a block is 2 KB, 0.1 us at a thread's share of memory, and memory answers within
// that: two are enough, four or eight no better.
constexpr int kBlocksAhead = 2;

RB_INLINE const uint8_t* ahead_of_keys(const Batch& b, const Span& s, int32_t block) {
  const int32_t next = block + kBlocksAhead, over = next - s.last_block - 1;
  if (over < 0) return in_block(b, b.keys, next);
  return in_block(b, b.values, least(s.first_block + over, s.last_block));
}

// dot[i] += q[i] . keys over dimensions begin..end-1, ascending, one chain a query and position (lane), for B blocks at once.
template <class KV, int N, int B>
RB_INLINE void dots(const float* q, const uint8_t* const* keys, const uint8_t* const* ahead, int begin, int end,
                    F (&dot)[N][B]) {
  for (int d = begin; d < end; ++d) {
    F k[B];
    RB_UNROLL for (int b = 0; b < B; ++b) {
      k[b] = KV::load16(keys[b] + KV::kBytes * kBlock * d);
      __builtin_prefetch(ahead[b] + KV::kBytes * kBlock * d, 0, 2);
    }
    RB_UNROLL for (int i = 0; i < N; ++i) {
      const F x = set1(q[16 * d + i]);
      RB_UNROLL for (int b = 0; b < B; ++b) dot[i][b] = fma(x, k[b], dot[i][b]);
    }
  }
}

// int8: the dot of each group of dimensions, then one fma with the positions' scales.
template <class KV, int N, int B>
RB_INLINE void block_scores(const float* q, const uint8_t* const* keys, const uint8_t* const* ahead, int head_dim,
                            F (&s)[N][B]) {
  RB_UNROLL for (int i = 0; i < N; ++i) { RB_UNROLL for (int b = 0; b < B; ++b) s[i][b] = set1(0.0f); }
  if constexpr (!KV::kScaled) {
    dots<KV, N, B>(q, keys, ahead, 0, head_dim, s);
    return;
  }
  for (int g = 0; g * kGroup < head_dim; ++g) {
    F dot[N][B];
    RB_UNROLL for (int i = 0; i < N; ++i) { RB_UNROLL for (int b = 0; b < B; ++b) dot[i][b] = set1(0.0f); }
    dots<KV, N, B>(q, keys, ahead, g * kGroup, least((g + 1) * kGroup, head_dim), dot);
    RB_UNROLL for (int b = 0; b < B; ++b) {
      const F scale = kv_scales(keys[b], head_dim, g);
      RB_UNROLL for (int i = 0; i < N; ++i) s[i][b] = fma(dot[i][b], scale, s[i][b]);
    }
  }
}

template <class KV, int N, int B>
RB_INLINE void score_blocks(const Batch& b, const Room& r, const Span& span, int32_t block) {
  const uint8_t *keys[B], *ahead[B];
  RB_UNROLL for (int i = 0; i < B; ++i) {
    keys[i] = in_block(b, b.keys, block + i);
    ahead[i] = ahead_of_keys(b, span, block + i);
  }
  F s[N][B];
  block_scores<KV, N, B>(r.q, keys, ahead, b.a->head_dim, s);
  const F scale = set1(b.a->scale);
  RB_UNROLL for (int i = 0; i < N; ++i) {
    RB_UNROLL for (int j = 0; j < B; ++j) {
      F v = mul(s[i][j], scale);
      if (b.a->softcap > 0.0f) v = softcap(v, b.a->softcap);
      const int32_t base = (block + j) * kBlock;
      store(r.score + i * kScoreStride + base - span.begin, visible(v, base, b.query[i]));
    }
  }
}

// A few queries have too few chains for the latency of an fma (4 cycles): two blocks at once.
template <class KV, int N>
static void score_pass(const Batch& b, const Room& r, const Span& span) {
  int32_t block = span.first_block;
  if constexpr (N <= 4 && kLanes > 1) {
    for (; block < span.last_block; block += 2) score_blocks<KV, N, 2>(b, r, span, block);
  }
  for (; block <= span.last_block; ++block) score_blocks<KV, N, 1>(b, r, span, block);
}

// Scores -> weights exp(s - m), with m and their total. Hidden lanes become +0, which changes no sum.
static void weight_pass(const Room& r, int query, const Span& span) {
  float *score = r.score + query * kScoreStride - span.begin, *begin = score + span.first_block * kBlock,
        *end = score + (span.last_block + 1) * kBlock;
  F top = set1(-__FLT_MAX__), total = set1(0.0f);
  for (const float* s = begin; s != end; s += 16) top = max(top, load(s));
  r.chunk_top[query] = max_lanes(top);
  const F largest = set1(r.chunk_top[query]);
  for (float* s = begin; s != end; s += 16) {
    const F p = exp_down(sub(load(s), largest));
    store(s, p);
    total = add(total, p);
  }
  r.chunk_total[query] = sum_lanes(total);
}

// part[i][d..] += weights of positions from..to (of one block) times values; V vectors from dimension d on.
template <class KV, int N, int V>
RB_INLINE void value_block(const float* weight, int stride, const uint8_t* values, const uint8_t* ahead, int width,
                           int count, F (&sum)[N][V]) {
  for (int j = 0; j < count; ++j, values += width, ahead += width) {
    F x[V];
    RB_UNROLL for (int v = 0; v < V; ++v) x[v] = KV::load16(values + 16 * KV::kBytes * v);
    __builtin_prefetch(ahead, 0, 2);
    if constexpr (V * 16 * KV::kBytes > 64) __builtin_prefetch(ahead + 64, 0, 2);
    RB_UNROLL for (int i = 0; i < N; ++i) {
      const F p = set1(weight[i * stride + j]);
      RB_UNROLL for (int v = 0; v < V; ++v) sum[i][v] = fma(p, x[v], sum[i][v]);
    }
  }
}

// Queries first_query..first_query+N-1 over positions from..to.
template <class KV, int N, int V>
RB_INLINE void value_columns(const Batch& b, const Room& r, const Span& span, int first_query, Query range, int d) {
  const int head_dim = b.a->head_dim, width = head_dim * KV::kBytes;
  float* part = r.part + first_query * head_dim + d;
  const float* weight = r.score + first_query * kScoreStride - span.begin;
  F sum[N][V];
  RB_UNROLL for (int i = 0; i < N; ++i) {
    RB_UNROLL for (int v = 0; v < V; ++v) sum[i][v] = load(part + i * head_dim + 16 * v);
  }
  for (int32_t j = range.first; j <= range.last;) {
    const int32_t block = j / kBlock, slot = j % kBlock, count = least(kBlock - slot, range.last - j + 1);
    const uint8_t* head = in_block(b, b.values, block);
    const uint8_t* ahead = in_block(b, b.values, least(block + kBlocksAhead, span.last_block));
    const int64_t offset = static_cast<int64_t>(slot) * width + d * KV::kBytes;
    if constexpr (KV::kScaled) {  // the weight of a position for this group of dimensions
      float scaled[N * 16];
      const F scale = kv_scales(head, head_dim, d / kGroup);
      RB_UNROLL for (int i = 0; i < N; ++i)
          store(scaled + 16 * i, mul(load(weight + i * kScoreStride + block * kBlock), scale));
      value_block<KV, N, V>(scaled + slot, 16, head + offset, ahead + offset, width, count, sum);
    } else {
      value_block<KV, N, V>(weight + j, kScoreStride, head + offset, ahead + offset, width, count, sum);
    }
    j += count;
  }
  RB_UNROLL for (int i = 0; i < N; ++i) {
    RB_UNROLL for (int v = 0; v < V; ++v) store(part + i * head_dim + 16 * v, sum[i][v]);
  }
}

// V: N V sums in registers, 8 chains or more where N allows; a group of an int8 head is two vectors.
template <class KV, int N>
static void value_range(const Batch& b, const Room& r, const Span& span, int first_query, Query range) {
  constexpr int V = N <= 4 && !KV::kScaled ? 4 : kLanes == 16 ? 2 : 1;
  if (range.first > range.last) return;
  int d = 0;
  for (; d + 16 * V <= b.a->head_dim; d += 16 * V) value_columns<KV, N, V>(b, r, span, first_query, range, d);
  for (; d < b.a->head_dim; d += 16) value_columns<KV, N, 1>(b, r, span, first_query, range, d);
}

// The positions every query sees are done together, those before and after by each alone, in ascending order for each.
template <class KV, int N>
static void value_pass(const Batch& b, const Room& r, const Span& span) {
  Query all = seen(b.query[0], span);
  for (int i = 1; i < N; ++i) {
    const Query q = seen(b.query[i], span);
    all = {most(all.first, q.first), least(all.last, q.last)};
  }
  const bool shared = all.first <= all.last;  // not with a window shorter than the batch
  for (int i = 0; i < N; ++i) {
    const Query q = seen(b.query[i], span);
    value_range<KV, 1>(b, r, span, i, {q.first, shared ? all.first - 1 : q.last});
  }
  if (!shared) return;
  value_range<KV, N>(b, r, span, 0, all);
  for (int i = 0; i < N; ++i) value_range<KV, 1>(b, r, span, i, {all.last + 1, seen(b.query[i], span).last});
}

template <class KV, int N>
static void attend_chunk(const Batch& b, const Room& r, const Span& span) {
  score_pass<KV, N>(b, r, span);
  for (int i = 0; i < N; ++i) weight_pass(r, i, span);
  memset(r.part, 0, static_cast<size_t>(N * b.a->head_dim) * sizeof(float));
  value_pass<KV, N>(b, r, span);
}

// The instance for this many queries.
template <class KV, int N = kQueries>
static void attend(const Batch& b, const Room& r, const Span& span) {
  if constexpr (N > 1) {
    if (b.count < N) return attend<KV, N - 1>(b, r, span);
  }
  attend_chunk<KV, N>(b, r, span);
}

// Lane i of `old` and `now` scales what query i has so far and what this chunk brings: with M = max(m_old, m_chunk),
// l = fma(l_chunk, exp(m_chunk - M), l_old * exp(m_old - M)), and so for every element of o.
struct Scales {
  float old[16], now[16];
};

RB_INLINE Scales merge_totals(float* top, float* total, const float* chunk_top, const float* chunk_total) {
  const F before = load(top), chunk = load(chunk_top), largest = max(before, chunk);
  const F a = exp_down(sub(before, largest)), b = exp_down(sub(chunk, largest));
  store(top, largest);
  store(total, fma(load(chunk_total), b, mul(load(total), a)));
  Scales s;
  store(s.old, a);
  store(s.now, b);
  return s;
}

RB_INLINE void merge_sum(float* sum, const float* part, int head_dim, float old, float now) {
  const F a = set1(old), b = set1(now);
  for (int d = 0; d < head_dim; d += 16) store(sum + d, fma(load(part + d), b, mul(load(sum + d), a)));
}

// Nothing so far: the least finite score, no weight.
RB_INLINE void begin_merge(const Room& r, int queries, int head_dim) {
  store(r.top, set1(-__FLT_MAX__));
  store(r.total, set1(0.0f));
  memset(r.sum, 0, static_cast<size_t>(queries * head_dim) * sizeof(float));
}

// Results of `heads` adjacent heads of a row, plain and quantized: sums (changed here) times 1 / total. out or outq may be NULL; outq
// needs head_dim % 32 == 0.
static void put_heads(const rb_attention& a, int64_t row, int64_t head, int64_t heads, float* sum, const float* total) {
  const int width = a.heads * a.head_dim, at = static_cast<int>(head) * a.head_dim;
  const int count = static_cast<int>(heads) * a.head_dim;
  for (int64_t h = 0; h < heads; ++h) {
    const F by = set1(1.0f / total[h]);
    float* x = sum + h * a.head_dim;
    for (int d = 0; d < a.head_dim; d += 16) store(x + d, mul(load(x + d), by));
  }
  if (a.out != nullptr) memcpy(a.out + row * a.out_stride + at, sum, static_cast<size_t>(count) * sizeof(float));
  if (a.outq != nullptr)
    QuantizedRow::at(a.outq + static_cast<size_t>(row) * rb_quantized_stride(width), width, a.group)
        .put(at / 16, sum, count / 16);
}

}  // namespace rb::RB_NS
