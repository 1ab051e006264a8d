// rebar.h: the one C ABI between Python and the kernels.
//
// The law: a launch is a plain struct with every address resolved; a kernel reads its struct and the
// step, writes its outputs, and touches nothing else. Kernels allocate nothing, lock nothing and never
// call Python, so they link into tests and fuzzers as they are. Outputs are split between threads; sums
// never are. Every float result is a function of the shapes and the input bits alone: the order of each
// sum is written at its kernel, multiply-adds are fused (one rounding), and all instruction sets give
// the same bits.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RB_ABI_VERSION 3
// Of the packed weights below. Files are kept for years: it grows only when their bytes mean something else.
#define RB_LAYOUT_VERSION 1

// ---------------------------------------------------------------------------------------------------
// Weight formats. A packed matrix W (n outputs, k inputs) is a row of ceil(n/16) tiles; a tile holds 16
// output rows (missing ones are zero) and is contiguous. Block formats need k % 32 == 0, the K formats
// k % 256 == 0. "Group" below: 16 rows x 32 inputs.
//
// Quants of a group stand in the order the 4-way byte dot product eats them: step s = 0..7 covers inputs
// 4s..4s+3; a step is [16 rows][4 inputs] = 64 bytes. Nibble formats hold step s in the low and step s+4
// in the high half of one byte: 4 x 64 bytes a group.
//   F32 F16 BF16  [k][16] elements
//   Q8_0   512 B quants + 128 (unsigned), 16 f16 d                       w = d (q - 128)         544 B
//   Q4_0   256 B nibbles, 16 f16 d                                       w = d (q - 8)           288 B
//   Q4_1   256 B nibbles, 16 f16 d, 16 f16 m                             w = d q + m             320 B
//   Q5_0   256 B nibbles, 64 B fifth bits, 16 f16 d                      w = d (q - 16)          352 B
//   Q5_1   256 B nibbles, 64 B fifth bits, 16 f16 d, 16 f16 m            w = d q + m             384 B
//     fifth bits: 8 steps x u64, bit (4 row + input) of step s
//   Q4_K   per 8 groups: 16 f16 d, 16 f16 dmin, then per group: 256 B nibbles, 16 u8 sc, 16 u8 mn
//                                                                        w = (d sc) q - (dmin mn)
//   Q5_K   as Q4_K with 64 B fifth bits after the nibbles
//   Q6_K   per 8 groups: 16 f16 d, then per group: 256 B nibbles, 128 B upper bits, 16 s8 sc of inputs
//          0..15, 16 s8 sc of inputs 16..31                              w = (d sc) (q - 32)
//     upper bits: 2 x 64 B; byte [row][input] of half h holds steps h, h+2, h+4, h+6 in bits 0-1, 2-3, 4-5, 6-7
typedef enum {
  RB_F32 = 0,
  RB_F16 = 1,
  RB_BF16 = 2,
  RB_Q8_0 = 3,
  RB_Q4_0 = 4,
  RB_Q4_1 = 5,
  RB_Q5_0 = 6,
  RB_Q5_1 = 7,
  RB_Q4_K = 8,
  RB_Q5_K = 9,
  RB_Q6_K = 10,
  RB_WEIGHT_TYPES = 11
} rb_weight_type;

typedef struct rb_matrix {
  const void* data;  // packed tiles, 64-byte aligned
  int32_t type;      // rb_weight_type
  int32_t n, k;      // outputs, inputs
} rb_matrix;

// Quantized activations: one row of k inputs (k % 32 == 0) is
//   int8 q[k]; f32 d[k/16]; int32 sum[k/16]   with d = max|x| / 127 of a group, q = round_to_nearest_even(x * (1/d)),
// sum = sum of q over 16 inputs. d = 0, q = 0 where 1/d is not finite; d = NaN, q = 0 where an input is not finite.
// A group is 16 inputs, or 32 where a launch says `group` 32: then d, rounded towards zero to 22 bits, stands twice, and products take
// one dot where they took two.
// The row stride is rb_quantized_stride(k) bytes, a multiple of 64.
size_t rb_quantized_stride(int32_t k);

