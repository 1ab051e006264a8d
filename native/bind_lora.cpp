// Launches of adapters, as bind_hal.cpp binds the others.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>

#include "bind_hal.h"

using namespace rb::bind;

namespace {

void bind_down(Class& c) {
  c.def(
      "lora_down",
      [](rb::Program& p, Address slots, Address x, Address a, int32_t x_stride, int32_t a_stride, int32_t k,
         int32_t parts, int32_t rank, int32_t domain) {
        auto l = launch(RB_OP_LORA_DOWN);
        l.args.lora_down = {at<const rb_lora_slot>(slots),
                            at<const float>(x),
                            at<float>(a),
                            x_stride,
                            a_stride,
                            k,
                            parts,
                            rank,
                            domain};
        p.add(l);
      },
      nb::kw_only(), nb::arg("slots"), nb::arg("x"), nb::arg("a"), nb::arg("x_stride"), nb::arg("a_stride"),
      nb::arg("k"), nb::arg("parts"), nb::arg("rank"), nb::arg("domain"));
}

void bind_up(Class& c) {
  c.def(
      "lora_up",
      [](rb::Program& p, Address slots, Address a, Address x, Address residual, Address y, int32_t a_stride,
         int32_t x_stride, int32_t residual_stride, int32_t y_stride, int32_t rank, int32_t domain,
         const std::vector<int32_t>& ends) {
        if (ends.empty() || ends.size() > RB_LORA_PARTS) throw std::invalid_argument("an output of 1 to 3 parts");
        const auto parts = static_cast<int32_t>(ends.size());
        auto l = launch(RB_OP_LORA_UP);
        l.args.lora_up = {at<const rb_lora_slot>(slots),
                          at<const float>(a),
                          at<const float>(x),
                          at<const float>(residual),
                          at<float>(y),
                          a_stride,
                          x_stride,
                          residual_stride,
                          y_stride,
                          parts,
                          rank,
                          domain,
                          {}};
        std::copy(ends.begin(), ends.end(), l.args.lora_up.ends);
        p.add(l);
      },
      nb::kw_only(), nb::arg("slots"), nb::arg("a"), nb::arg("x"), nb::arg("residual"), nb::arg("y"),
      nb::arg("a_stride"), nb::arg("x_stride"), nb::arg("residual_stride"), nb::arg("y_stride"), nb::arg("rank"),
      nb::arg("domain"), nb::arg("ends"));
}

}  // namespace

void bind_lora(Class& c) {
  bind_down(c);
  bind_up(c);
}
