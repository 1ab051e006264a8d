// tiles.h: where the parts of a group stand in a packed tile. One description for packing, unpacking and the kernels.
#pragma once
#include "cpu/layout.h"

namespace rb {

// Byte offsets inside a packed block of 16 rows. Absent parts are -1. Group g of the block starts at first_group + g * group_bytes.
struct TileShape {
  int d, m;  // [16] f16
  int first_group, group_bytes;
  int fifth, upper;  // within a group: fifth bits, two upper bits
  int sc, mn;        // within a group: [16] u8 (Q6_K: two times [16] s8)
  int wide;          // 1: a byte a quant, 0: nibbles
};

constexpr TileShape kTiles[RB_WEIGHT_TYPES] = {
    {},
    {},
    {},
    {512, -1, 0, 544, -1, -1, -1, -1, 1},    // Q8_0
    {256, -1, 0, 288, -1, -1, -1, -1, 0},    // Q4_0
    {256, 288, 0, 320, -1, -1, -1, -1, 0},   // Q4_1
    {320, -1, 0, 352, 256, -1, -1, -1, 0},   // Q5_0
    {320, 352, 0, 384, 256, -1, -1, -1, 0},  // Q5_1
    {0, 32, 64, 288, -1, -1, 256, 272, 0},   // Q4_K
    {0, 32, 64, 352, 256, -1, 320, 336, 0},  // Q5_K
    {0, -1, 32, 416, -1, 256, 384, -1, 0},   // Q6_K
};

}  // namespace rb
