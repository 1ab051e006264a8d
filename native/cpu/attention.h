// attention.h: softmax(scale q k) v over the paged cache, for whatever rows the step brings.
//
// A batch is up to eight queries: consecutive rows of one sequence times the query heads of one key/value head; it shares every load
// of keys and values. Two passes: scores of all positions into scratch, then weights and the weighted sum. A query's arithmetic is
// its own whatever shares the batch: a lane is a position (dot: one chain over ascending d, then times scale), the total is lane
// j % 16 over ascending blocks, the output one chain over ascending j from its window's first position to its own. Positions
// outside that range are never multiplied in, so garbage there cannot matter.
#pragma once
#include "cpu/append.h"
#include "cpu/elementwise.h"

namespace rb::RB_NS {

constexpr int kQueries = 8;

struct AttentionPlan {
  int64_t row_step, row_ranges, head_step, head_ranges;
};

struct Query {
  const float* q;
  float* scores;  // [16 (last_block - first_block + 1)], later the weights
  float* sum;     // [head_dim]
  int32_t first, last;
};

struct Batch {
  Query query[kQueries];
  int count;
  int32_t first_block, last_block;
  const int32_t* table;
  int64_t kv_head;
};

// Few rows: one query a task, so that every thread has work. Else enough rows to fill a batch with the heads that share keys.
static AttentionPlan attention_plan(const rb_attention& a, int64_t rows) {
  const int64_t shared = a.heads / a.kv_heads;
  AttentionPlan p{1, rows, shared < kQueries ? shared : kQueries, 1};
  if (rows * a.kv_heads < 8)
    p.head_step = 1;
  else if (shared < kQueries)
    p.row_step = kQueries / shared;
  p.row_ranges = (rows + p.row_step - 1) / p.row_step;
  p.head_ranges = (shared + p.head_step - 1) / p.head_step;
  return p;
}

// Scores a query needs room for: its window, what the other rows of the batch add, and the rest of the blocks at both ends.
static int64_t score_room(const rb_attention& a) {
  const int64_t all = (a.max_positions + int64_t{15}) / 16 * 16;
  const int64_t windowed = (a.window + int64_t{kQueries} + 15) / 16 * 16 + 16;
  return a.window > 0 && windowed < all ? windowed : all;
}

template <int N>
RB_INLINE void block_scores(const Batch& b, const uint16_t* keys, int head_dim, F* s) {
  RB_UNROLL for (int i = 0; i < N; ++i) s[i] = set1(0.0f);
  for (int d = 0; d < head_dim; ++d) {
    const F k = load_half(keys + 16 * d);
    RB_UNROLL for (int i = 0; i < N; ++i) s[i] = fma(set1(b.query[i].q[d]), k, s[i]);
  }
}

// Lanes that stand for positions first..last of a block that begins at `base`; the others become -infinity.
RB_INLINE F visible(F s, int32_t base, const Query& q) {
  static constexpr float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  if (base >= q.first && base + 15 <= q.last) return s;
  const F lane = load(lanes), never = set1(-__builtin_inff());
  const F from_first = select(lt(lane, set1(static_cast<float>(q.first - base))), never, s);
  return select(lt(set1(static_cast<float>(q.last - base)), lane), never, from_first);
}

template <int N>
static void score_pass(const rb_attention& a, const Batch& b) {
  for (int32_t block = b.first_block; block <= b.last_block; ++block) {
    assert(b.table[block] >= 0 && b.table[block] < a.blocks);
    F s[N];
    block_scores<N>(b, a.keys + (b.table[block] * int64_t{a.kv_heads} + b.kv_head) * a.head_dim * 16, a.head_dim, s);
    RB_UNROLL for (int i = 0; i < N; ++i) {
      F v = mul(s[i], set1(a.scale));
      if (a.softcap > 0.0f) v = softcap(v, a.softcap);
      store(b.query[i].scores + (block - b.first_block) * 16, visible(v, block * 16, b.query[i]));
    }
  }
}

// Scores -> weights exp(s - max); returns their total. Hidden lanes become +0, which changes no sum.
static float weight_pass(const Query& q, int blocks) {
  F top = load(q.scores), total = set1(0.0f);
  for (int i = 1; i < blocks; ++i) top = max(top, load(q.scores + 16 * i));
  const F largest = set1(max_lanes(top));
  for (int i = 0; i < blocks; ++i) {
    const F p = exp(sub(load(q.scores + 16 * i), largest));
    store(q.scores + 16 * i, p);
    total = add(total, p);
  }
  return sum_lanes(total);
}

// sum[d] of queries 0..N-1 over positions from..to, V vectors of dimensions from d on.
template <int N, int V>
RB_INLINE void value_columns(const rb_attention& a, const Batch& b, const Query* query, int32_t from, int32_t to,
                             int d) {
  F sum[N][V];
  RB_UNROLL for (int i = 0; i < N; ++i) {
    RB_UNROLL for (int v = 0; v < V; ++v) sum[i][v] = load(query[i].sum + d + 16 * v);
  }
  for (int32_t j = from; j <= to;) {
    const int32_t block_end = j / 16 * 16 + 15, end = block_end < to ? block_end : to;
    const uint16_t* values =
        a.values + ((b.table[j / 16] * int64_t{a.kv_heads} + b.kv_head) * 16 + j % 16) * a.head_dim + d;
    for (; j <= end; ++j, values += a.head_dim) {
      F x[V];
      RB_UNROLL for (int v = 0; v < V; ++v) x[v] = load_half(values + 16 * v);
      RB_UNROLL for (int i = 0; i < N; ++i) {
        const F p = set1(query[i].scores[j - b.first_block * 16]);
        RB_UNROLL for (int v = 0; v < V; ++v) sum[i][v] = fma(p, x[v], sum[i][v]);
      }
    }
  }
  RB_UNROLL for (int i = 0; i < N; ++i) {
    RB_UNROLL for (int v = 0; v < V; ++v) store(query[i].sum + d + 16 * v, sum[i][v]);
  }
}

template <int N>
static void value_range(const rb_attention& a, const Batch& b, const Query* query, int32_t from, int32_t to) {
  constexpr int V =
      N <= 4 ? 4
             : 2;  // N V sums and V values: 8 to 18 of 32 registers, 4 to 16 chains against a latency of 4 on two ports
  if (from > to) return;
  int d = 0;
  for (; d + 16 * V <= a.head_dim; d += 16 * V) value_columns<N, V>(a, b, query, from, to, d);
  for (; d < a.head_dim; d += 16) value_columns<N, 1>(a, b, query, from, to, d);
}

// The positions every query sees are done together, those before and after by each alone, in ascending order for each.
template <int N>
static void value_pass(const rb_attention& a, const Batch& b) {
  int32_t from = b.query[0].first, to = b.query[0].last;
  for (int i = 1; i < N; ++i) {
    from = b.query[i].first > from ? b.query[i].first : from;
    to = b.query[i].last < to ? b.query[i].last : to;
  }
  if (from > to) {  // a window shorter than the batch: nothing is shared
    for (int i = 0; i < N; ++i) value_range<1>(a, b, b.query + i, b.query[i].first, b.query[i].last);
    return;
  }
  for (int i = 0; i < N; ++i) value_range<1>(a, b, b.query + i, b.query[i].first, from - 1);
  value_range<N>(a, b, b.query, from, to);
  for (int i = 0; i < N; ++i) value_range<1>(a, b, b.query + i, to + 1, b.query[i].last);
}

template <int N>
static void attend(const rb_attention& a, const Batch& b) {
  score_pass<N>(a, b);
  for (int i = 0; i < N; ++i) {
    const Query& q = b.query[i];
    const F total = set1(weight_pass(q, b.last_block - b.first_block + 1));
    memset(q.sum, 0, static_cast<size_t>(a.head_dim) * sizeof(float));
    store(q.sum + a.head_dim, total);
  }
  value_pass<N>(a, b);
  for (int i = 0; i < N; ++i) {
    float* sum = b.query[i].sum;
    const F total = load(sum + a.head_dim);
    for (int d = 0; d < a.head_dim; d += 16) store(sum + d, div(load(sum + d), total));
  }
}

static void attend_batch(const rb_attention& a, const Batch& b) {
  switch (b.count) {
    case 1:
      return attend<1>(a, b);
    case 2:
      return attend<2>(a, b);
    case 3:
      return attend<3>(a, b);
    case 4:
      return attend<4>(a, b);
    case 5:
      return attend<5>(a, b);
    case 6:
      return attend<6>(a, b);
    case 7:
      return attend<7>(a, b);
    default:
      return attend<8>(a, b);
  }
}

// The head's result, plain and quantized; out or outq may be NULL, outq needs head_dim % 32 == 0.
RB_INLINE void put_head(const rb_attention& a, int64_t row, int64_t head, const float* y) {
  if (a.out != nullptr)
    memcpy(a.out + row * a.out_stride + head * a.head_dim, y, static_cast<size_t>(a.head_dim) * sizeof(float));
  if (a.outq == nullptr) return;
  const int width = a.heads * a.head_dim;
  const QuantizedRow out = QuantizedRow::at(a.outq + static_cast<size_t>(row) * rb_quantized_stride(width), width);
  const int first = static_cast<int>(head) * (a.head_dim / 32);
  for (int g = 0; g < a.head_dim / 32; ++g) out.put(first + g, load(y + 32 * g), load(y + 32 * g + 16));
}

// Rows row..row+rows-1 follow each other in one sequence; heads head..head+heads-1 share keys.
static void attention_batch(const rb_attention& a, const rb_step* step, int64_t row, int64_t rows, int64_t head,
                            int64_t heads, float* scratch) {
  const int64_t room = score_room(a);
  Batch b;
  b.count = 0;
  b.table = step->tables + static_cast<int64_t>(step->sequences[row]) * step->table_stride;
  b.kv_head = head / (a.heads / a.kv_heads);
  for (int64_t r = row; r < row + rows; ++r) {
    const int32_t last = step->positions[r], first = a.window > 0 && last >= a.window ? last - a.window + 1 : 0;
    for (int64_t h = head; h < head + heads; ++h, ++b.count) {
      float* own = scratch + b.count * (room + a.head_dim + 16);
      b.query[b.count] = {a.q + r * a.q_stride + h * a.head_dim, own, own + room, first, last};
    }
  }
  b.first_block = b.query[0].first / 16;
  b.last_block = b.query[b.count - 1].last / 16;
  assert((b.last_block - b.first_block + 1) * 16 <= room);
  attend_batch(a, b);
  for (int64_t r = row, i = 0; r < row + rows; ++r) {
    for (int64_t h = head; h < head + heads; ++h, ++i) put_head(a, r, h, b.query[i].sum);
  }
}

static int64_t attention_tasks(const rb_args* a, const rb_step* step) {
  const AttentionPlan p = attention_plan(a->attention, step->rows);
  return p.row_ranges * a->attention.kv_heads * p.head_ranges;
}

static size_t attention_scratch(const rb_args* a, int32_t) {
  return static_cast<size_t>(kQueries * (score_room(a->attention) + a->attention.head_dim + 16)) * sizeof(float);
}

static void attention_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void* scratch) {
  const rb_attention& a = args->attention;
  const AttentionPlan p = attention_plan(a, step->rows);
  assert(a.head_dim % 16 == 0 && (a.outq == nullptr || a.head_dim % 32 == 0));
  const int64_t shared = a.heads / a.kv_heads;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t row = task / (a.kv_heads * p.head_ranges) * p.row_step, rest = task % (a.kv_heads * p.head_ranges);
    const int64_t in_group = rest % p.head_ranges * p.head_step, head = rest / p.head_ranges * shared + in_group;
    const int64_t heads = shared - in_group < p.head_step ? shared - in_group : p.head_step;
    const int64_t row_end = row + p.row_step < step->rows ? row + p.row_step : step->rows;
    for (int64_t r = row; r < row_end;) {
      int64_t n = 1;
      while (r + n < row_end && step->sequences[r + n] == step->sequences[r] &&
             step->positions[r + n] == step->positions[r] + n)
        ++n;
      attention_batch(a, step, r, n, head, heads, static_cast<float*>(scratch));
      r += n;
    }
  }
}

}  // namespace rb::RB_NS
