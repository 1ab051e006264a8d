// matmul.h: y = x wT (+ bias) (+ residual), one inner kernel for every weight format and 1..kPanelRows rows.
//
// Each y is one chain over ascending k (rebar.h), so rows and threads cannot change it. A task is (tiles x rows). Its rows are first laid
// out as panels: what the inner loop reads of kPanelRows rows, group by group, behind one pointer, with the integer offset or the minimum's
// factor worked out. A weight group is unpacked once per panel; a tile (5-15 KB) stays in L1 while the panels stream from L2.
#pragma once
#include "cpu/matmul_group.h"
#include "cpu/matmul_plan.h"

namespace rb::RB_NS {

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

// Dots of R rows with a group, step by step over all rows, so that no dot waits for itself: 15 % of the time on a Xeon of 2025.
template <int MaxQ, int R>
RB_INLINE void dots(I* sum, const Group& w, const int8_t* q) {
  if constexpr (kLanes > 1) {
    RB_UNROLL for (int s = 0; s < 8; ++s) {
      RB_UNROLL for (int r = 0; r < R; ++r) sum[r] = dot<1, MaxQ>(sum[r], w.w + s, q + 32 * r + 4 * s);
    }
  } else {
    RB_UNROLL for (int r = 0; r < R; ++r) sum[r] = dot<8, MaxQ>(sum[r], w.w, q + 32 * r);
  }
}

// All R rows' part of a group with one scale: acc + dw (D dx), then + m (dx sum).
template <int Type, int R>
RB_INLINE void add_whole_group(F* acc, const Group& w, const int8_t* q, const float* dx, const int32_t* extra) {
  using T = Traits<Type, true>;
  I sum[R];
  RB_UNROLL for (int r = 0; r < R; ++r) sum[r] = set1(T::offset != 0 ? extra[r] : kUnitBits);
  dots<T::max_q, R>(sum, w, q);
  RB_UNROLL for (int r = 0; r < R; ++r) {
    acc[r] = fma(fma(float_bits(sum[r]), set1(dx[2 * r]), set1(dx[2 * r + 1])), w.d[0], acc[r]);
    acc[r] = add_minimum<T>(acc[r], w, extra + r);
  }
}

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

// Rounding errors of a chain grow with its length: chains of RB_FLOAT_CHAIN inputs, added up, keep float32 gradients of a whole model
// within 1e-4 of torch's, for one addition in 65.
template <int Type, int R>
RB_INLINE void float_products(const uint8_t* tile, const float* panel, int k, F* acc) {
  for (int begin = 0; begin < k; begin += RB_FLOAT_CHAIN) {
    const int end = begin + RB_FLOAT_CHAIN < k ? begin + RB_FLOAT_CHAIN : k;
    F chain[R];
    RB_UNROLL for (int r = 0; r < R; ++r) chain[r] = set1(0.0f);
    for (int i = begin; i < end; ++i, tile += kFormats[Type].packed_bytes, panel += R) {
      const F w = load_weights<Type>(tile);
      RB_UNROLL for (int r = 0; r < R; ++r) chain[r] = fma(set1(panel[r]), w, chain[r]);
    }
    RB_UNROLL for (int r = 0; r < R; ++r) acc[r] = add(acc[r], chain[r]);
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
