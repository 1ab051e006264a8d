// 08_threads.cpp: rung 7 on every core.
//
// Law: a piece is some outputs of all rows, a quarter of a thread's share; whoever is free takes the next one, so no sum
// is ever split and a thread that loses its core delays one piece. Helpers spin for the next call for 100 us or so, then sleep: waking one takes half as long
// as a whole product.
//
// Why: Each core brings its own arithmetic, and one core alone cannot ask memory for all that memory can give.
#include "rows.h"

#if defined(__AVX512F__) && defined(__AVX512VNNI__)
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace {

class Team {
 public:
  explicit Team(int size) {
    for (int i = 1; i < size; ++i) helpers_.emplace_back([this] { help(); });
  }
  ~Team() {
    round_.store(-1, std::memory_order_release);
    round_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
  }
  int size() const { return static_cast<int>(helpers_.size()) + 1; }

  void multiply(const Problem* p) {
    problem_ = p;
    next_.store(0, std::memory_order_relaxed);
    busy_.store(size() - 1, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    work();
    while (busy_.load(std::memory_order_acquire) > 0) _mm_pause();
  }

 private:
  std::vector<std::thread> helpers_;
  const Problem* problem_ = nullptr;
  std::atomic<int> next_{0}, busy_{0}, round_{0};  // round -1: go home

  void work() {
    const int n = problem_->n, piece = 16 * std::max(1, n / 16 / (4 * size()));
    for (int first; (first = next_.fetch_add(piece, std::memory_order_relaxed)) < n;)
      for (int j = first; j < std::min(first + piece, n); j += 16) all_rows(problem_, j);
  }
  void help() {
    for (int seen = 0, now;; seen = now) {
      for (int spin = 0; spin < 2000 && round_.load(std::memory_order_acquire) == seen; ++spin) _mm_pause();
      round_.wait(seen, std::memory_order_acquire);
      now = round_.load(std::memory_order_acquire);
      if (now < 0) return;
      work();
      busy_.fetch_sub(1, std::memory_order_release);
    }
  }
};

}  // namespace

const char* needs() { return nullptr; }

// The team stays for the next call.
void multiply(const Problem* p) {
  static Team* team = nullptr;
  if (team == nullptr || team->size() != p->threads) {
    delete team;
    team = new Team(p->threads);
  }
  team->multiply(p);
}
#else
const char* needs() { return "AVX-512 VNNI"; }
void multiply(const Problem*) {}
#endif