// Bytes of a packed matrix; 0 when type, n or k is impossible. n, k up to 2^31 - 1, checked for overflow.
uint64_t rb_packed_bytes(int32_t type, int64_t n, int64_t k);
// Bytes of the same matrix as it stands in a GGUF/safetensors file (row-major blocks); 0 when impossible.
uint64_t rb_stored_bytes(int32_t type, int64_t n, int64_t k);
// Packs stored rows [n][row bytes] into tiles. Output row i comes from stored row `rows[i]` when rows != NULL.
// Tiles [tile_begin, tile_end) only, so that callers may split the work between threads.
typedef enum {
  RB_PACK_OK = 0,
  RB_PACK_SHAPE = 1,   // type, n or k is impossible
  RB_PACK_STORED = 2,  // fewer stored bytes than the matrix has
  RB_PACK_PACKED = 3,  // fewer packed bytes than the matrix needs
  RB_PACK_TILES = 4,   // a tile range outside the matrix
  RB_PACK_ROWS = 5     // an entry of rows outside 0..n-1
} rb_pack_error;
int rb_pack(int32_t type, const void* stored, uint64_t stored_bytes, int64_t n, int64_t k, const int32_t* rows,
            void* packed, uint64_t packed_bytes, int64_t tile_begin, int64_t tile_end);
// The specification backwards: packed -> f32 row-major [n][k]. Returns RB_PACK_OK or RB_PACK_SHAPE.
int rb_unpack(const rb_matrix* w, float* out);

// ---------------------------------------------------------------------------------------------------
// The step: what changes from call to call. All arrays are owned by the caller and live through the run.
typedef struct rb_step {
  int32_t rows;              // token rows of this step
  int32_t logit_rows;        // rows whose logits are needed
  const int32_t* ids;        // [rows] token ids
  const int32_t* positions;  // [rows] position of the row in its sequence
  const int32_t*
      sequences;  // [rows] which block table belongs to the row; rows of one sequence are adjacent, positions ascending
  const int32_t* tables;  // [sequence][table_stride] block numbers
  int32_t table_stride;
  const int32_t* logit_index;  // [logit_rows] the rows whose logits are needed
  const int32_t* adapters;     // [rows] slot of the row's adapter, -1 for none; NULL: none for all rows
} rb_step;

typedef enum { RB_ROWS = 0, RB_LOGIT_ROWS = 1 } rb_domain;  // how many rows a launch covers

// Launches. Strides are elements between rows unless said; f32 unless said.

// out[r,:] = dequantized row ids[r] of w, times scale.
typedef struct {
  rb_matrix w;
  float* out;
  int32_t out_stride;
  float scale;
} rb_embed;

// y = x / sqrt(mean(x^2) + eps) * weight, for each of `groups` slices of n values in a row (groups > 1: per-head norm),
// as (x * (1 / sqrt(sum / n + eps))) * weight. sum of squares: lane i % 16 over ascending i, one fma each; lanes as a binary
// tree (l with l+8, then l+4, l+2, l+1). yq (optional, groups == 1): y quantized; y may be NULL beside it.
typedef struct {
  const float* x;
  const float* weight;
  float* y;
  uint8_t* yq;
  int32_t x_stride, y_stride, n, groups;
  float eps;
  int32_t domain, group;
} rb_rms_norm;

// xq = quantized x (layout above), row stride rb_quantized_stride(k).
typedef struct {
  const float* x;
  uint8_t* xq;
  int32_t x_stride, k, domain, group;
} rb_quantize;

