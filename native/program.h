// A program: launches in recorded order, run by one call.
//
// The law: everything but the step is fixed when a launch is added. The step is checked against the limits before the first
// launch, so kernels can trust every id, position, block and row number they meet.
#pragma once
#include <string>
#include <vector>

#include "pool.h"

namespace rb {

struct Limits {
  int32_t rows = 0;        // most rows of a step
  int32_t logit_rows = 0;  // most rows with logits
  int32_t sequences = 0;   // most block tables
  int32_t vocab = 0;       // ids below this
  int32_t positions = 0;   // positions below this
  int32_t blocks = 0;      // block numbers below this
  int32_t adapters = 0;    // slots of adapters below this
};

class Program {
 public:
  Program(Pool& pool, int32_t isa, const Limits& limits);  // throws std::invalid_argument for a missing instruction set

  void add(const rb_launch& launch);
  size_t size() const { return launches_.size(); }
  // Runs launches begin..end-1 (all: 0, size()). Throws std::invalid_argument for a step that breaks a limit.
  void run(const rb_step& step, size_t begin, size_t end) const;
  // The same, with the nanoseconds of each launch written to ns[0 .. end-begin).
  void run_timed(const rb_step& step, size_t begin, size_t end, int64_t* ns) const;
  const char* name(size_t launch) const;

 private:
  void check(const rb_step& step, size_t begin, size_t end) const;
  Pool& pool_;
  const rb_kernel* kernels_;
  Limits limits_;
  std::vector<rb_launch> launches_;
};

}  // namespace rb
