// rebar_training.h: launches of the way back, of loss and optimizer. Part of rebar.h, which includes it.
//
// The law: a launch of the way back adds into the gradients it names and overwrites nothing. Each element of a gradient is one chain
// of fused multiply-adds that begins at what stands there, where nothing else is said. Padding rows of packed gradients (outputs n.. of the last tile) stay as they
// are, whatever the inputs. A training step holds whole sequences: the rows of one are its positions 0, 1, 2, ...
#pragma once
#include "rebar.h"

// dx[r,i] += scale dy[r,:] w[:,i]; w of any format, read as the values it stands for. Chains of RB_GRADIENT_CHAIN outputs, each
// fma(scale * dy[r,j], w[j,i], chain) from 0 over ascending j; dx = dx + chain, ascending. One chain over the 49,152 outputs of a head
// loses a digit.
#define RB_GRADIENT_CHAIN 128
typedef struct {
  rb_matrix w;
  const float* dy;
  float* dx;
  int32_t dy_stride, dx_stride, domain;
  float scale;
} rb_matmul_input_gradient;

// dw[j,i] = fma(scale * dy[r,j], x[r,i], dw[j,i]) over ascending r; dw F32, packed.
typedef struct {
  rb_matrix dw;
  const float* x;
  const float* dy;
  int32_t x_stride, dy_stride, domain;
  float scale;
} rb_matmul_weight_gradient;

// db[j] += dy[r,j] over ascending r.
typedef struct {
  const float* dy;
  float* db;
  int32_t dy_stride, n, domain;
} rb_sum_rows;

// y = fma(scale, x, y).
typedef struct {
  const float* x;
  float* y;
  int32_t x_stride, y_stride, n, domain;
  float scale;
} rb_add_into;

// y = 0.
typedef struct {
  float* y;
  int32_t y_stride, n, domain;
} rb_zero;

// dw[ids[r],i] = fma(scale, dy[r,i], dw[ids[r],i]) over ascending r; dw F32, packed.
typedef struct {
  rb_matrix dw;
  const float* dy;
  int32_t dy_stride;
  float scale;
} rb_embed_gradient;

// Of y = x s weight, s = 1 / sqrt(sum / n + eps), a slice of n values: g = weight dy; c = (sum of g x) / n, summed as rms_norm sums
// squares; f = (s s) c; dx = fma(fma(-f, x, g), s, dx). dweight[i] = fma(x s, dy, dweight[i]) over ascending rows, then slices.
// dx or dweight may be NULL.
typedef struct {
  const float* x;
  const float* weight;
  const float* dy;
  float* dx;
  float* dweight;
  int32_t x_stride, dy_stride, dx_stride, n, groups;
  float eps;
  int32_t domain;
} rb_rms_norm_gradient;

// dx0 = fma(dy1, sin, fma(dy0, cos, dx0)), dx1 = fma(dy1, cos, fma(-dy0, sin, dx1)); elements dim.. are added.
typedef struct {
  const float* dy;
  float* dx;
  const float* table;
  int32_t dy_stride, dx_stride, heads, head_dim, dim, table_rows;
} rb_rope_gradient;

// Of y = act(a) b, x = [a | b], dx = [da | db], with s = 1 / (1 + e^-u), act = a / (1 + e^-u): da = fma(dy b, act', da),
// db = fma(dy, act, db). silu: u = a, act' = fma(act, 1 - s, s). gelu: u = 2 sqrt(2/pi) (a + 0.044715 a^3),
// act' = fma(act (1 - s), u', s), u' = 2 sqrt(2/pi) (1 + 0.134145 a^2) (a^2 at most 2^60: beyond, act (1 - s) is 0).
typedef struct {
  const float* x;
  const float* dy;
  float* dx;
  int32_t x_stride, dy_stride, dx_stride, n, act, domain;
} rb_gated_gradient;

// dx[logit_index[i],:] += dy[i,:]; no row is named twice.
typedef struct {
  const float* dy;
  float* dx;
  int32_t dy_stride, dx_stride, n;
} rb_select_gradient;

// Of y = cap tanh(x / cap): with t = y / cap, dx = fma(dy, fma(-t, t, 1), dx).
typedef struct {
  const float* y;
  const float* dy;
  float* dx;
  int32_t y_stride, dy_stride, dx_stride, n, domain;
  float cap;
} rb_softcap_gradient;

// loss[r] = log(L) + (m - x[target]), 0 for a negative target: m the largest of n logits (at least -FLT_MAX), L the sum of
// exp(x - m), +0 below e^-87, in lanes i % 16 over ascending i, lanes as a binary tree. Targets are below n.
typedef struct {
  const float* logits;
  const int32_t* targets;
  float* loss;
  int32_t logits_stride, loss_stride, n, domain;
} rb_cross_entropy;

// dlogits[r,i] = fma(dloss[r], p_i - [i is the target], dlogits[r,i]), p_i = exp(x_i - m) (1 / L); nothing for a negative target.
typedef struct {
  const float* logits;
  const int32_t* targets;
  const float* dloss;
  float* dlogits;
  int32_t logits_stride, dloss_stride, dlogits_stride, n, domain;
} rb_cross_entropy_gradient;

