// kernels.h: all kernel stems and their table; included once by each isa_*.cpp.
#pragma once
#include "cpu/append.h"
#include "cpu/attention.h"
#include "cpu/embed.h"
#include "cpu/image/kernels.h"
#include "cpu/lora.h"
#include "cpu/matmul.h"
#include "cpu/rms_norm.h"
#include "cpu/rope.h"
#include "cpu/rope_append.h"
#include "cpu/training/kernels.h"

namespace rb::RB_NS {

constexpr rb_kernel kTable[RB_OPS] = {
    {"embed", embed_tasks, embed_run, no_scratch},
    {"rms_norm", rms_norm_tasks, rms_norm_run, no_scratch},
    {"quantize", quantize_tasks, quantize_run, no_scratch},
    {"matmul", matmul_tasks, matmul_run, matmul_scratch},
    {"rope", rope_tasks, rope_run, no_scratch},
    {"append", append_tasks, append_run, append_scratch},
    {"attention", attention_tasks, attention_run, attention_scratch},
    {"gated", gated_tasks, gated_run, no_scratch},
    {"add", add_tasks, add_run, no_scratch},
    {"select", select_tasks, select_run, no_scratch},
    {"softcap", softcap_tasks, softcap_run, no_scratch},
    {"attention_merge", attention_merge_tasks, attention_merge_run, attention_merge_scratch},
    {"rope_append", rope_append_tasks, rope_append_run, rope_append_scratch},
    {"lora_down", lora_down_tasks, lora_down_run, no_scratch},
    {"lora_up", lora_up_tasks, lora_up_run, no_scratch},
    {"conv", conv_tasks, conv_run, conv_scratch},
    {"conv_input_gradient", conv_input_gradient_tasks, conv_input_gradient_run, conv_input_gradient_scratch},
    {"conv_weight_gradient", conv_weight_gradient_tasks, conv_weight_gradient_run, no_scratch},
    {"channel_sums", channel_sums_tasks, channel_sums_run, no_scratch},
    {"pool", pool_tasks, pool_run, no_scratch},
    {"pool_gradient", pool_gradient_tasks, pool_gradient_run, no_scratch},
    {"group_norm", group_norm_tasks, group_norm_run, group_norm_scratch},
    {"group_norm_gradient", group_norm_gradient_tasks, group_norm_gradient_run, group_norm_gradient_scratch},
    {"group_norm_weight_gradient", group_norm_weight_gradient_tasks, group_norm_weight_gradient_run, no_scratch},
    {"relu", relu_tasks, relu_run, no_scratch},
    {"relu_gradient", relu_gradient_tasks, relu_gradient_run, no_scratch},
    {"dropout", dropout_tasks, dropout_run, no_scratch},
    {"matmul_input_gradient", matmul_input_gradient_tasks, matmul_input_gradient_run, matmul_input_gradient_scratch},
    {"matmul_weight_gradient", matmul_weight_gradient_tasks, matmul_weight_gradient_run,
     matmul_weight_gradient_scratch},
    {"sum_rows", sum_rows_tasks, sum_rows_run, no_scratch},
    {"add_into", add_into_tasks, add_into_run, no_scratch},
    {"zero", zero_tasks, zero_run, no_scratch},
    {"embed_gradient", embed_gradient_tasks, embed_gradient_run, no_scratch},
    {"rms_norm_gradient", rms_norm_gradient_tasks, rms_norm_gradient_run, no_scratch},
    {"rope_gradient", rope_gradient_tasks, rope_gradient_run, no_scratch},
    {"attention_gradient", attention_gradient_tasks, attention_gradient_run, attention_gradient_scratch},
    {"attention_gradient_merge", attention_gradient_merge_tasks, attention_gradient_merge_run, no_scratch},
    {"gated_gradient", gated_gradient_tasks, gated_gradient_run, no_scratch},
    {"select_gradient", select_gradient_tasks, select_gradient_run, no_scratch},
    {"softcap_gradient", softcap_gradient_tasks, softcap_gradient_run, no_scratch},
    {"cross_entropy", cross_entropy_tasks, cross_entropy_run, no_scratch},
    {"cross_entropy_gradient", cross_entropy_gradient_tasks, cross_entropy_gradient_run, no_scratch},
    {"square_sums", square_sums_tasks, square_sums_run, no_scratch},
    {"adamw", adamw_tasks, adamw_run, no_scratch},
    {"sgd", sgd_tasks, sgd_run, no_scratch},
};

}  // namespace rb::RB_NS
