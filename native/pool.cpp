#include "pool.h"

#if defined(__linux__)
#include <sched.h>
#endif

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

namespace rb {
namespace {

// Between two launches of a step workers are idle for 1-20 us; a futex sleep and wake costs 5-50 us. Spinning a little
// longer than the longest serial stretch keeps them awake through a step and lets them sleep between requests.
constexpr auto kSpin = std::chrono::microseconds(80);

// Begin and end of a range take 16 bits each; a launch of more tasks than that is claimed in units of several.
constexpr int64_t kMostUnits = 0xffff;

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

uint64_t pack(uint32_t epoch, int64_t begin, int64_t end) {
  return static_cast<uint64_t>(epoch) << 32 | static_cast<uint64_t>(begin) << 16 | static_cast<uint64_t>(end);
}

// A thread that wakes for a job does not push another program off its core, the rest of the job is there for it later
// too. What runs there then is a server's front with the answers of the step before: pushed off, it came back in the
// middle of a piece, and the caller waited for that piece as long as it ran.
void take_no_core() {
#if defined(__linux__)
  const sched_param none{};
  sched_setscheduler(0, SCHED_BATCH, &none);
#endif
}

// Where the range of thread i of n begins, of so many tasks or units.
int64_t share(int64_t count, int i, int n) { return count * i / n; }

}  // namespace

void Pool::Free::operator()(std::byte* p) const { std::free(p); }

Pool::Pool(int threads) {
  if (threads < 1 || threads > 256) throw std::invalid_argument("a pool has 1 to 256 threads");
  scratch_.resize(static_cast<size_t>(threads));
  ranges_ = std::make_unique<Range[]>(static_cast<size_t>(threads));
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

// A launch's scratch says so in its first bytes when it holds nothing yet (rebar.h).
void Pool::begin(int index) {
  if (scratch_capacity_ >= 8) std::memset(scratch_[static_cast<size_t>(index)].get(), 0, 8);
}

void Pool::run(const Job& job) {
  const int64_t tasks = job.kernel->tasks(job.args, job.step);
  if (tasks <= 0) return;
  if (tasks == 1 || workers_.empty()) {  // nothing to share: the others are not disturbed
    begin(0);
    job.kernel->run(job.args, job.step, 0, tasks, scratch_[0].get());
    return;
  }
  // No thread claims while the job is set up: the ranges of the last job are empty, or it would not have ended.
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  job_ = job;
  tasks_ = tasks;
  unit_ = (tasks + kMostUnits - 1) / kMostUnits;
  unfinished_.store(tasks, std::memory_order_relaxed);
  const int64_t units = (tasks + unit_ - 1) / unit_;
  for (int i = 0; i < threads(); ++i) {
    const uint64_t range = pack(epoch, share(units, i, threads()), share(units, i + 1, threads()));
    ranges_[static_cast<size_t>(i)].packed.store(range, std::memory_order_release);
  }
  epoch_.store(epoch);  // sequentially consistent with sleepers_: either we see the sleeper or it sees the epoch
  if (sleepers_.load() > 0) epoch_.notify_all();
  work(epoch, 0);
  await_end(epoch);
}

// A piece takes microseconds. Whoever is not done after a spin has lost its core to a neighbour in mid-piece; then the
// caller sleeps, which makes its own core idle, and the system moves the other one there at once. (Spinning or yielding
// on, it would wait for the neighbour's time slice: with one busy process on one of two cores a step of one row took
// 5.2 ms, 2.9 in quiet.)
void Pool::await_end(uint32_t epoch) {
  if (spin([this] { return unfinished_.load(std::memory_order_acquire) == 0; })) return;
  caller_sleeps_.store(true);  // sequentially consistent with ended_: either the last thread sees it or we see the end
  for (uint32_t seen = ended_.load(); seen != epoch; seen = ended_.load()) ended_.wait(seen);
  caller_sleeps_.store(false);
}

void Pool::finish(const Piece& piece, uint32_t epoch) {
  const int64_t tasks = piece.end - piece.begin;
  if (unfinished_.fetch_sub(tasks, std::memory_order_acq_rel) != tasks) return;
  // From here on the caller may have gone on to its next jobs: a thread that comes late must not take back their end.
  uint32_t seen = ended_.load();
  while (static_cast<int32_t>(epoch - seen) > 0 && !ended_.compare_exchange_weak(seen, epoch)) {
  }
  if (caller_sleeps_.load()) ended_.notify_one();
}

// From the front a quarter of what is left, so that a thread that loses its core holds little; from the back as much
// of what the owner has not reached. Single units at the end.
bool Pool::claim(Range& range, uint32_t epoch, Side side, Piece& piece) {
  uint64_t packed = range.packed.load(std::memory_order_acquire);
  for (;;) {
    const int64_t begin = packed >> 16 & 0xffff, end = packed & 0xffff;
    if (static_cast<uint32_t>(packed >> 32) != epoch || begin == end) return false;
    const int64_t units = end - begin < 4 ? 1 : (end - begin) / 4;
    const bool front = side == Side::kFront;
    const uint64_t left = pack(epoch, front ? begin + units : begin, front ? end : end - units);
    if (!range.packed.compare_exchange_weak(packed, left, std::memory_order_acq_rel)) continue;
    const int64_t first = (front ? begin : end - units) * unit_, last = first + units * unit_;
    piece = {first, last < tasks_ ? last : tasks_};
    return true;
  }
}

void Pool::work(uint32_t epoch, int index) {
  bool begun = false;
  for (int i = 0; i < threads(); ++i) {
    Range& range = ranges_[static_cast<size_t>((index + i) % threads())];
    Piece piece;
    while (claim(range, epoch, i == 0 ? Side::kFront : Side::kBack, piece)) {
      // The claim holds the job in place: run() cannot return before this piece is done.
      if (!begun) begin(index);
      begun = true;
      job_.kernel->run(job_.args, job_.step, piece.begin, piece.end, scratch_[static_cast<size_t>(index)].get());
      finish(piece, epoch);
    }
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
  take_no_core();
  uint32_t seen = 0;
  for (;;) {
    seen = await_job(seen);
    if (stopping_.load()) return;
    work(seen, index);
  }
}

}  // namespace rb
