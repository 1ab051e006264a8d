// kernels.h: all kernel stems and their table; included once by each isa_*.cpp.
#pragma once
#include "cpu/append.h"
#include "cpu/attention.h"
#include "cpu/embed.h"
#include "cpu/lora.h"
#include "cpu/matmul.h"
#include "cpu/rms_norm.h"
#include "cpu/rope.h"
#include "cpu/rope_append.h"

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
};

}  // namespace rb::RB_NS