#define RB_FLOAT_CHAIN 64
// y[r,j] = sum_k x[r,k] w[j,k] (+ bias[j]) (+ residual[r,j]).  Block formats read xq, float formats read x.
// Each y is summed over ascending k by one chain. Block formats, per group of 32 inputs with halves 0 and 1 (scales dx0, dx1;
// integer dots D = float(dot - offset*sum), exact): acc = fma(fma(D1, dx1, D0*dx0), dw, acc), then with a minimum
// acc = fma(m, dx0*sum0 + dx1*sum1, acc); Q6_K, whose weights have a scale a half: fma(D0, dw0*dx0, acc), then half 1.
// With a scale for all 32 (group 32, not Q6_K): acc = fma(D*dx, dw, acc), then acc = fma(m, dx*sum, acc), D and sum of 32 inputs;
// D*dx as fma(c + D, dx, -c*dx) with c = 1.5 2^23, the same where c*dx is finite (|x| < 3e33), not finite beyond.
// Float formats: chains of RB_FLOAT_CHAIN inputs, each fma(x, w, chain) from 0 over ascending inputs; acc = acc + chain, ascending, from 0.
// y may be a column slice of a wider buffer (y_stride > n); residual may alias y.
typedef struct {
  rb_matrix w;
  const float* x;
  const uint8_t* xq;
  const float* bias;
  const float* residual;
  float* y;
  int32_t x_stride, y_stride, residual_stride, domain, group;
} rb_matmul;

// Rotates pairs (i, i + dim/2) of each head: table[position] = [cos dim/2][sin dim/2]; y0 = fma(-x1, sin, x0 cos),
// y1 = fma(x1, cos, x0 sin); elements dim.. are copied. In place allowed.
typedef struct {
  const float* x;
  float* y;
  const float* table;
  int32_t x_stride, y_stride, heads, head_dim, dim, table_rows;
} rb_rope;

// The paged cache. A block holds 16 positions of every layer and is one piece of memory: `cache` below is where the layer's part of
// block 0 begins, block b lies b * block_stride bytes further. The part: keys of all kv heads, then values of all kv heads. Keys of
// a head [head_dim][16 positions], values [16 positions][head_dim]; int8 heads are followed by f16 scales
// [ceil(head_dim / 32)][16 positions], one for 32 dimensions of a position: d = f16(max|x| / 127), q = round_to_nearest_even(x * (1/d))
// within -127..127; d = 0, q = 0 where all is too small, d = NaN, q = 0 where something is not finite.
// int8 keys, and queries against them, are turned first by a Hadamard matrix H over each n elements, n the largest power of two that
// divides head_dim: butterflies (a + b, a - b) with distance n/2, n/4, .. 1; the query's result times 1/n, so that scores stay.
// F32 is for training in full precision.
typedef enum { RB_KV_F16 = 0, RB_KV_INT8 = 1, RB_KV_F32 = 2, RB_KV_TYPES = 3 } rb_kv_type;
#define RB_KV_GROUP 32
// Bytes of a layer's part of a block; 0 for an impossible type or size.
uint64_t rb_kv_bytes(int32_t type, int64_t kv_heads, int64_t head_dim);

// Writes k, v rows into the cache (f16: round to nearest even; f32: as they are).
typedef struct {
  const float* k;
  const float* v;
  uint8_t* cache;
  int64_t block_stride;
  int32_t kv_type, k_stride, v_stride, kv_heads, head_dim, blocks;
} rb_append;

// rope of q and of k, and append of the rotated k and v, in one launch: the same bits. rope: x -> y, table, q's heads.
typedef struct {
  rb_rope rope;
  rb_append append;  // k as it is before its rotation
} rb_rope_append;

