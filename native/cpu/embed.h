// embed.h: rows of a packed matrix as f32. The arithmetic is unpack.h's, shared by all instruction sets.
#pragma once
#include <assert.h>

#include "cpu/layout.h"
#include "cpu/rows.h"

namespace rb::RB_NS {

static int64_t embed_tasks(const rb_args* a, const rb_step* step) { return row_tasks(step->rows, a->embed.w.k); }

static void embed_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_embed& a = args->embed;
  const int k = a.w.k;
  const F scale = set1(a.scale);
  const RowRange rows = rows_of(step->rows, k, begin, end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int32_t id = step->ids[r];
    assert(id >= 0 && id < a.w.n);
    float* out = a.out + r * a.out_stride;
    unpack_row(a.w, id, out);
    for (int i = 0; i < k; i += 16) store(out + i, mul(load(out + i, k - i), scale), k - i);
  }
}

}  // namespace rb::RB_NS
