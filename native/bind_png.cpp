// Python's view of PNG lines; dataflow/images/png.py asks for them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

#include "png_lines.h"

namespace nb = nanobind;

namespace {

using Lines = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Raw = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// raw (height, 1 + nbytes), lines (height, nbytes).
bool unfiltered(const Raw& raw, const Lines& lines, std::size_t unit) {
  const std::size_t height = lines.shape(0), nbytes = lines.shape(1);
  if (raw.shape(0) != height || raw.shape(1) != nbytes + 1 || unit < 1) {
    throw std::invalid_argument("raw is (height, 1 + nbytes), lines (height, nbytes), unit 1 or more");
  }
  const nb::gil_scoped_release release;
  return rb::png_unfiltered(raw.data(), lines.data(), height, nbytes, unit);
}

}  // namespace

void bind_png(nb::module_& m) {
  m.def("png_unfiltered", &unfiltered, nb::arg("raw"), nb::arg("lines"), nb::arg("unit"),
        "Writes the lines of a PNG image; False when one has a rule that does not exist.");
}