// out[r,h] = softmax(scale q.k over positions max(0, p-window+1)..p) v;  window 0: all. softcap 0: none (else cap*tanh(s/cap)).
// Score: one chain over ascending d, then times scale; int8 keys: such a chain for each 32 dimensions, then s = fma(chain, d, s) over
// ascending groups from 0. Positions are cut into chunks of RB_ATTENTION_CHUNK, absolute, whatever the window. In a chunk, over the
// positions that the row sees: m = the largest score (at least -FLT_MAX), p_j = exp(s_j - m), +0 below e^-87; l = their total, lane j % 16, ascending
// blocks, lanes as a binary tree; o = one chain fma(p_j, v_j, o) over ascending j from 0 (int8 values: fma(p_j * d, q, o)). Chunks that
// hold a position the row sees are merged in ascending order from M = -FLT_MAX, L = 0, O = 0: with M' = max(M, m), a = exp(M - M'),
// b = exp(m - M'): L = fma(l, b, L * a), O = fma(o, b, O * a). out = O * (1 / L).
// head_dim % 16 == 0. outq optional (head_dim % 32 == 0): out quantized; out may be NULL beside it.
// work: rb_attention_work(...) values a row, or NULL. With it, a step of at most RB_ATTENTION_SPLIT_ROWS rows over several chunks is cut by
// chunks, and leaves its results there; attention_merge, given the same struct, puts them together (it has no task otherwise).
#define RB_ATTENTION_CHUNK 256
#define RB_ATTENTION_SPLIT_ROWS 8
typedef struct {
  const float* q;
  const uint8_t* cache;
  float* out;
  uint8_t* outq;
  float* work;
  int64_t block_stride;
  int32_t kv_type, q_stride, out_stride, heads, kv_heads, head_dim, window, max_positions, blocks;
  float scale, softcap;
  int32_t group;
} rb_attention;
// Most chunks that a row can see.
int64_t rb_attention_chunks(int32_t window, int32_t max_positions);
// f32 values of `work` for each of min(rows, RB_ATTENTION_SPLIT_ROWS) rows: m, l and o of every head and chunk.
int64_t rb_attention_work(int32_t heads, int32_t head_dim, int32_t window, int32_t max_positions);

// y = act(x[:, :n]) * x[:, n:2n].  act: 0 silu x / (1 + e^-x), 1 gelu (tanh form) x / (1 + e^-2z),
// z = sqrt(2/pi)(x + 0.044715 x^3). yq optional: y quantized; y may be NULL beside it.
typedef struct {
  const float* x;
  float* y;
  uint8_t* yq;
  int32_t x_stride, y_stride, n, act, domain, group;
} rb_gated;

// y = a + b.
typedef struct {
  const float* a;
  const float* b;
  float* y;
  int32_t a_stride, b_stride, y_stride, n, domain;
} rb_add;

// y[i,:] = x[logit_index[i],:].
typedef struct {
  const float* x;
  float* y;
  int32_t x_stride, y_stride, n;
} rb_select;

// y = cap * tanh(x / cap).
typedef struct {
  const float* x;
  float* y;
  int32_t x_stride, y_stride, n, domain;
  float cap;
} rb_softcap;

// Low-rank adapters (Hu et al., arXiv:2106.09685): y + scale B A x, with A and B of the slot s = step.adapters[row]. An output is split
// into parts (q, k, v) that have their own A and B. A slot holds what one adapter has for one part; the table [slot][part] is read when
// the launch runs, so that adapters come and go between steps.
#define RB_LORA_PARTS 3
typedef struct {
  const float* a;  // (rank, k), F32 packed
  const float* b;  // (columns of the part, rank), F32 packed
  int32_t rank;    // 0: the adapter leaves this part as it is
  float scale;
} rb_lora_slot;

// a[r, p rank + j] = sum_i x[r,i] A[j,i] for part p and j < the slot's rank, else +0. The sum: four chains, input i in chain i % 4,
// ascending, one fma each from 0; then (c0 + c2) + (c1 + c3). rank: of the largest slot.
typedef struct {
  const rb_lora_slot* slots;
  const float* x;
  float* a;
  int32_t x_stride, a_stride, k, parts, rank, domain;
} rb_lora_down;

