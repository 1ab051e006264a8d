// batch.h: the rows of one step, sampled by the threads of the engine.
//
// The law: a row is one task and depends on no other, so its answer is the same on any thread and for any number of
// them. Each thread works with scratch of its own; nothing is allocated after construction.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "pool.h"
#include "sampling/sample.h"

namespace rebar::sampling {

struct Row {
  Request request;
  const Params* params;
  Alternative* top;  // room for min(params->top, vocab_size)
  Answer answer;     // written
};

class Batch {
 public:
  // pool: shared with whatever else computes on it, or nullptr for the caller's thread alone. It must outlive this.
  Batch(int32_t vocab_size, const Lanes& lanes, rb::Pool* pool);

  int32_t vocab_size() const { return seats_[0]->sampler.vocab_size(); }
  // Answers every row. Calls from several threads take turns.
  void sample(std::span<Row> rows);

 private:
  struct Seat {
    Seat(int32_t vocab_size, const Lanes& lanes) : sampler(vocab_size, lanes) {}
    std::atomic_flag taken;
    Sampler sampler;
  };

  void work(Row* begin, Row* end);
  static int64_t tasks(const rb_args* args, const rb_step* step);
  static void run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void* scratch);

  rb::Pool* pool_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Seat>> seats_;  // one a thread
  std::span<Row> rows_;                       // of the call in progress
};

}  // namespace rebar::sampling
