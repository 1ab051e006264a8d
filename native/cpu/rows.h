// rows.h: how launches that go row by row are cut into tasks.
#pragma once
#include "cpu/vec.h"
#include "rebar.h"

namespace rb::RB_NS {

struct RowRange {
  int64_t begin, end;
};

RB_INLINE int64_t domain_rows(const rb_step* step, int32_t domain) {
  return domain == RB_LOGIT_ROWS ? step->logit_rows : step->rows;
}

// Rows a task: about 4096 elements, 1-2 us of work against some 100 ns for handing a task out.
RB_INLINE int64_t rows_per_task(int64_t width) { return width >= 4096 ? 1 : 4096 / (width > 0 ? width : 1); }
RB_INLINE int64_t row_tasks(int64_t rows, int64_t width) {
  const int64_t per = rows_per_task(width);
  return (rows + per - 1) / per;
}
RB_INLINE RowRange rows_of(int64_t rows, int64_t width, int64_t task_begin, int64_t task_end) {
  const int64_t per = rows_per_task(width), end = task_end * per;
  return {task_begin * per, end < rows ? end : rows};
}

[[maybe_unused]] static size_t no_scratch(const rb_args*, int32_t) { return 0; }

}  // namespace rb::RB_NS
