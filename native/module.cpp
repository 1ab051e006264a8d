// rebar._native: every area registers its own functions; nothing else lives here.
#include <nanobind/nanobind.h>

#include "rebar.h"

namespace nb = nanobind;

void bind_hal(nb::module_& m);        // native/bind_hal.cpp: pool, program, launches
void bind_weights(nb::module_& m);    // native/cpu/bind_weights.cpp: pack, unpack, sizes
void bind_text(nb::module_& m);       // native/text/bind_text.cpp: tokenizers, streaming text
void bind_json(nb::module_& m);       // native/text/bind_json.cpp: records of data sets
void bind_sampling(nb::module_& m);   // native/sampling/bind_sampling.cpp: logits -> id
void bind_lookup(nb::module_& m);     // native/sampling/bind_lookup.cpp: what an id may be, from the ids before
void bind_cut_guard(nb::module_& m);  // native/bind_cut_guard.cpp: mapped files that are cut while they are read
void bind_png(nb::module_& m);        // native/bind_png.cpp: lines of PNG images
void bind_probe(nb::module_& m);      // native/bind_probe.cpp: what the machine gives

NB_MODULE(_native, m) {
  // At the interpreter's end a module or daemon thread may still hold a model: no leak, and nothing a user could do about.
  nb::set_leak_warnings(false);
  m.attr("ABI_VERSION") = RB_ABI_VERSION;
  m.attr("LAYOUT_VERSION") = RB_LAYOUT_VERSION;
  bind_hal(m);
  bind_weights(m);
  bind_text(m);
  bind_json(m);
  bind_sampling(m);
  bind_lookup(m);
  bind_probe(m);
  bind_png(m);
  bind_cut_guard(m);
}
