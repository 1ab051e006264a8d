#include "pool.h"

#include <chrono>
#include <cstdlib>
#include <limits>
#include <new>
#include <stdexcept>

namespace rb {
namespace {

// Between two launches of a step workers are idle for 1-20 us; a futex sleep and wake costs 5-50 us. Spinning a little
// longer than the longest serial stretch keeps them awake through a step and lets them sleep between requests.
constexpr auto kSpin = std::chrono::microseconds(80);

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// True when `ready` came true while spinning. The clock is read every 64 rounds: a read costs about 20 ns.
template <class Ready>
bool spin(Ready ready) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      relax();
    }
    if (std::chrono::steady_clock::now() >= end) return ready();
  }
}

}  // namespace

void Pool::Free::operator()(std::byte* p) const { std::free(p); }

Pool::Pool(int threads) {
  if (threads < 1 || threads > 256) throw std::invalid_argument("a pool has 1 to 256 threads");
  scratch_.resize(static_cast<size_t>(threads));
  workers_.reserve(static_cast<size_t>(threads) - 1);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { worker(i); });
}

Pool::~Pool() {
  stopping_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (auto& w : workers_) w.join();
}

void Pool::reserve_scratch(size_t bytes) {
  if (bytes <= scratch_capacity_) return;
  const size_t rounded = (bytes + 63) / 64 * 64;
  for (auto& s : scratch_) {
    auto* p = static_cast<std::byte*>(std::aligned_alloc(64, rounded));
    if (p == nullptr) throw std::bad_alloc();
    s.reset(p);
  }
  scratch_capacity_ = rounded;
}

void Pool::run(const Job& job) {
  const int64_t tasks = job.kernel->tasks(job.args, job.step);
  if (tasks <= 0) return;
  if (tasks == 1 || workers_.empty()) {  // nothing to share: the others are not disturbed
    job.kernel->run(job.args, job.step, 0, tasks, scratch_[0].get());
    return;
  }
  if (tasks > std::numeric_limits<uint32_t>::max() / 2) throw std::length_error("a launch of too many tasks");
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  // Closed first: a thread still looking at the last job that reads the new tasks_ finds its ticket gone.
  ticket_.store((static_cast<uint64_t>(epoch) << 32) | std::numeric_limits<uint32_t>::max(), std::memory_order_release);
  tasks_.store(static_cast<uint32_t>(tasks), std::memory_order_release);
  job_ = job;
  unfinished_.store(tasks, std::memory_order_relaxed);
  ticket_.store(static_cast<uint64_t>(epoch) << 32, std::memory_order_release);
  epoch_.store(epoch);  // sequentially consistent with sleepers_: either we see the sleeper or it sees the epoch
  if (sleepers_.load() > 0) epoch_.notify_all();
  work(epoch, 0);
  const auto done = [this] { return unfinished_.load(std::memory_order_acquire) == 0; };
  while (!spin(done)) std::this_thread::yield();  // another thread lost its core in mid-piece
}

void Pool::work(uint32_t epoch, int index) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(ticket >> 32) == epoch) {
    const uint32_t next = static_cast<uint32_t>(ticket);
    const uint32_t tasks = tasks_.load(std::memory_order_acquire);
    if (next >= tasks) return;
    // Guided pieces: large at first, single tasks at the end. A quarter of a fair share keeps the tail short.
    uint32_t piece = (tasks - next) / (4 * static_cast<uint32_t>(threads()));
    if (piece == 0) piece = 1;
    if (!ticket_.compare_exchange_weak(ticket, ticket + piece, std::memory_order_acq_rel)) continue;
    // The claim holds the job in place: run() cannot return before this piece is done.
    job_.kernel->run(job_.args, job_.step, next, static_cast<int64_t>(next) + piece,
                     scratch_[static_cast<size_t>(index)].get());
    unfinished_.fetch_sub(piece, std::memory_order_acq_rel);
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

uint32_t Pool::await_job(uint32_t seen) {
  const auto moved = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
  while (!spin(moved)) {
    sleepers_.fetch_add(1);
    epoch_.wait(seen);
    sleepers_.fetch_sub(1);
  }
  return epoch_.load(std::memory_order_acquire);
}

void Pool::worker(int index) {
  uint32_t seen = 0;
  for (;;) {
    seen = await_job(seen);
    if (stopping_.load()) return;
    work(seen, index);
  }
}

}  // namespace rb
