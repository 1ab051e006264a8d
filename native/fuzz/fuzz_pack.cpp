// fuzz_pack.cpp: rb_pack, rb_unpack and the size functions on hostile numbers and bytes.
//
// Input: type, n, k, tile range, sizes and a row order, then stored bytes. Both buffers are exactly as long as the call is told, so that the
// address sanitizer sees a byte read or written past either. Held: success exactly when every number fits; tiles outside the range keep
// their bytes; what was packed unpacks; packing the same bytes twice gives the same bytes.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "rebar.h"

namespace {

struct Input {
  const uint8_t* data;
  size_t left;

  template <class T>
  T take() {
    T value{};
    const size_t n = left < sizeof(T) ? left : sizeof(T);
    if (n > 0) std::memcpy(&value, data, n);
    data += n;
    left -= n;
    return value;
  }
};

void hold(bool truth) {
  if (!truth) std::abort();
}

// The sizes agree with each other for any numbers at all.
void check_sizes(int32_t type, int64_t n, int64_t k) {
  const uint64_t packed = rb_packed_bytes(type, n, k), stored = rb_stored_bytes(type, n, k);
  hold(packed <= INT64_MAX && stored <= INT64_MAX);
  if (packed != 0) hold(stored != 0 && type >= 0 && type < RB_WEIGHT_TYPES && n > 0 && k > 0);
}

void check_pack(Input in, int32_t type, int64_t n, int64_t k) {
  const uint64_t needed = rb_stored_bytes(type, n, k), room = rb_packed_bytes(type, n, k);
  const int64_t begin = in.take<int8_t>(), end = in.take<int8_t>();
  const bool with_rows = in.take<uint8_t>() % 2 == 1, cut = in.take<uint8_t>() % 8 == 0;
  std::vector<int32_t> rows(static_cast<size_t>(n));
  bool rows_fit = true;
  for (int64_t i = 0; i < n; ++i) {
    rows[static_cast<size_t>(i)] = in.take<int8_t>();
    const bool asked = i / 16 >= begin && i / 16 < end;
    rows_fit = rows_fit && (!asked || (rows[static_cast<size_t>(i)] >= 0 && rows[static_cast<size_t>(i)] < n));
  }
  const uint64_t given = cut ? needed - 1 : needed;
  std::vector<uint8_t> stored(given), packed(room, 0xa5), again(room, 0xa5);
  for (uint64_t i = 0; i < given; ++i) stored[i] = in.left > 0 ? in.data[i % in.left] : static_cast<uint8_t>(i);
  const auto pack = [&](std::vector<uint8_t>& out) {
    return rb_pack(type, stored.data(), given, n, k, with_rows ? rows.data() : nullptr, out.data(), room, begin, end);
  };
  const int error = pack(packed);
  const bool range = begin >= 0 && begin <= end && end <= (n + 15) / 16;
  hold((error == RB_PACK_OK) == (!cut && range && (!with_rows || rows_fit)));
  hold(pack(again) == error && packed == again);
  if (error != RB_PACK_OK) return;
  const size_t tile = room / static_cast<size_t>((n + 15) / 16);
  for (size_t i = 0; i < room; ++i) {
    const bool asked = i >= static_cast<size_t>(begin) * tile && i < static_cast<size_t>(end) * tile;
    hold(asked || packed[i] == 0xa5);
  }
  std::vector<float> values(static_cast<size_t>(n * k));
  const rb_matrix w{packed.data(), type, static_cast<int32_t>(n), static_cast<int32_t>(k)};
  hold(rb_unpack(&w, values.data()) == RB_PACK_OK);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in{data, size};
  check_sizes(in.take<int32_t>(), in.take<int64_t>(), in.take<int64_t>());
  const int32_t type = in.take<uint8_t>() % RB_WEIGHT_TYPES;
  const int64_t n = 1 + in.take<uint8_t>() % 70, blocks = 1 + in.take<uint8_t>() % 3;
  check_pack(in, type, n, blocks * (type <= RB_BF16 ? 7 : type >= RB_Q4_K ? 256 : 32));
  return 0;
}
