#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_weights(nb::module_& m) { (void)m; }
