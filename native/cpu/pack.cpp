// pack.cpp: stored rows -> tiles. Reads inside [stored, stored + stored_bytes), writes inside the asked tiles, everything else stays.
#include "cpu/half.h"
#include "cpu/stored.h"
#include "cpu/tiles.h"

namespace rb {
namespace {

void put_u16(uint8_t* p, uint16_t v) { memcpy(p, &v, 2); }

// Quants of one row into its bytes of the group: step s covers inputs 4s..4s+3, a step is [16 rows][4 inputs].
void put_quants(const TileShape& t, const uint8_t* q, int lane, uint8_t* group) {
  for (int s = 0; s < 8; ++s) {
    for (int i = 0; i < 4; ++i) {
      const uint8_t v = q[4 * s + i];
      const int byte = lane * 4 + i;
      if (t.wide) {
        group[s * 64 + byte] = v;
        continue;
      }
      group[s % 4 * 64 + byte] = static_cast<uint8_t>(group[s % 4 * 64 + byte] | (v & 15) << (s / 4 * 4));
      if (t.fifth >= 0)
        group[t.fifth + s * 8 + byte / 8] =
            static_cast<uint8_t>(group[t.fifth + s * 8 + byte / 8] | (v >> 4 & 1) << byte % 8);
      if (t.upper >= 0)
        group[t.upper + s % 2 * 64 + byte] =
            static_cast<uint8_t>(group[t.upper + s % 2 * 64 + byte] | (v >> 4) << (s / 2 * 2));
    }
  }
}

void pack_block_row(int32_t type, const uint8_t* stored, int64_t k, int lane, uint8_t* tile) {
  const TileShape& t = kTiles[type];
  const int per_block = kFormats[type].block / 32;
  for (int64_t g = 0; g < k / 32; ++g) {
    const StoredGroup in = stored_group(type, stored, g);
    uint8_t* block = tile + g / per_block * kFormats[type].packed_bytes;
    uint8_t* group = block + t.first_group + g % per_block * t.group_bytes;
    put_u16(block + t.d + 2 * lane, in.d);
    if (t.m >= 0) put_u16(block + t.m + 2 * lane, in.m);
    if (t.sc >= 0) group[t.sc + lane] = in.sc;
    if (t.mn >= 0) group[t.mn + lane] = in.mn;
    if (t.upper >= 0) group[t.sc + 16 + lane] = in.sc_high;
    put_quants(t, in.q, lane, group);
  }
}

void pack_float_row(int bytes, const uint8_t* stored, int64_t k, int lane, uint8_t* tile) {
  for (int64_t i = 0; i < k; ++i)
    memcpy(tile + (i * 16 + lane) * bytes, stored + i * bytes, static_cast<size_t>(bytes));
}

// A missing row of a block format is zero because its scales are; the offset formats' quants are zero as well.
void pack_tile(int32_t type, const uint8_t* stored, int64_t n, int64_t k, const int32_t* rows, int64_t t,
               uint8_t* tile) {
  const int64_t row_bytes = k / kFormats[type].block * kFormats[type].stored_bytes;
  memset(tile, 0, static_cast<size_t>(tile_bytes(type, k)));
  for (int lane = 0; lane < 16 && t * 16 + lane < n; ++lane) {
    const int64_t row = rows != nullptr ? rows[t * 16 + lane] : t * 16 + lane;
    const uint8_t* from = stored + row * row_bytes;
    is_float(type) ? pack_float_row(kFormats[type].stored_bytes, from, k, lane, tile)
                   : pack_block_row(type, from, k, lane, tile);
  }
}

// Bytes of row `lane` in `group`, the way put_quants wrote them.
void get_quants(const TileShape& t, const uint8_t* group, int lane, uint8_t* q) {
  for (int s = 0; s < 8; ++s) {
    for (int i = 0; i < 4; ++i) {
      const int byte = lane * 4 + i;
      int v = t.wide ? group[s * 64 + byte] : group[s % 4 * 64 + byte] >> (s / 4 * 4) & 15;
      if (t.fifth >= 0) v |= (group[t.fifth + s * 8 + byte / 8] >> byte % 8 & 1) << 4;
      if (t.upper >= 0) v |= (group[t.upper + s % 2 * 64 + byte] >> (s / 2 * 2) & 3) << 4;
      q[4 * s + i] = static_cast<uint8_t>(v);
    }
  }
}

constexpr int offset_of(int32_t type) {
  switch (type) {
    case RB_Q8_0:
      return 128;
    case RB_Q4_0:
      return 8;
    case RB_Q5_0:
      return 16;
    case RB_Q6_K:
      return 32;
    default:
      return 0;
  }
}

float f16_at(const uint8_t* p) {
  uint16_t v;
  memcpy(&v, p, 2);
  return f16_to_f32(v);
}

void unpack_block_row(const rb_matrix& w, const uint8_t* tile, int lane, float* out) {
  const TileShape& t = kTiles[w.type];
  const Format& f = kFormats[w.type];
  const int per_block = f.block / 32, offset = offset_of(w.type);
  for (int g = 0; g < w.k / 32; ++g) {
    const uint8_t* block = tile + static_cast<int64_t>(g / per_block) * f.packed_bytes;
    const uint8_t* group = block + t.first_group + g % per_block * t.group_bytes;
    uint8_t q[32];
    get_quants(t, group, lane, q);
    float d[2], m = t.m >= 0 ? f16_at(block + t.m + 2 * lane) : 0.0f;
    d[0] = d[1] = f16_at(block + t.d + 2 * lane);
    if (t.upper >= 0) {
      for (int h = 0; h < 2; ++h) d[h] *= static_cast<float>(static_cast<int8_t>(group[t.sc + 16 * h + lane]));
    } else if (t.sc >= 0) {
      d[0] = d[1] *= static_cast<float>(group[t.sc + lane]);
      m = -(m * static_cast<float>(group[t.mn + lane]));
    }
    for (int i = 0; i < 32; ++i) {
      const float v = static_cast<float>(q[i] - offset);
      out[32 * g + i] = t.m >= 0 ? __builtin_fmaf(d[i / 16], v, m) : d[i / 16] * v;
    }
  }
}

void unpack_float_row(const rb_matrix& w, const uint8_t* tile, int lane, float* out) {
  const uint16_t* half = reinterpret_cast<const uint16_t*>(tile) + lane;
  for (int i = 0; i < w.k; ++i) {
    if (w.type == RB_F32) out[i] = reinterpret_cast<const float*>(tile)[i * int64_t{16} + lane];
    if (w.type == RB_F16) out[i] = f16_to_f32(half[i * int64_t{16}]);
    if (w.type == RB_BF16) out[i] = bf16_to_f32(half[i * int64_t{16}]);
  }
}

}  // namespace

void unpack_row(const rb_matrix& w, int64_t row, float* out) {
  const uint8_t* tile = static_cast<const uint8_t*>(w.data) + row / 16 * tile_bytes(w.type, w.k);
  const int lane = static_cast<int>(row % 16);
  is_float(w.type) ? unpack_float_row(w, tile, lane, out) : unpack_block_row(w, tile, lane, out);
}

}  // namespace rb

