// Threads that share one launch after another.
//
// The law: the caller is thread 0 and works too; the others spin for a short while after a job, then sleep on a futex.
// A job is cut into one range per thread, so a thread streams through memory of its own and finds what it wrote last
// time in its caches; it claims pieces from the front of its range, and when that is empty from the back of the others',
// so a core lost to a neighbour slows a job by its share and no more. A claim names the job it belongs to, so a thread
// that wakes late finds nothing to take and touches nothing.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "rebar.h"

namespace rb {

struct Job {
  const rb_kernel* kernel;
  const rb_args* args;
  const rb_step* step;
};

class Pool {
 public:
  explicit Pool(int threads);  // 1..256; throws std::invalid_argument
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(scratch_.size()); }
  // Every thread gets at least this much scratch. Not while a job runs.
  void reserve_scratch(size_t bytes);
  size_t scratch_bytes() const { return scratch_capacity_; }
  // Runs one job to its end. The caller holds the lock: one job at a time.
  void run(const Job& job);
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  using Scratch = std::unique_ptr<std::byte, Free>;
  struct alignas(64) Range {  // epoch << 32 | begin << 16 | end, in units of Pool::unit_ tasks
    std::atomic<uint64_t> packed{0};
  };
  struct Piece {
    int64_t begin, end;  // tasks
  };
  enum class Side { kFront, kBack };

  void worker(int index);
  void work(uint32_t epoch, int index);
  bool claim(Range& range, uint32_t epoch, Side side, Piece& piece);
  void begin(int index);
  void finish(const Piece& piece, uint32_t epoch);
  void await_end(uint32_t epoch);
  uint32_t await_job(uint32_t seen);

  alignas(64) std::atomic<int64_t> unfinished_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};
  std::atomic<uint32_t> ended_{0};  // epoch of a job whose last piece is done
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<int32_t> sleepers_{0};
  std::atomic<bool> stopping_{false};
  Job job_{};
  int64_t tasks_ = 0, unit_ = 1;  // of job_
  std::unique_ptr<Range[]> ranges_;
  std::vector<Scratch> scratch_;
  size_t scratch_capacity_ = 0;
  std::mutex mutex_;
  std::vector<std::thread> workers_;
};

}  // namespace rb