// y[r,j] = x[r,j] + scale sum_i B[j,i] a[r, p rank + i] (+ residual[r,j]); p is the part whose columns end at ends[p], the first behind
// j. The sum: one chain over ascending i from 0, one fma each; then fma(sum, scale, x), then + residual. Where the slot has nothing: x
// (+ residual). y may be x.
typedef struct {
  const rb_lora_slot* slots;
  const float* a;
  const float* x;
  const float* residual;
  float* y;
  int32_t a_stride, x_stride, residual_stride, y_stride, parts, rank, domain;
  int32_t ends[RB_LORA_PARTS];
} rb_lora_up;

#include "rebar_image.h"
#include "rebar_training.h"

typedef enum {
  RB_OP_EMBED,
  RB_OP_RMS_NORM,
  RB_OP_QUANTIZE,
  RB_OP_MATMUL,
  RB_OP_ROPE,
  RB_OP_APPEND,
  RB_OP_ATTENTION,
  RB_OP_GATED,
  RB_OP_ADD,
  RB_OP_SELECT,
  RB_OP_SOFTCAP,
  RB_OP_ATTENTION_MERGE,
  RB_OP_ROPE_APPEND,
  RB_OP_LORA_DOWN,
  RB_OP_LORA_UP,
  // rebar_image.h
  RB_OP_CONV,
  RB_OP_CONV_INPUT_GRADIENT,
  RB_OP_CONV_WEIGHT_GRADIENT,
  RB_OP_CHANNEL_SUMS,
  RB_OP_POOL,
  RB_OP_POOL_GRADIENT,
  RB_OP_GROUP_NORM,
  RB_OP_GROUP_NORM_GRADIENT,
  RB_OP_GROUP_NORM_WEIGHT_GRADIENT,
  RB_OP_RELU,
  RB_OP_RELU_GRADIENT,
  RB_OP_DROPOUT,
  RB_TRAINING_OPS,  // rebar_training.h
  RB_OPS
} rb_op;

typedef union {
  rb_embed embed;
  rb_rms_norm rms_norm;
  rb_quantize quantize;
  rb_matmul matmul;
  rb_rope rope;
  rb_append append;
  rb_rope_append rope_append;
  rb_attention attention;  // attention_merge too
  rb_gated gated;
  rb_add add;
  rb_select select;
  rb_softcap softcap;
  rb_lora_down lora_down;
  rb_lora_up lora_up;
  rb_conv conv;
  rb_conv_input_gradient conv_input_gradient;
  rb_conv_weight_gradient conv_weight_gradient;
  rb_channel_sums channel_sums;
  rb_pool pool;
  rb_pool_gradient pool_gradient;
  rb_group_norm group_norm;
  rb_group_norm_gradient group_norm_gradient;
  rb_group_norm_weight_gradient group_norm_weight_gradient;
  rb_relu relu;
  rb_relu_gradient relu_gradient;
  rb_dropout dropout;
  RB_TRAINING_ARGS
} rb_args;

typedef struct {
  int32_t op;
  rb_args args;
} rb_launch;

// ---------------------------------------------------------------------------------------------------
// Kernels. A launch is cut into tasks(args, step) independent pieces (0 when there is nothing to do); run() does pieces
// begin..end-1 on one thread with `scratch`, 64-byte aligned, of scratch_bytes(args, step's maximum rows) bytes. A thread
// may run several pieces of a launch one after the other: scratch keeps what the one before left there, and its first
// eight bytes are zero before the first.
typedef struct {
  const char* name;
  int64_t (*tasks)(const rb_args* args, const rb_step* step);
  void (*run)(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void* scratch);
  size_t (*scratch_bytes)(const rb_args* args, int32_t max_rows);
} rb_kernel;

typedef enum { RB_ISA_SCALAR = 0, RB_ISA_AVX2 = 1, RB_ISA_AVX512 = 2, RB_ISA_NEON = 3, RB_ISAS = 4 } rb_isa;
const rb_kernel* rb_kernels(int32_t isa);  // table of RB_OPS entries; NULL when this build or machine lacks it
int32_t rb_best_isa(void);
const char* rb_isa_name(int32_t isa);

#ifdef __cplusplus
}
#endif