// sums[c] = sum of x^2 over piece c of RB_SQUARE_PIECE values: of each RB_SQUARE_RUN as rms_norm sums squares, these added in
// ascending order.
#define RB_SQUARE_PIECE 65536
#define RB_SQUARE_RUN 4096
typedef struct {
  const float* x;
  float* sums;
  int64_t n;
} rb_square_sums;

// hyper: clip, rate, decay, beta1, beta2, eps, bias1, bias2, read when the launch runs. g = clip * gradient; m = fma(1 - beta1, g,
// beta1 m); v = fma((1 - beta2) g, g, beta2 v); x = fma(-(rate decay), x, x); x = fma(-rate, (m / bias1) / (sqrt(v / bias2) + eps), x).
typedef struct {
  float* x;
  const float* gradient;
  float* m;
  float* v;
  const float* hyper;
  int64_t n;
} rb_adamw;

// hyper: clip, rate, decay, momentum. m = fma(momentum, m, fma(decay, x, clip * gradient)); x = fma(-rate, m, x).
typedef struct {
  float* x;
  const float* gradient;
  float* m;
  const float* hyper;
  int64_t n;
} rb_sgd;

// Of attention over a training step's own positions, cache f16 or f32. With s = scale q.k (then capped), m the row's largest score,
// P = exp(s - m) (1 / L) with L summed in lanes j % 16 over ascending blocks, lanes as a binary tree, and D the sum of out * dout
// (summed as rms_norm sums squares): ds = P (dout.v - D), with a cap times fma(-t, t, 1), t = s / cap; e = scale ds. Dots are
// chains over ascending d from 0. dq[d] = fma(e, k[d], dq[d]) over ascending positions; dk[d] = fma(e, q[d], dk[d]) and
// dv[d] = fma(P, dout[d], dv[d]) over the rows of a part, then the query heads of the kv head. head_dim % 16 == 0.
// A sequence of n rows has T = min(RB_ATTENTION_PARTS, n / RB_ATTENTION_PART_ROWS) parts, at least one: with c = ceil(n / 2T), part t is
// its t-th and then its (2T-1-t)-th run of c rows, which is equal work under a causal mask. dk and dv of part 0 go on from what stands
// there, those of the others from 0 in `parts`; attention_gradient_merge, given the same struct, adds them in ascending order.
// parts: [rb_attention_parts(max_positions)][rows of the step][dk | dv], NULL where there are none.
#define RB_ATTENTION_PARTS 4
#define RB_ATTENTION_PART_ROWS 256
typedef struct {
  const float* q;
  const uint8_t* cache;
  const float* out;
  const float* dout;
  float* dq;
  float* dk;
  float* dv;
  float* parts;
  int64_t block_stride;
  int32_t kv_type, q_stride, out_stride, dout_stride, dq_stride, dk_stride, dv_stride;
  int32_t heads, kv_heads, head_dim, window, max_positions, blocks;
  float scale, softcap;
} rb_attention_gradient;
// Parts beside the first of the longest sequence.
int64_t rb_attention_parts(int32_t max_positions);

// What they add to rb_op and rb_args.
#define RB_TRAINING_OPS                                                                                    \
  RB_OP_MATMUL_INPUT_GRADIENT, RB_OP_MATMUL_WEIGHT_GRADIENT, RB_OP_SUM_ROWS, RB_OP_ADD_INTO, RB_OP_ZERO,   \
      RB_OP_EMBED_GRADIENT, RB_OP_RMS_NORM_GRADIENT, RB_OP_ROPE_GRADIENT, RB_OP_ATTENTION_GRADIENT,        \
      RB_OP_ATTENTION_GRADIENT_MERGE, RB_OP_GATED_GRADIENT, RB_OP_SELECT_GRADIENT, RB_OP_SOFTCAP_GRADIENT, \
      RB_OP_CROSS_ENTROPY, RB_OP_CROSS_ENTROPY_GRADIENT, RB_OP_SQUARE_SUMS, RB_OP_ADAMW, RB_OP_SGD
#define RB_TRAINING_ARGS                            \
  rb_matmul_input_gradient matmul_input_gradient;   \
  rb_matmul_weight_gradient matmul_weight_gradient; \
  rb_sum_rows sum_rows;                             \
  rb_add_into add_into;                             \
  rb_zero zero;                                     \
  rb_embed_gradient embed_gradient;                 \
  rb_rms_norm_gradient rms_norm_gradient;           \
  rb_rope_gradient rope_gradient;                   \
  rb_attention_gradient attention_gradient;         \
  rb_gated_gradient gated_gradient;                 \
  rb_select_gradient select_gradient;               \
  rb_softcap_gradient softcap_gradient;             \
  rb_cross_entropy cross_entropy;                   \
  rb_cross_entropy_gradient cross_entropy_gradient; \
  rb_square_sums square_sums;                       \
  rb_adamw adamw;                                   \
  rb_sgd sgd;
