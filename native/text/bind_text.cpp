#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_text(nb::module_& m) { (void)m; }
