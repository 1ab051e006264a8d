// Recording of launches over images (rebar_image.h). hal/launches_image.py has checked their shapes.
#include "bind_hal.h"

using namespace nanobind::literals;
using namespace rb::bind;

namespace {

using Window = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t>;

rb_window window_of(const Window& w) {
  const auto& [height, width, channels, out_height, out_width, kernel_height, kernel_width, stride, padding] = w;
  return {height, width, channels, out_height, out_width, kernel_height, kernel_width, stride, padding};
}

void bind_conv(Class& c) {
  c.def(
      "conv",
      [](rb::Program& p, Matrix w, Window window, Rows x, Address bias, Rows y) {
        auto l = launch(RB_OP_CONV);
        l.args.conv = {matrix(w), window_of(window), data(x), at<float>(bias), data(y), stride(x), stride(y)};
        p.add(l);
      },
      nb::kw_only(), "w"_a, "window"_a, "x"_a, "bias"_a, "y"_a);
  c.def(
      "conv_input_gradient",
      [](rb::Program& p, Matrix w, Window window, Rows dy, Rows dx) {
        auto l = launch(RB_OP_CONV_INPUT_GRADIENT);
        l.args.conv_input_gradient = {matrix(w), window_of(window), data(dy), data(dx), stride(dy), stride(dx)};
        p.add(l);
      },
      nb::kw_only(), "w"_a, "window"_a, "dy"_a, "dx"_a);
  c.def(
      "conv_weight_gradient",
      [](rb::Program& p, Matrix dw, Window window, Rows x, Rows dy) {
        auto l = launch(RB_OP_CONV_WEIGHT_GRADIENT);
        l.args.conv_weight_gradient = {matrix(dw), window_of(window), data(x), data(dy), stride(x), stride(dy)};
        p.add(l);
      },
      nb::kw_only(), "dw"_a, "window"_a, "x"_a, "dy"_a);
  c.def(
      "channel_sums",
      [](rb::Program& p, Rows dy, Address db, int32_t positions, int32_t n) {
        auto l = launch(RB_OP_CHANNEL_SUMS);
        l.args.channel_sums = {data(dy), at<float>(db), stride(dy), positions, n};
        p.add(l);
      },
      nb::kw_only(), "dy"_a, "db"_a, "positions"_a, "n"_a);
}

void bind_pool(Class& c) {
  c.def(
      "pool",
      [](rb::Program& p, Window window, Rows x, Rows y, int32_t kind) {
        auto l = launch(RB_OP_POOL);
        l.args.pool = {window_of(window), data(x), data(y), stride(x), stride(y), kind};
        p.add(l);
      },
      nb::kw_only(), "window"_a, "x"_a, "y"_a, "kind"_a);
  c.def(
      "pool_gradient",
      [](rb::Program& p, Window window, Rows x, Rows y, Rows dy, Rows dx, int32_t kind) {
        auto l = launch(RB_OP_POOL_GRADIENT);
        l.args.pool_gradient = {window_of(window), data(x),   data(y),    data(dy),   data(dx),
                                stride(x),         stride(y), stride(dy), stride(dx), kind};
        p.add(l);
      },
      nb::kw_only(), "window"_a, "x"_a, "y"_a, "dy"_a, "dx"_a, "kind"_a);
}

void bind_group_norm(Class& c) {
  c.def(
      "group_norm",
      [](rb::Program& p, Rows x, Address weight, Address bias, Rows y, Rows stats, int32_t positions, int32_t channels,
         int32_t groups, float eps) {
        auto l = launch(RB_OP_GROUP_NORM);
        l.args.group_norm = {data(x),   at<float>(weight), at<float>(bias), data(y),  data(stats), stride(x),
                             stride(y), stride(stats),     positions,       channels, groups,      eps};
        p.add(l);
      },
      nb::kw_only(), "x"_a, "weight"_a, "bias"_a, "y"_a, "stats"_a, "positions"_a, "channels"_a, "groups"_a, "eps"_a);
  c.def(
      "group_norm_gradient",
      [](rb::Program& p, Rows x, Address weight, Rows stats, Rows dy, Rows dx, int32_t positions, int32_t channels,
         int32_t groups) {
        auto l = launch(RB_OP_GROUP_NORM_GRADIENT);
        l.args.group_norm_gradient = {data(x),       at<float>(weight), data(stats), data(dy),  data(dx), stride(x),
                                      stride(stats), stride(dy),        stride(dx),  positions, channels, groups};
        p.add(l);
      },
      nb::kw_only(), "x"_a, "weight"_a, "stats"_a, "dy"_a, "dx"_a, "positions"_a, "channels"_a, "groups"_a);
  c.def(
      "group_norm_weight_gradient",
      [](rb::Program& p, Rows x, Rows stats, Rows dy, Address dweight, Address dbias, int32_t positions,
         int32_t channels, int32_t groups) {
        auto l = launch(RB_OP_GROUP_NORM_WEIGHT_GRADIENT);
        l.args.group_norm_weight_gradient = {data(x),          data(stats), data(dy),      at<float>(dweight),
                                             at<float>(dbias), stride(x),   stride(stats), stride(dy),
                                             positions,        channels,    groups};
        p.add(l);
      },
      nb::kw_only(), "x"_a, "stats"_a, "dy"_a, "dweight"_a, "dbias"_a, "positions"_a, "channels"_a, "groups"_a);
}

void bind_activations(Class& c) {
  c.def(
      "relu",
      [](rb::Program& p, Rows x, Rows y, int32_t n) {
        auto l = launch(RB_OP_RELU);
        l.args.relu = {data(x), data(y), stride(x), stride(y), n};
        p.add(l);
      },
      nb::kw_only(), "x"_a, "y"_a, "n"_a);
  c.def(
      "relu_gradient",
      [](rb::Program& p, Rows y, Rows dy, Rows dx, int32_t n) {
        auto l = launch(RB_OP_RELU_GRADIENT);
        l.args.relu_gradient = {data(y), data(dy), data(dx), stride(y), stride(dy), stride(dx), n};
        p.add(l);
      },
      nb::kw_only(), "y"_a, "dy"_a, "dx"_a, "n"_a);
  c.def(
      "dropout",
      [](rb::Program& p, Rows x, Rows y, Address key, int32_t n, bool add, uint32_t salt, uint32_t threshold,
         float scale) {
        auto l = launch(RB_OP_DROPOUT);
        l.args.dropout = {data(x),     data(y), at<uint32_t>(key), stride(x), stride(y), n,
                          add ? 1 : 0, salt,    threshold,         scale};
        p.add(l);
      },
      nb::kw_only(), "x"_a, "y"_a, "key"_a, "n"_a, "add"_a, "salt"_a, "threshold"_a, "scale"_a);
}

}  // namespace

void bind_image_launches(Class& c) {
  bind_conv(c);
  bind_pool(c);
  bind_group_norm(c);
  bind_activations(c);
}
