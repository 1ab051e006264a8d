// Python's view of a step: its arrays as NumPy's, over the same memory.
#include "bind_step.h"

namespace nb = nanobind;

namespace {

using Ints = nb::ndarray<nb::numpy, int32_t>;

Ints view_of(std::vector<int32_t>& v, std::initializer_list<size_t> shape, nb::handle owner) {
  return Ints(v.data(), shape, owner);
}

}  // namespace

void bind_step(nb::module_& m) {
  nb::class_<Step>(m, "Step")
      .def(nb::init<int32_t, int32_t, int32_t, int32_t>(), nb::arg("rows"), nb::arg("logit_rows"), nb::arg("sequences"),
           nb::arg("table_stride"))
      .def("bind", &Step::bind, nb::arg("slices"))
      .def_rw("rows", &Step::rows)
      .def_rw("logit_rows", &Step::logit_rows)
      .def_prop_ro("ids",
                   [](nb::handle_t<Step> h) {
                     auto& s = nb::cast<Step&>(h);
                     return view_of(s.ids, {s.ids.size()}, h);
                   })
      .def_prop_ro("positions",
                   [](nb::handle_t<Step> h) {
                     auto& s = nb::cast<Step&>(h);
                     return view_of(s.positions, {s.positions.size()}, h);
                   })
      .def_prop_ro("sequences",
                   [](nb::handle_t<Step> h) {
                     auto& s = nb::cast<Step&>(h);
                     return view_of(s.sequence, {s.sequence.size()}, h);
                   })
      .def_prop_ro("logit_index",
                   [](nb::handle_t<Step> h) {
                     auto& s = nb::cast<Step&>(h);
                     return view_of(s.logit_index, {s.logit_index.size()}, h);
                   })
      .def_prop_ro("adapters",
                   [](nb::handle_t<Step> h) {
                     auto& s = nb::cast<Step&>(h);
                     return view_of(s.adapters, {s.adapters.size()}, h);
                   })
      .def_prop_ro("adapted", &Step::adapted)
      .def_prop_ro("tables", [](nb::handle_t<Step> h) {
        auto& s = nb::cast<Step&>(h);
        return view_of(s.tables, {s.sequences(), s.stride()}, h);
      });
}
