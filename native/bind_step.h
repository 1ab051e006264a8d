// bind_step.h: the arrays of a step, allocated once and filled in place by Python.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "rebar.h"

class Step {
 public:
  Step(int32_t rows, int32_t logit_rows, int32_t sequences, int32_t table_stride)
      : ids(size(rows)),
        positions(size(rows)),
        sequence(size(rows)),
        logit_index(size(logit_rows)),
        adapters(size(rows), -1),
        tables(size(sequences) * size(table_stride)),
        sequences_(sequences),
        stride_(table_stride) {}

  rb_step view() const {
    if (rows < 0 || size(rows) > ids.size() || logit_rows < 0 || size(logit_rows) > logit_index.size())
      throw std::invalid_argument("a step of more rows than it has room for");
    for (int32_t r = 0; r < rows; ++r)
      if (sequence[size(r)] < 0 || sequence[size(r)] >= sequences_)
        throw std::invalid_argument("a row names no block table");
    return {rows,
            logit_rows,
            ids.data(),
            positions.data(),
            sequence.data(),
            tables.data(),
            stride_,
            logit_index.data(),
            adapted() ? adapters.data() : nullptr};
  }
  // Whether a row takes an adapter.
  bool adapted() const {
    const auto used = std::clamp<ptrdiff_t>(rows, 0, static_cast<ptrdiff_t>(adapters.size()));
    return std::any_of(adapters.begin(), adapters.begin() + used, [](int32_t slot) { return slot != -1; });
  }
  using Slice =
      std::tuple<nanobind::ndarray<const int32_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>,
                 int32_t, int32_t, std::vector<int32_t>, int32_t>;

  // Slice i = (ids of a sequence, first position, count, its blocks, its adapter's slot) becomes the next rows and block table i.
  void bind(const std::vector<Slice>& slices) {
    size_t at = 0;
    for (size_t i = 0; i < slices.size(); ++i) {
      const auto& [tokens, first, count, blocks, adapter] = slices[i];
      const size_t begin = size(first), end = begin + size(count), used = (end + 15) / 16;
      if (i >= sequences() || end > tokens.shape(0) || used > blocks.size() || used > stride() || count > size_left(at))
        throw std::invalid_argument("a slice that its sequence, its blocks or the step do not hold");
      for (size_t p = begin; p < end; ++p, ++at) {
        ids[at] = tokens.data()[p];
        positions[at] = static_cast<int32_t>(p);
        sequence[at] = static_cast<int32_t>(i);
        adapters[at] = adapter;
      }
      std::copy_n(blocks.begin(), used, tables.begin() + static_cast<ptrdiff_t>(i * stride()));
    }
    rows = static_cast<int32_t>(at);
  }
  size_t sequences() const { return size(sequences_); }
  size_t stride() const { return size(stride_); }

  int32_t rows = 0, logit_rows = 0;
  std::vector<int32_t> ids, positions, sequence, logit_index, adapters, tables;

 private:
  int64_t size_left(size_t at) const { return static_cast<int64_t>(ids.size() - at); }
  static size_t size(int32_t n) {
    if (n < 0) throw std::invalid_argument("sizes are not negative");
    return static_cast<size_t>(n);
  }
  int32_t sequences_, stride_;
};

void bind_step(nanobind::module_& m);
