// What the files that bind launches share: addresses as integers, a packed matrix as a tuple, a launch to fill.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "program.h"

namespace rb::bind {

namespace nb = nanobind;

using Class = nb::class_<Program>;
using Address = uintptr_t;
using Matrix = std::tuple<Address, int32_t, int32_t, int32_t>;  // data, type, n, k

template <class T>
T* at(Address a) {
  return reinterpret_cast<T*>(a);
}

inline rb_matrix matrix(const Matrix& m) {
  const auto& [data, type, n, k] = m;
  return {at<const void>(data), type, n, k};
}

inline rb_launch launch(rb_op op) {
  rb_launch l{};
  l.op = op;
  return l;
}

}  // namespace rb::bind
