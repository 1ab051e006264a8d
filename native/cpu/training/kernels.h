// kernels.h: kernels with translation units of their own, so that a change of one compiles nothing else again. CMake compiles each
// source of this folder once per instruction set (native/isa.cmake gives RB_NS and RB_VEC); cpu/kernels.h puts them in the table.
#pragma once
#include "cpu/rows.h"

namespace rb::RB_NS {

// What a source defines; `NAME_scratch` only where the table names it.
#define RB_KERNEL(name)                                                                                 \
  int64_t name##_tasks(const rb_args* args, const rb_step* step);                                       \
  void name##_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void* scratch); \
  size_t name##_scratch(const rb_args* args, int32_t max_rows)

RB_KERNEL(matmul_input_gradient);
RB_KERNEL(matmul_weight_gradient);
RB_KERNEL(sum_rows);
RB_KERNEL(add_into);
RB_KERNEL(zero);
RB_KERNEL(embed_gradient);
RB_KERNEL(rms_norm_gradient);
RB_KERNEL(rope_gradient);
RB_KERNEL(attention_gradient);
RB_KERNEL(attention_gradient_merge);
RB_KERNEL(gated_gradient);
RB_KERNEL(select_gradient);
RB_KERNEL(softcap_gradient);
RB_KERNEL(cross_entropy);
RB_KERNEL(cross_entropy_gradient);
RB_KERNEL(square_sums);
RB_KERNEL(adamw);
RB_KERNEL(sgd);

}  // namespace rb::RB_NS
