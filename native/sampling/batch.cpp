#include "sampling/batch.h"

namespace rebar::sampling {
namespace {

// The pool hands these back as it got them.
const rb_args* as_args(Batch* batch) { return reinterpret_cast<const rb_args*>(batch); }
Batch* as_batch(const rb_args* args) { return const_cast<Batch*>(reinterpret_cast<const Batch*>(args)); }

}  // namespace

Batch::Batch(int32_t vocab_size, const Lanes& lanes, rb::Pool* pool) : pool_(pool) {
  const int threads = pool == nullptr ? 1 : pool->threads();
  for (int i = 0; i < threads; ++i) seats_.push_back(std::make_unique<Seat>(vocab_size, lanes));
}

int64_t Batch::tasks(const rb_args* args, const rb_step*) { return static_cast<int64_t>(as_batch(args)->rows_.size()); }

void Batch::run(const rb_args* args, const rb_step*, int64_t begin, int64_t end, void*) {
  Batch* batch = as_batch(args);
  batch->work(batch->rows_.data() + begin, batch->rows_.data() + end);
}

// There are as many seats as threads, and a thread holds one at a time: one is always free.
void Batch::work(Row* begin, Row* end) {
  for (size_t i = 0;; i = (i + 1) % seats_.size()) {
    Seat& seat = *seats_[i];
    if (seat.taken.test_and_set(std::memory_order_acquire)) continue;
    for (Row* row = begin; row < end; ++row) row->answer = seat.sampler.sample(row->request, *row->params, row->top);
    return seat.taken.clear(std::memory_order_release);
  }
}

void Batch::sample(std::span<Row> rows) {
  static constexpr rb_kernel kKernel{"sample", &Batch::tasks, &Batch::run, nullptr};
  const std::scoped_lock turn(mutex_);
  if (pool_ == nullptr || rows.size() < 2) return work(rows.data(), rows.data() + rows.size());
  rows_ = rows;
  const auto lock = pool_->lock();
  pool_->run({&kKernel, as_args(this), nullptr});
}

}  // namespace rebar::sampling
