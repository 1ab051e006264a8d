// ceilings.cpp: what this machine allows: multiply-adds without memory, and reading without arithmetic.
//
// Each returns a rate per second for `threads` threads at once, the best of `rounds`. A multiply-add counts two
// operations. Reading touches every cache line of a buffer that no cache holds.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "rung.h"
#if defined(__AVX512F__) && defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

namespace {

typedef float V __attribute__((vector_size(64)));
typedef int64_t L __attribute__((vector_size(64)));
constexpr int kChains = 16, kSteps = 1 << 20;
volatile float float_sink;
volatile int64_t integer_sink;

template <class Work>
double best_rate(int threads, int rounds, double amount, Work work) {
  double best = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> helpers;
    for (int t = 1; t < threads; ++t) helpers.emplace_back(work, t);
    work(0);
    for (std::thread& helper : helpers) helper.join();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::max(best, amount / took.count());
  }
  return best;
}

}  // namespace

extern "C" double float_operations(int threads, int rounds) {
  return best_rate(threads, rounds, 2.0 * 16 * kChains * kSteps * threads, [](int) {
    V sum[kChains], a = V{} + 0.999f, b = V{} + 0.001f;
    for (int c = 0; c < kChains; ++c) sum[c] = V{} + static_cast<float>(c);
    for (int i = 0; i < kSteps; ++i)
#pragma GCC unroll 16
      for (int c = 0; c < kChains; ++c) sum[c] = sum[c] * a + b;  // each from another start, or the compiler does one
    V all = {};
    for (const V& s : sum) all += s;
    float_sink = all[0];
  });
}

// 0 where the machine lacks the instruction.
extern "C" double byte_operations(int threads, int rounds) {
#if defined(__AVX512F__) && defined(__AVX512VNNI__)
  return best_rate(threads, rounds, 2.0 * 64 * kChains * kSteps * threads, [](int seed) {
    __m512i sum[kChains], a = _mm512_set1_epi32(seed + 0x01020304);
    for (int c = 0; c < kChains; ++c) sum[c] = _mm512_set1_epi32(c);
    for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 16
      for (int c = 0; c < kChains; ++c) sum[c] = _mm512_dpbusd_epi32(sum[c], a, a);
      asm volatile("" : "+v"(a));
    }
    int64_t all = 0;
    for (const __m512i& s : sum) all += _mm512_reduce_add_epi32(s);
    integer_sink = all;
  });
#else
  return 0.0 * threads * rounds;
#endif
}

extern "C" double bytes_read(const int8_t* buffer, int64_t bytes, int threads, int rounds) {
  std::atomic<int64_t> next{0};
  constexpr int64_t kPiece = 1 << 20;
  const auto work = [&](int) {
    L sum[8] = {};
    for (int64_t at; (at = next.fetch_add(kPiece)) + kPiece <= bytes;) {
      for (int64_t i = at; i < at + kPiece; i += 512) {
        for (int c = 0; c < 8; ++c) {
          L line;
          std::memcpy(&line, buffer + i + 64 * c, sizeof line);
          sum[c] ^= line;
        }
      }
    }
    L all = sum[0];
    for (const L& s : sum) all ^= s;
    integer_sink = all[0];
  };
  double best = 0;
  for (int round = 0; round < rounds; ++round, next = 0)
    best = std::max(best, best_rate(threads, 1, static_cast<double>(bytes / kPiece * kPiece), work));
  return best;
}