extern "C" int rb_pack(int32_t type, const void* stored, uint64_t stored_bytes, int64_t n, int64_t k,
                       const int32_t* rows, void* packed, uint64_t packed_bytes, int64_t tile_begin, int64_t tile_end) {
  const uint64_t needed = rb_stored_bytes(type, n, k), room = rb_packed_bytes(type, n, k);
  if (needed == 0 || room == 0) return RB_PACK_SHAPE;
  if (stored == nullptr || stored_bytes < needed) return RB_PACK_STORED;
  if (packed == nullptr || packed_bytes < room) return RB_PACK_PACKED;
  if (tile_begin < 0 || tile_end < tile_begin || tile_end > rb::tile_count(n)) return RB_PACK_TILES;
  const int64_t last = tile_end * 16 < n ? tile_end * 16 : n;
  for (int64_t i = tile_begin * 16; rows != nullptr && i < last; ++i) {
    if (rows[i] < 0 || rows[i] >= n) return RB_PACK_ROWS;
  }
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    uint8_t* tile = static_cast<uint8_t*>(packed) + t * rb::tile_bytes(type, k);
    rb::pack_tile(type, static_cast<const uint8_t*>(stored), n, k, rows, t, tile);
  }
  return RB_PACK_OK;
}

extern "C" int rb_unpack(const rb_matrix* w, float* out) {
  if (w == nullptr || w->data == nullptr || rb_packed_bytes(w->type, w->n, w->k) == 0) return RB_PACK_SHAPE;
  for (int64_t i = 0; i < w->n; ++i) rb::unpack_row(*w, i, out + i * w->k);
  return RB_PACK_OK;
}
