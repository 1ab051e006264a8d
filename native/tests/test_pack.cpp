// Packing: every format round-trips to the specification, and nothing outside the asked bytes is read or written.
#include <algorithm>

#include "reference.h"
#include "support.h"
#include "test.h"

static int64_t some_k(int32_t type) { return type <= RB_BF16 ? 37 : type >= RB_Q4_K ? 512 : 96; }

TEST(pack, unpack_is_the_specification) {
  Random random(1);
  for (int32_t type = 0; type < RB_WEIGHT_TYPES; ++type) {
    for (const int32_t n : {1, 16, 17, 40}) {
      test_context = type_name(type) + std::string(" n=") + std::to_string(n);
      const int64_t k = some_k(type);
      const std::vector<uint8_t> stored = random_stored(random, type, n, k);
      const Buffer tiles = packed(type, stored, n, k);
      std::vector<float> out(static_cast<size_t>(n * k));
      const rb_matrix w{tiles.data(), type, n, static_cast<int32_t>(k)};
      CHECK(rb_unpack(&w, out.data()) == RB_PACK_OK);
      for (int64_t i = 0; i < n; ++i) {
        const std::vector<Weight> row =
            decode_row(type, stored.data() + i * static_cast<int64_t>(stored.size()) / n, k);
        for (int64_t j = 0; j < k; ++j) {  // the sum is exact in double: 24 and 17 bits at nearby exponents
          const Weight& r = row[static_cast<size_t>(j)];
          CHECK(out[static_cast<size_t>(i * k + j)] == static_cast<float>(r.product + r.minimum));
        }
      }
    }
  }
}

TEST(pack, rows_are_reordered) {
  Random random(2);
  for (int32_t type = 0; type < RB_WEIGHT_TYPES; ++type) {
    test_context = type_name(type);
    const int64_t n = 33, k = some_k(type), row = static_cast<int64_t>(rb_stored_bytes(type, 1, k));
    const std::vector<uint8_t> stored = random_stored(random, type, n, k);
    std::vector<int32_t> order(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i) order[static_cast<size_t>(i)] = i * 7 % 33;
    std::vector<uint8_t> sorted;
    for (const int32_t from : order)
      sorted.insert(sorted.end(), stored.begin() + from * row, stored.begin() + (from + 1) * row);
    const Buffer a = packed(type, stored, n, k, order.data()), b = packed(type, sorted, n, k);
    CHECK(std::memcmp(a.data(), b.data(), a.size()) == 0);
  }
}

TEST(pack, only_the_asked_tiles_are_written) {
  Random random(3);
  for (int32_t type = 0; type < RB_WEIGHT_TYPES; ++type) {
    test_context = type_name(type);
    const int64_t n = 50, k = some_k(type);
    const std::vector<uint8_t> stored = random_stored(random, type, n, k);
    const Buffer whole = packed(type, stored, n, k);
    const size_t tile = whole.size() / 4;
    Buffer part(whole.size());
    CHECK(rb_pack(type, stored.data(), stored.size(), n, k, nullptr, part.data(), part.size(), 1, 3) == RB_PACK_OK);
    CHECK(std::memcmp(part.data() + tile, whole.data() + tile, 2 * tile) == 0);
    const auto untouched = [](uint8_t b) { return b == 0xff; };
    CHECK(std::all_of(part.data(), part.data() + tile, untouched));
    CHECK(std::all_of(part.data() + 3 * tile, part.data() + 4 * tile, untouched));
  }
}

TEST(pack, missing_rows_are_zero_bytes_of_their_own) {
  Random random(4);
  for (int32_t type = 0; type < RB_WEIGHT_TYPES; ++type) {
    test_context = type_name(type);
    const int64_t k = some_k(type);
    const std::vector<uint8_t> one = random_stored(random, type, 1, k);
    std::vector<uint8_t> padded = one;
    padded.resize(16 * one.size(), 0);
    const Buffer alone = packed(type, one, 1, k), full = packed(type, padded, 16, k);
    // A stored zero of Q8_0 is the packed 128; a missing row is zero bytes and has scale zero.
    if (type != RB_Q8_0) CHECK(std::memcmp(alone.data(), full.data(), alone.size()) == 0);
    std::vector<float> out(static_cast<size_t>(16 * k));
    const rb_matrix w{alone.data(), type, 16, static_cast<int32_t>(k)};
    CHECK(rb_unpack(&w, out.data()) == RB_PACK_OK);
    CHECK(std::all_of(out.begin() + k, out.end(), [](float x) { return x == 0.0f; }));
  }
}

TEST(pack, impossible_requests_are_refused) {
  CHECK(rb_packed_bytes(-1, 16, 32) == 0 && rb_packed_bytes(RB_WEIGHT_TYPES, 16, 32) == 0);
  CHECK(rb_packed_bytes(RB_Q4_0, 16, 33) == 0 && rb_stored_bytes(RB_Q4_K, 16, 32) == 0);
  CHECK(rb_packed_bytes(RB_F32, 0, 32) == 0 && rb_packed_bytes(RB_F32, 16, -32) == 0);
  CHECK(rb_packed_bytes(RB_F32, int64_t{1} << 40, 32) == 0);
  CHECK(rb_packed_bytes(RB_F32, INT32_MAX, INT32_MAX) == 0);  // passes 2^63
  CHECK(rb_stored_bytes(RB_Q4_0, INT32_MAX, 32) == 18ull * INT32_MAX);
  std::vector<uint8_t> stored(rb_stored_bytes(RB_Q4_0, 20, 32)), out(rb_packed_bytes(RB_Q4_0, 20, 32));
  std::vector<int32_t> rows(20, 0);
  const auto pack = [&](uint64_t from, uint64_t to, int64_t begin, int64_t end) {
    return rb_pack(RB_Q4_0, stored.data(), from, 20, 32, rows.data(), out.data(), to, begin, end);
  };
  CHECK(pack(stored.size(), out.size(), 0, 2) == RB_PACK_OK);
  CHECK(pack(stored.size() - 1, out.size(), 0, 2) == RB_PACK_STORED);
  CHECK(pack(stored.size(), out.size() - 1, 0, 2) == RB_PACK_PACKED);
  CHECK(pack(stored.size(), out.size(), 0, 3) == RB_PACK_TILES);
  CHECK(pack(stored.size(), out.size(), -1, 1) == RB_PACK_TILES);
  CHECK(rb_pack(RB_Q4_0, stored.data(), stored.size(), 20, 31, nullptr, out.data(), out.size(), 0, 1) == RB_PACK_SHAPE);
  rows[19] = 20;
  CHECK(pack(stored.size(), out.size(), 0, 2) == RB_PACK_ROWS);
  CHECK(pack(stored.size(), out.size(), 0, 1) == RB_PACK_OK);  // row 19 is in the second tile
}
