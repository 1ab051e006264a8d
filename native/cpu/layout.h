// layout.h: sizes of the weight formats, stored (GGUF, safetensors) and packed (tiles of rebar.h).
#pragma once
#include <stdint.h>

#include "rebar.h"

namespace rb {

struct Format {
  int block;         // inputs a stored block and a packed block cover; 1 for floats
  int stored_bytes;  // of one row's block
  int packed_bytes;  // of 16 rows' block
};

constexpr Format kFormats[RB_WEIGHT_TYPES] = {
    {1, 4, 64},       {1, 2, 32},       {1, 2, 32},        // F32 F16 BF16
    {32, 34, 544},    {32, 18, 288},    {32, 20, 320},     // Q8_0 Q4_0 Q4_1
    {32, 22, 352},    {32, 24, 384},                       // Q5_0 Q5_1
    {256, 144, 2368}, {256, 176, 2880}, {256, 210, 3360},  // Q4_K Q5_K Q6_K
};

constexpr bool is_float(int32_t type) { return type <= RB_BF16; }
inline int64_t tile_count(int64_t n) { return (n + 15) / 16; }
inline int64_t tile_bytes(int32_t type, int64_t k) { return k / kFormats[type].block * kFormats[type].packed_bytes; }

// Bytes of one head's keys or values in a block of the cache (16 positions).
inline int64_t kv_head_bytes(int32_t type, int64_t head_dim) {
  if (type == RB_KV_F32) return 64 * head_dim;
  return type == RB_KV_F16 ? 32 * head_dim : 16 * head_dim + (head_dim + RB_KV_GROUP - 1) / RB_KV_GROUP * 32;
}

// Row `row` of a packed matrix as f32[k]. Products of an f16 scale and a quant are exact in f32; with a minimum one fma rounds once.
void unpack_row(const rb_matrix& w, int64_t row, float* out);

}  // namespace rb
