// kernels.h: the kernels over images, compiled by the units isa_*.cpp of this folder; the tables of cpu/kernels.h name them.
#pragma once
#include "rebar.h"

namespace rb::RB_NS {

#define RB_DECLARE(name)                                \
  int64_t name##_tasks(const rb_args*, const rb_step*); \
  void name##_run(const rb_args*, const rb_step*, int64_t begin, int64_t end, void* scratch);
RB_DECLARE(conv)
RB_DECLARE(conv_input_gradient)
RB_DECLARE(conv_weight_gradient)
RB_DECLARE(channel_sums)
RB_DECLARE(pool)
RB_DECLARE(pool_gradient)
RB_DECLARE(group_norm)
RB_DECLARE(group_norm_gradient)
RB_DECLARE(group_norm_weight_gradient)
RB_DECLARE(relu)
RB_DECLARE(relu_gradient)
RB_DECLARE(dropout)
#undef RB_DECLARE
size_t conv_scratch(const rb_args*, int32_t max_rows);
size_t conv_input_gradient_scratch(const rb_args*, int32_t max_rows);
size_t group_norm_scratch(const rb_args*, int32_t max_rows);
size_t group_norm_gradient_scratch(const rb_args*, int32_t max_rows);

}  // namespace rb::RB_NS
