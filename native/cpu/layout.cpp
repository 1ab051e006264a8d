#include "cpu/layout.h"

extern "C" size_t rb_quantized_stride(int32_t k) {
  const size_t bytes = static_cast<size_t>(k) + static_cast<size_t>(k / 16) * 8;
  return (bytes + 63) / 64 * 64;
}

namespace {

bool possible(int32_t type, int64_t n, int64_t k) {
  if (type < 0 || type >= RB_WEIGHT_TYPES || n < 1 || k < 1 || n > INT32_MAX || k > INT32_MAX) return false;
  return k % rb::kFormats[type].block == 0;
}

// rows <= 2^31, blocks < 2^31, bytes < 2^12: the product of all three may pass 2^64.
uint64_t checked(int64_t rows, int64_t blocks, int64_t bytes) {
  uint64_t row_bytes = static_cast<uint64_t>(blocks) * static_cast<uint64_t>(bytes), all;
  if (__builtin_mul_overflow(static_cast<uint64_t>(rows), row_bytes, &all) || all > INT64_MAX) return 0;
  return all;
}

}  // namespace

extern "C" uint64_t rb_packed_bytes(int32_t type, int64_t n, int64_t k) {
  if (!possible(type, n, k)) return 0;
  return checked(rb::tile_count(n), k / rb::kFormats[type].block, rb::kFormats[type].packed_bytes);
}

extern "C" uint64_t rb_stored_bytes(int32_t type, int64_t n, int64_t k) {
  if (!possible(type, n, k)) return 0;
  return checked(n, k / rb::kFormats[type].block, rb::kFormats[type].stored_bytes);
}

extern "C" uint64_t rb_kv_bytes(int32_t type, int64_t kv_heads, int64_t head_dim) {
  constexpr int64_t most = 1 << 20;
  if (type < 0 || type >= RB_KV_TYPES || kv_heads < 1 || head_dim < 1 || kv_heads > most || head_dim > most) return 0;
  return static_cast<uint64_t>(2 * kv_heads * rb::kv_head_bytes(type, head_dim));
}

// w positions touch at most ceil((w - 1) / chunk) + 1 chunks.
extern "C" int64_t rb_attention_chunks(int32_t window, int32_t max_positions) {
  const int64_t chunk = RB_ATTENTION_CHUNK, all = (max_positions + chunk - 1) / chunk;
  const int64_t windowed = (window - 1 + chunk - 1) / chunk + 1;
  return window > 0 && windowed < all ? windowed : all;
}

extern "C" int64_t rb_attention_parts(int32_t max_positions) {
  const int32_t parts = max_positions / RB_ATTENTION_PART_ROWS;
  return parts > RB_ATTENTION_PARTS ? RB_ATTENTION_PARTS - 1 : parts > 1 ? parts - 1 : 0;
}

extern "C" int64_t rb_attention_work(int32_t heads, int32_t head_dim, int32_t window, int32_t max_positions) {
  return heads * rb_attention_chunks(window, max_positions) * (head_dim + int64_t{16});
}
