// Recording of launches over images (rebar_image.h). hal/launches_image.py has checked their shapes.
#include "bind_image.h"

using namespace rb::bind;

namespace {

using Size = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t>;

rb_window window_of(const Size& w) {
  const auto& [height, width, channels, out_height, out_width, kernel_height, kernel_width, stride, padding] = w;
  return {height, width, channels, out_height, out_width, kernel_height, kernel_width, stride, padding};
}

void bind_conv(Class& c) {
  c.def(
      "conv",
      [](rb::Program& p, Matrix w, Size window, Address x, Address bias, Address y, int32_t x_stride,
         int32_t y_stride) {
        auto l = launch(RB_OP_CONV);
        l.args.conv = {matrix(w), window_of(window), at<const float>(x), at<const float>(bias), at<float>(y),
                       x_stride,  y_stride};
        p.add(l);
      },
      nb::kw_only(), nb::arg("w"), nb::arg("window"), nb::arg("x"), nb::arg("bias"), nb::arg("y"), nb::arg("x_stride"),
      nb::arg("y_stride"));
  c.def(
      "conv_input_gradient",
      [](rb::Program& p, Matrix w, Size window, Address dy, Address dx, int32_t dy_stride, int32_t dx_stride) {
        auto l = launch(RB_OP_CONV_INPUT_GRADIENT);
        l.args.conv_input_gradient = {matrix(w),     window_of(window), at<const float>(dy),
                                      at<float>(dx), dy_stride,         dx_stride};
        p.add(l);
      },
      nb::kw_only(), nb::arg("w"), nb::arg("window"), nb::arg("dy"), nb::arg("dx"), nb::arg("dy_stride"),
      nb::arg("dx_stride"));
  c.def(
      "conv_weight_gradient",
      [](rb::Program& p, Matrix dw, Size window, Address x, Address dy, int32_t x_stride, int32_t dy_stride) {
        auto l = launch(RB_OP_CONV_WEIGHT_GRADIENT);
        l.args.conv_weight_gradient = {matrix(dw),          window_of(window), at<const float>(x),
                                       at<const float>(dy), x_stride,          dy_stride};
        p.add(l);
      },
      nb::kw_only(), nb::arg("dw"), nb::arg("window"), nb::arg("x"), nb::arg("dy"), nb::arg("x_stride"),
      nb::arg("dy_stride"));
  c.def(
      "channel_sums",
      [](rb::Program& p, Address dy, Address db, int32_t dy_stride, int32_t positions, int32_t n) {
        auto l = launch(RB_OP_CHANNEL_SUMS);
        l.args.channel_sums = {at<const float>(dy), at<float>(db), dy_stride, positions, n};
        p.add(l);
      },
      nb::kw_only(), nb::arg("dy"), nb::arg("db"), nb::arg("dy_stride"), nb::arg("positions"), nb::arg("n"));
}

void bind_pool(Class& c) {
  c.def(
      "pool",
      [](rb::Program& p, Size window, Address x, Address y, int32_t x_stride, int32_t y_stride, int32_t kind) {
        auto l = launch(RB_OP_POOL);
        l.args.pool = {window_of(window), at<const float>(x), at<float>(y), x_stride, y_stride, kind};
        p.add(l);
      },
      nb::kw_only(), nb::arg("window"), nb::arg("x"), nb::arg("y"), nb::arg("x_stride"), nb::arg("y_stride"),
      nb::arg("kind"));
  c.def(
      "pool_gradient",
      [](rb::Program& p, Size window, Address x, Address y, Address dy, Address dx, int32_t x_stride, int32_t y_stride,
         int32_t dy_stride, int32_t dx_stride, int32_t kind) {
        auto l = launch(RB_OP_POOL_GRADIENT);
        l.args.pool_gradient = {
            window_of(window), at<const float>(x), at<const float>(y), at<const float>(dy), at<float>(dx),
            x_stride,          y_stride,           dy_stride,          dx_stride,           kind};
        p.add(l);
      },
      nb::kw_only(), nb::arg("window"), nb::arg("x"), nb::arg("y"), nb::arg("dy"), nb::arg("dx"), nb::arg("x_stride"),
      nb::arg("y_stride"), nb::arg("dy_stride"), nb::arg("dx_stride"), nb::arg("kind"));
}

void bind_group_norm(Class& c) {
  c.def(
      "group_norm",
      [](rb::Program& p, Address x, Address weight, Address bias, Address y, Address stats, int32_t x_stride,
         int32_t y_stride, int32_t stats_stride, int32_t positions, int32_t channels, int32_t groups, float eps) {
        auto l = launch(RB_OP_GROUP_NORM);
        l.args.group_norm = {at<const float>(x),
                             at<const float>(weight),
                             at<const float>(bias),
                             at<float>(y),
                             at<float>(stats),
                             x_stride,
                             y_stride,
                             stats_stride,
                             positions,
                             channels,
                             groups,
                             eps};
        p.add(l);
      },
      nb::kw_only(), nb::arg("x"), nb::arg("weight"), nb::arg("bias"), nb::arg("y"), nb::arg("stats"),
      nb::arg("x_stride"), nb::arg("y_stride"), nb::arg("stats_stride"), nb::arg("positions"), nb::arg("channels"),
      nb::arg("groups"), nb::arg("eps"));
  c.def(
      "group_norm_gradient",
      [](rb::Program& p, Address x, Address weight, Address stats, Address dy, Address dx, int32_t x_stride,
         int32_t stats_stride, int32_t dy_stride, int32_t dx_stride, int32_t positions, int32_t channels,
         int32_t groups) {
        auto l = launch(RB_OP_GROUP_NORM_GRADIENT);
        l.args.group_norm_gradient = {at<const float>(x),
                                      at<const float>(weight),
                                      at<const float>(stats),
                                      at<const float>(dy),
                                      at<float>(dx),
                                      x_stride,
                                      stats_stride,
                                      dy_stride,
                                      dx_stride,
                                      positions,
                                      channels,
                                      groups};
        p.add(l);
      },
      nb::kw_only(), nb::arg("x"), nb::arg("weight"), nb::arg("stats"), nb::arg("dy"), nb::arg("dx"),
      nb::arg("x_stride"), nb::arg("stats_stride"), nb::arg("dy_stride"), nb::arg("dx_stride"), nb::arg("positions"),
      nb::arg("channels"), nb::arg("groups"));
  c.def(
      "group_norm_weight_gradient",
      [](rb::Program& p, Address x, Address stats, Address dy, Address dweight, Address dbias, int32_t x_stride,
         int32_t stats_stride, int32_t dy_stride, int32_t positions, int32_t channels, int32_t groups) {
        auto l = launch(RB_OP_GROUP_NORM_WEIGHT_GRADIENT);
        l.args.group_norm_weight_gradient = {at<const float>(x),
                                             at<const float>(stats),
                                             at<const float>(dy),
                                             at<float>(dweight),
                                             at<float>(dbias),
                                             x_stride,
                                             stats_stride,
                                             dy_stride,
                                             positions,
                                             channels,
                                             groups};
        p.add(l);
      },
      nb::kw_only(), nb::arg("x"), nb::arg("stats"), nb::arg("dy"), nb::arg("dweight"), nb::arg("dbias"),
      nb::arg("x_stride"), nb::arg("stats_stride"), nb::arg("dy_stride"), nb::arg("positions"), nb::arg("channels"),
      nb::arg("groups"));
}

void bind_activations(Class& c) {
  c.def(
      "relu",
      [](rb::Program& p, Address x, Address y, int32_t x_stride, int32_t y_stride, int32_t n) {
        auto l = launch(RB_OP_RELU);
        l.args.relu = {at<const float>(x), at<float>(y), x_stride, y_stride, n};
        p.add(l);
      },
      nb::kw_only(), nb::arg("x"), nb::arg("y"), nb::arg("x_stride"), nb::arg("y_stride"), nb::arg("n"));
  c.def(
      "relu_gradient",
      [](rb::Program& p, Address y, Address dy, Address dx, int32_t y_stride, int32_t dy_stride, int32_t dx_stride,
         int32_t n) {
        auto l = launch(RB_OP_RELU_GRADIENT);
        l.args.relu_gradient = {
            at<const float>(y), at<const float>(dy), at<float>(dx), y_stride, dy_stride, dx_stride, n};
        p.add(l);
      },
      nb::kw_only(), nb::arg("y"), nb::arg("dy"), nb::arg("dx"), nb::arg("y_stride"), nb::arg("dy_stride"),
      nb::arg("dx_stride"), nb::arg("n"));
  c.def(
      "dropout",
      [](rb::Program& p, Address x, Address y, Address key, int32_t x_stride, int32_t y_stride, int32_t n, bool add,
         uint32_t salt, uint32_t threshold, float scale) {
        auto l = launch(RB_OP_DROPOUT);
        l.args.dropout = {
            at<const float>(x), at<float>(y), at<const uint32_t>(key), x_stride, y_stride, n, add ? 1 : 0, salt,
            threshold,          scale};
        p.add(l);
      },
      nb::kw_only(), nb::arg("x"), nb::arg("y"), nb::arg("key"), nb::arg("x_stride"), nb::arg("y_stride"), nb::arg("n"),
      nb::arg("add"), nb::arg("salt"), nb::arg("threshold"), nb::arg("scale"));
}

}  // namespace

void bind_image_launches(Class& c) {
  bind_conv(c);
  bind_pool(c);
  bind_group_norm(c);
  bind_activations(c);
}
