// random.h: random numbers of the text tests: the same on every run.
#pragma once
#include <cstdint>

// SplitMix64 (Steele, Lea and Flood 2014).
struct Random {
  uint64_t state = 20261130;
  uint64_t next() {
    uint64_t z = state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return next() % n; }
};
