// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11): random bits with an address.
// The same key and counter give the same bits anywhere, in any order; there is no state to share, save or restore.
#pragma once
#include <array>
#include <cstdint>

namespace rebar::sampling {

using Counter = std::array<uint32_t, 4>;

inline Counter philox(Counter c, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0], b = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(a)};
    key0 += 0x9E3779B9u;  // golden ratio
    key1 += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return c;
}

// Uniform in [0, 1), 53 bits, at (seed, position).
inline double uniform(uint64_t seed, uint64_t position) {
  const Counter c = philox({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0},
                           static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  const uint64_t bits = (uint64_t{c[0]} << 32 | c[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace rebar::sampling
