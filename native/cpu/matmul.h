// matmul.h: y = x wT (+ bias) (+ residual), one inner kernel for every weight format and 1..kPanelRows rows.
//
// Each y is one chain over ascending k (rebar.h), so rows and threads cannot change it. A task is (tiles x rows). Its rows are first laid
// out as panels: what the inner loop reads of kPanelRows rows, group by group, behind one pointer, with the integer offset or the minimum's
// factor worked out. A weight group is unpacked once per panel; a tile (5-15 KB) stays in L1 while the panels stream from L2.
#pragma once
#include "cpu/rows.h"
#include "cpu/tiles.h"

namespace rb::RB_NS {

// A group of 16 outputs x 32 inputs, ready for the dot product: w[s] holds inputs 4s..4s+3 of every output.
struct Group {
  B w[8];
  F d[2];  // scale of inputs 0..15 and 16..31; only Q6_K tells them apart
  F m;
};

// Whole: activations with one scale for all 32 inputs of a group.
template <int Type, bool Whole>
struct Traits {
  static constexpr TileShape shape = kTiles[Type];
  static constexpr bool minimum = shape.m >= 0;
  static constexpr bool halves = Type == RB_Q6_K;
  static constexpr int max_q = shape.wide ? 255 : shape.upper >= 0 ? 63 : shape.fifth >= 0 ? 31 : 15;
  static constexpr int offset = Type == RB_Q8_0   ? kByteOffset
                                : Type == RB_Q4_0 ? 8
                                : Type == RB_Q5_0 ? 16
                                : Type == RB_Q6_K ? 32
                                                  : 0;
  // Panel bytes of a row's group: 32 quants, two scales (Whole: the scale and -kUnit of them), and the minimum's factor or
  // where dots begin: minus the offsets' part, plus kUnitBits when Whole.
  static constexpr int extras = minimum || Whole ? 1 : 2;
  static constexpr int panel_bytes = 32 + 8 + 4 * extras;
};

template <int Type>
RB_INLINE void load_quants(const uint8_t* group, B* w) {
  constexpr TileShape t = kTiles[Type];
  if constexpr (t.wide) {
    RB_UNROLL for (int s = 0; s < 8; ++s) w[s] = wide_bytes(load_bytes(group + 64 * s));
    return;
  }
  const B low = set1_bytes(15);
  RB_UNROLL for (int s = 0; s < 4; ++s) {
    const B both = load_bytes(group + 64 * s);
    w[s] = bit_and(both, low);
    w[s + 4] = bit_and(shr<4>(both), low);
  }
  if constexpr (t.fifth >= 0) {
    RB_UNROLL for (int s = 0; s < 8; ++s) w[s] = bit_or(w[s], fifth_bits(group + t.fifth + 8 * s));
  }
  if constexpr (t.upper >= 0) {
    const B two = set1_bytes(0x30);
    RB_UNROLL for (int h = 0; h < 2; ++h) {
      const B upper = load_bytes(group + t.upper + 64 * h);
      w[h] = bit_or(w[h], bit_and(shl<4>(upper), two));
      w[h + 2] = bit_or(w[h + 2], bit_and(shl<2>(upper), two));
      w[h + 4] = bit_or(w[h + 4], bit_and(upper, two));
      w[h + 6] = bit_or(w[h + 6], bit_and(shr<2>(upper), two));
    }
  }
}

template <int Type>
RB_INLINE void load_scales(const uint8_t* block, const uint8_t* group, Group& out) {
  constexpr TileShape t = kTiles[Type];
  const F d = load_half(reinterpret_cast<const uint16_t*>(block + t.d));
  out.d[0] = d;
  if constexpr (t.upper >= 0) {
    out.d[0] = mul(d, load_s8(reinterpret_cast<const int8_t*>(group + t.sc)));
    out.d[1] = mul(d, load_s8(reinterpret_cast<const int8_t*>(group + t.sc + 16)));
  } else if constexpr (t.sc >= 0) {
    out.d[0] = mul(d, load_u8(group + t.sc));
  }
  if constexpr (t.m >= 0) {
    out.m = load_half(reinterpret_cast<const uint16_t*>(block + t.m));
    if constexpr (t.mn >= 0) out.m = sub(set1(0.0f), mul(out.m, load_u8(group + t.mn)));
  }
}

template <class T>
RB_INLINE F add_minimum(F acc, const Group& w, const int32_t* extra) {
  if constexpr (T::minimum) {
    float factor;
    memcpy(&factor, extra, 4);
    acc = fma(w.m, set1(factor), acc);
  }
  return acc;
}

// One row's part of a group; low and high are the exact dots of inputs 0..15 and 16..31, offsets taken off:
// acc + dw (low dx0 + high dx1), then + m (dx0 sum0 + dx1 sum1). Q6_K: acc + low (dw0 dx0), then + high (dw1 dx1).
template <int Type>
RB_INLINE F add_group(F acc, const Group& w, const int8_t* q, const float* dx, const int32_t* extra) {
  using T = Traits<Type, false>;
  const bool offset = T::offset != 0;
  const F low = to_float(dot<4, T::max_q>(set1(offset ? extra[0] : int32_t{0}), w.w, q));
  const F high = to_float(dot<4, T::max_q>(set1(offset ? extra[1] : int32_t{0}), w.w + 4, q + 16));
  if constexpr (T::halves) {
    acc = fma(low, mul(w.d[0], set1(dx[0])), acc);
    return fma(high, mul(w.d[1], set1(dx[1])), acc);
  }
  return add_minimum<T>(fma(fma(high, set1(dx[1]), mul(low, set1(dx[0]))), w.d[0], acc), w, extra);
}

// A dot D that begins at the bits of kUnit = 1.5 2^23 ends as the float kUnit + D, for |D| < 2^22 (it is at most 32 * 128 * 127).
// Scales for 32 inputs have 22 bits, so kUnit dx is exact and fma(kUnit + D, dx, -kUnit dx) is D dx rounded once: what a
// conversion and a product would give, in one instruction of eleven a row and group instead of two of twelve.
constexpr float kUnit = 12582912.0f;
constexpr int32_t kUnitBits = 0x4b400000;

// All R rows' part of a group with one scale: acc + dw (D dx), then + m (dx sum). Step by step over all rows, so that no dot waits
// for itself.
template <int Type, int R>
RB_INLINE void add_whole_group(F* acc, const Group& w, const int8_t* q, const float* dx, const int32_t* extra) {
  using T = Traits<Type, true>;
  I sum[R];
  RB_UNROLL for (int r = 0; r < R; ++r) sum[r] = set1(T::offset != 0 ? extra[r] : kUnitBits);
  RB_UNROLL for (int s = 0; s < 8; ++s) {
    RB_UNROLL for (int r = 0; r < R; ++r) sum[r] = dot<1, T::max_q>(sum[r], w.w + s, q + 32 * r + 4 * s);
  }
  RB_UNROLL for (int r = 0; r < R; ++r) {
    acc[r] = fma(fma(float_bits(sum[r]), set1(dx[2 * r]), set1(dx[2 * r + 1])), w.d[0], acc[r]);
    acc[r] = add_minimum<T>(acc[r], w, extra + r);
  }
}

// Weights come from memory in one stream. One or two rows eat it as fast as the hardware reads ahead (39 of 41 GB/s with two
// threads; asking as well costs a tenth); from three rows on a group takes so long that the hardware stops looking, and its
// lines are asked for 2 KB early, about 80 ns at 25 GB/s: a fifth of the time of eight rows.
constexpr int kPrefetchBytes = 2048, kPrefetchRows = 3;
RB_INLINE void prefetch(const uint8_t* p) { __builtin_prefetch(p, 0, 3); }

template <int Type, bool Whole, int R>
RB_INLINE void block_products(const uint8_t* tile, const uint8_t* panel, int k, F* acc) {
  using T = Traits<Type, Whole>;
  constexpr int per_block = kFormats[Type].block / 32;
  for (int in_block = 0, left = k / 32; left > 0; --left) {
    Group w;
    const uint8_t* group = tile + T::shape.first_group + in_block * T::shape.group_bytes;
    if constexpr (R >= kPrefetchRows) {
      for (int i = 0; i < T::shape.group_bytes; i += 64) prefetch(group + kPrefetchBytes + i);
    }
    load_quants<Type>(group, w.w);
    load_scales<Type>(tile, group, w);
    const int8_t* q = reinterpret_cast<const int8_t*>(panel);
    const float* dx = reinterpret_cast<const float*>(panel + 32 * R);
    const int32_t* extra = reinterpret_cast<const int32_t*>(panel + 40 * R);
    if constexpr (Whole) {
      add_whole_group<Type, R>(acc, w, q, dx, extra);
    } else {
      RB_UNROLL for (int r = 0; r < R; ++r) {
        acc[r] = add_group<Type>(acc[r], w, q + 32 * r, dx + 2 * r, extra + T::extras * r);
      }
    }
    panel += T::panel_bytes * R;
    if (++in_block == per_block) {
      in_block = 0;
      tile += kFormats[Type].packed_bytes;
    }
  }
}

template <int Type>
RB_INLINE F load_weights(const uint8_t* w) {
  if constexpr (Type == RB_F32)
    return load(reinterpret_cast<const float*>(w));
  else if constexpr (Type == RB_F16)
    return load_half(reinterpret_cast<const uint16_t*>(w));
  else
    return load_bf16(reinterpret_cast<const uint16_t*>(w));
}

template <int Type, int R>
RB_INLINE void float_products(const uint8_t* tile, const float* panel, int k, F* acc) {
  for (int i = 0; i < k; ++i, tile += kFormats[Type].packed_bytes, panel += R) {
    const F w = load_weights<Type>(tile);
    RB_UNROLL for (int r = 0; r < R; ++r) acc[r] = fma(set1(panel[r]), w, acc[r]);
  }
}

using TileRows = void (*)(const rb_matmul&, int64_t tile, int64_t row, const uint8_t* panel);

// One tile for the R rows of a panel.
template <int Type, bool Whole, int R>
static void tile_rows(const rb_matmul& a, int64_t tile, int64_t row, const uint8_t* panel) {
  F acc[R];
  RB_UNROLL for (int r = 0; r < R; ++r) acc[r] = set1(0.0f);
  const uint8_t* data = static_cast<const uint8_t*>(a.w.data) + tile * tile_bytes(Type, a.w.k);
  if constexpr (is_float(Type))
    float_products<Type, R>(data, reinterpret_cast<const float*>(panel), a.w.k, acc);
  else
    block_products<Type, Whole, R>(data, panel, a.w.k, acc);
  const int64_t first = tile * 16;
  const int lanes = a.w.n - first < 16 ? static_cast<int>(a.w.n - first) : 16;
  RB_UNROLL for (int r = 0; r < R; ++r) {
    F y = acc[r];
    if (a.bias != nullptr) y = add(y, load(a.bias + first, lanes));
    if (a.residual != nullptr) y = add(y, load(a.residual + (row + r) * a.residual_stride + first, lanes));
    store(a.y + (row + r) * a.y_stride + first, y, lanes);
  }
}

template <int Type, bool Whole>
struct Panels {  // tile_rows for 1..kPanelRows rows
  TileRows run[kPanelRows + 1];
  constexpr Panels() : run{} { set<kPanelRows>(); }
  template <int R>
  constexpr void set() {
    run[R] = tile_rows<Type, Whole, R>;
    if constexpr (R > 1) set<R - 1>();
  }
};

template <bool Whole>
RB_INLINE float minimum_factor(const float* d, const int32_t* sum) {
  if constexpr (Whole) return d[0] * static_cast<float>(sum[0] + sum[1]);
  const float low = d[0] * static_cast<float>(sum[0]);
  return low + d[1] * static_cast<float>(sum[1]);
}

// Panels of rows row..row+count-1; block formats [group]{[count][32] q, [count][2] d, [count][extras]}, float formats [k][count] x.
template <int Type, bool Whole>
static void fill_panel(const rb_matmul& a, int64_t row, int count, uint8_t* panel) {
  using T = Traits<Type, Whole>;
  const int k = a.w.k;
  for (int r = 0; r < count; ++r) {
    if constexpr (is_float(Type)) {
      float* out = reinterpret_cast<float*>(panel) + r;
      for (int64_t i = 0; i < k; ++i) out[i * count] = a.x[(row + r) * a.x_stride + i];
      continue;
    }
    const uint8_t* q = a.xq + static_cast<size_t>(row + r) * rb_quantized_stride(k);
    const float* d = reinterpret_cast<const float*>(q + k);
    const int32_t* sum = reinterpret_cast<const int32_t*>(q + k + k / 16 * 4);
    uint8_t* out = panel;
    for (int g = 0; g < k / 32; ++g, out += T::panel_bytes * count) {
      memcpy(out + 32 * r, q + 32 * g, 32);
      const float scales[2] = {d[2 * g], Whole ? -kUnit * d[2 * g] : d[2 * g + 1]};
      memcpy(out + 32 * count + 8 * r, scales, 8);
      int32_t extra[2] = {-T::offset * sum[2 * g], -T::offset * sum[2 * g + 1]};
      if constexpr (Whole) extra[0] += extra[1] + kUnitBits;
      const float factor = minimum_factor<Whole>(d + 2 * g, sum + 2 * g);
      if constexpr (T::minimum) memcpy(extra, &factor, 4);
      memcpy(out + 40 * count + 4 * T::extras * r, extra, 4 * T::extras);
    }
  }
}

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

template <int Type, bool Whole>
static void run_tasks(const rb_matmul& a, const MatmulPlan& p, int64_t begin, int64_t end, uint8_t* scratch) {
  static constexpr Panels<Type, Whole> by_rows{};
  const int64_t panel_bytes = panel_row_bytes(a.w) * kPanelRows;
  int64_t filled;
  memcpy(&filled, scratch, sizeof filled);
  for (int64_t task = begin; task < end; ++task) {
    const MatmulTask t = task_of(p, task);
    const auto count = [&](int64_t r) {
      return static_cast<int>(t.row_end - r < kPanelRows ? t.row_end - r : kPanelRows);
    };
    const auto panel = [&](int64_t r) { return scratch + kScratchHead + (r - t.row) / kPanelRows * panel_bytes; };
    if (filled != t.row + 1) {
      for (int64_t r = t.row; r < t.row_end; r += kPanelRows) fill_panel<Type, Whole>(a, r, count(r), panel(r));
    }
    filled = t.row + 1;
    for (int64_t tile = t.tile; tile < t.tile_end; ++tile) {
      for (int64_t r = t.row; r < t.row_end; r += kPanelRows) by_rows.run[count(r)](a, tile, r, panel(r));
    }
  }
  memcpy(scratch, &filled, sizeof filled);
}

static int64_t matmul_tasks(const rb_args* a, const rb_step* step) {
  const MatmulPlan p = plan_of(a->matmul.w, domain_rows(step, a->matmul.domain));
  return p.rows > 0 ? p.row_ranges * p.tile_ranges : 0;
}

static size_t matmul_scratch(const rb_args* a, int32_t max_rows) {
  const int64_t most = most_rows(a->matmul.w), wanted = whole_panels(max_rows);
  return static_cast<size_t>(kScratchHead + (wanted < most ? wanted : most) * panel_row_bytes(a->matmul.w));
}

template <int Type>
static void run_type(const rb_matmul& a, const MatmulPlan& p, int64_t begin, int64_t end, uint8_t* scratch) {
  if constexpr (!is_float(Type) && Type != RB_Q6_K) {
    if (a.group == 32) return run_tasks<Type, true>(a, p, begin, end, scratch);
  }
  run_tasks<Type, false>(a, p, begin, end, scratch);
}

static void matmul_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void* scratch) {
  const rb_matmul& a = args->matmul;
  const MatmulPlan p = plan_of(a.w, domain_rows(step, a.domain));
  uint8_t* s = static_cast<uint8_t*>(scratch);
  switch (a.w.type) {
    case RB_F32:
      return run_type<RB_F32>(a, p, begin, end, s);
    case RB_F16:
      return run_type<RB_F16>(a, p, begin, end, s);
    case RB_BF16:
      return run_type<RB_BF16>(a, p, begin, end, s);
    case RB_Q8_0:
      return run_type<RB_Q8_0>(a, p, begin, end, s);
    case RB_Q4_0:
      return run_type<RB_Q4_0>(a, p, begin, end, s);
    case RB_Q4_1:
      return run_type<RB_Q4_1>(a, p, begin, end, s);
    case RB_Q5_0:
      return run_type<RB_Q5_0>(a, p, begin, end, s);
    case RB_Q5_1:
      return run_type<RB_Q5_1>(a, p, begin, end, s);
    case RB_Q4_K:
      return run_type<RB_Q4_K>(a, p, begin, end, s);
    case RB_Q5_K:
      return run_type<RB_Q5_K>(a, p, begin, end, s);
    default:
      return run_type<RB_Q6_K>(a, p, begin, end, s);
  }
}

}  // namespace rb::RB_NS
