#include "program.h"

#include <chrono>
#include <stdexcept>

namespace rb {
namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

void check_rows(const rb_step& step, const Limits& limits) {
  for (int32_t r = 0; r < step.rows; ++r) {
    require(step.ids[r] >= 0 && step.ids[r] < limits.vocab, "a token id is outside the vocabulary");
    require(step.positions[r] >= 0 && step.positions[r] < limits.positions, "a position is outside the context");
    require(step.sequences[r] >= 0 && step.sequences[r] < limits.sequences, "a row names no block table");
    const bool same = r > 0 && step.sequences[r] == step.sequences[r - 1];
    require(!same || step.positions[r] == step.positions[r - 1] + 1,
            "rows of one sequence must be consecutive positions");
  }
}

void check_adapters(const rb_step& step, const Limits& limits) {
  for (int32_t r = 0; step.adapters != nullptr && r < step.rows; ++r)
    require(step.adapters[r] >= -1 && step.adapters[r] < limits.adapters, "a row names no slot of an adapter");
}

// Every block that a row may read: those of positions 0..its own.
void check_blocks(const rb_step& step, const Limits& limits) {
  for (int32_t r = 0; r < step.rows; ++r) {
    const bool last = r + 1 == step.rows || step.sequences[r + 1] != step.sequences[r];
    if (!last) continue;  // the last row of a sequence reaches furthest
    const int32_t count = step.positions[r] / 16 + 1;
    require(count <= step.table_stride, "a position is past its block table");
    const int32_t* table = step.tables + static_cast<int64_t>(step.sequences[r]) * step.table_stride;
    for (int32_t b = 0; b < count; ++b)
      require(table[b] >= 0 && table[b] < limits.blocks, "a block number is outside the cache");
  }
}

}  // namespace

Program::Program(Pool& pool, int32_t isa, const Limits& limits)
    : pool_(pool), kernels_(rb_kernels(isa)), limits_(limits) {
  require(kernels_ != nullptr, "this machine or build lacks the instruction set");
}

void Program::add(const rb_launch& launch) {
  require(launch.op >= 0 && launch.op < RB_OPS, "no such launch");
  const auto lock = pool_.lock();
  pool_.reserve_scratch(kernels_[launch.op].scratch_bytes(&launch.args, limits_.rows));
  launches_.push_back(launch);
}

const char* Program::name(size_t launch) const { return kernels_[launches_.at(launch).op].name; }

void Program::check(const rb_step& step, size_t begin, size_t end) const {
  require(begin <= end && end <= launches_.size(), "no such launches");
  require(step.rows >= 0 && step.rows <= limits_.rows, "more rows than the program was compiled for");
  require(step.logit_rows >= 0 && step.logit_rows <= limits_.logit_rows,
          "more logit rows than the program was compiled for");
  check_rows(step, limits_);
  check_blocks(step, limits_);
  check_adapters(step, limits_);
  for (int32_t i = 0; i < step.logit_rows; ++i)
    require(step.logit_index[i] >= 0 && step.logit_index[i] < step.rows, "a logit row is outside the step");
}

void Program::run(const rb_step& step, size_t begin, size_t end) const {
  check(step, begin, end);
  const auto lock = pool_.lock();
  for (size_t i = begin; i < end; ++i) {
    const rb_launch& launch = launches_[i];
    pool_.run({&kernels_[launch.op], &launch.args, &step});
  }
}

void Program::run_timed(const rb_step& step, size_t begin, size_t end, int64_t* ns) const {
  check(step, begin, end);
  const auto lock = pool_.lock();
  auto last = std::chrono::steady_clock::now();
  for (size_t i = begin; i < end; ++i) {
    const rb_launch& launch = launches_[i];
    pool_.run({&kernels_[launch.op], &launch.args, &step});
    const auto now = std::chrono::steady_clock::now();
    ns[i - begin] = std::chrono::duration_cast<std::chrono::nanoseconds>(now - last).count();
    last = now;
  }
}

}  // namespace rb
