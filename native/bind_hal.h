// What the files that bind launches share: addresses as integers, float rows and packed matrices as tuples, a launch to fill.
// hal/cpu_operands.py makes these of the operands.
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

using Rows = std::tuple<Address, int32_t>;  // data, stride in elements

template <class T>
T* at(Address a) {
  return reinterpret_cast<T*>(a);
}

inline rb_matrix matrix(const Matrix& m) {
  const auto& [data, type, n, k] = m;
  return {at<const void>(data), type, n, k};
}

inline float* data(const Rows& r) { return at<float>(std::get<0>(r)); }
inline int32_t stride(const Rows& r) { return std::get<1>(r); }

inline rb_launch launch(rb_op op) {
  rb_launch l{};
  l.op = op;
  return l;
}

}  // namespace rb::bind
