#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_hal(nb::module_& m) { (void)m; }
