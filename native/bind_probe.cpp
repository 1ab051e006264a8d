// Python's view of the probes; hal/measure.py repeats them and makes sense of the seconds.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include "probe.h"

namespace nb = nanobind;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

double timed_read(rb::Pool& pool, int32_t isa, const Bytes& data, int threads, int64_t rounds, bool ahead) {
  const void* from = data.data();
  const auto nbytes = static_cast<int64_t>(data.size());
  const nb::gil_scoped_release release;
  return rb::probe_read(pool, isa, from, nbytes, threads, rounds, ahead);
}

std::pair<double, int64_t> timed_arithmetic(rb::Pool& pool, int32_t isa, bool dot, int threads, int64_t rounds) {
  const nb::gil_scoped_release release;
  const auto kind = dot ? rb::Arithmetic::kDot : rb::Arithmetic::kFma;
  const rb::Work work = rb::probe_arithmetic(pool, isa, kind, threads, rounds);
  return {work.seconds, work.operations};
}

double timed_launches(rb::Pool& pool, int64_t count) {
  const nb::gil_scoped_release release;
  return rb::probe_launches(pool, count);
}

double timed_meeting(rb::Pool& pool) {
  const nb::gil_scoped_release release;
  return rb::probe_meeting(pool);
}

}  // namespace

void bind_probe(nb::module_& m) {
  m.def("probe_read", &timed_read, nb::arg("pool"), nb::arg("isa"), nb::arg("data"), nb::kw_only(), nb::arg("threads"),
        nb::arg("rounds"), nb::arg("ahead"), "Seconds in which threads read data so often, each its own part of it.");
  m.def("probe_arithmetic", &timed_arithmetic, nb::arg("pool"), nb::arg("isa"), nb::kw_only(), nb::arg("dot"),
        nb::arg("threads"), nb::arg("rounds"), "Seconds, and operations done in them: int8 dot products or f32 fma.");
  m.def("probe_launches", &timed_launches, nb::arg("pool"), nb::arg("count"), "Seconds of so many empty launches.");
  m.def("probe_meeting", &timed_meeting, nb::arg("pool"), "Seconds until one launch has every thread at work.");
}
