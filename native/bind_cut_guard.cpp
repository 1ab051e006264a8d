// Python's view of the guard; hal/files.py asks for it.
#include <nanobind/nanobind.h>

#include <stdexcept>

#include "cut_guard.h"

namespace nb = nanobind;

namespace {

int checked(int guard) {
  if (guard < 0 || guard >= rb::kGuards) throw std::invalid_argument("no guard has this number");
  return guard;
}

}  // namespace

void bind_cut_guard(nb::module_& m) {
  m.def(
      "guard_mapping",
      [](uintptr_t address, std::size_t nbytes) {
        return rb::guard_mapping(reinterpret_cast<const void*>(address), nbytes);
      },
      nb::arg("address"), nb::arg("nbytes"),
      "Reads past the end of the file mapped there give zeros. -1: no guard is left.");
  m.def(
      "give_up_guard", [](int guard) { rb::give_up_guard(checked(guard)); }, nb::arg("guard"),
      "Before the mapping goes.");
  m.def(
      "was_cut", [](int guard) { return rb::was_cut(checked(guard)); }, nb::arg("guard"),
      "Whether zeros stand there instead of the file.");
}
