// Python's view of pool, step and program. Addresses come as integers: hal/launches.py has checked their shapes, and hal/cpu.py
// keeps their memory alive as long as the program.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind_hal.h"
#include "bind_step.h"

using namespace rb::bind;

void bind_image_launches(Class& c);  // native/bind_image.cpp
void bind_lora(Class& c);            // native/bind_lora.cpp
void bind_training(Class& c);        // native/bind_training.cpp

namespace {

void bind_embed(Class& c) {
  c.def(
      "embed",
      [](rb::Program& p, Matrix w, Address out, int32_t out_stride, float scale) {
        auto l = launch(RB_OP_EMBED);
        l.args.embed = {matrix(w), at<float>(out), out_stride, scale};
        p.add(l);
      },
      nb::kw_only(), nb::arg("w"), nb::arg("out"), nb::arg("out_stride"), nb::arg("scale"));
}

void bind_rms_norm(Class& c) {
  c.def(
      "rms_norm",
      [](rb::Program& p, Address x, Address weight, Address y, Address yq, int32_t x_stride, int32_t y_stride,
         int32_t n, int32_t groups, float eps, int32_t domain, int32_t group) {
        auto l = launch(RB_OP_RMS_NORM);
        l.args.rms_norm = {at<const float>(x),
                           at<const float>(weight),
                           at<float>(y),
                           at<uint8_t>(yq),
                           x_stride,
                           y_stride,
                           n,
                           groups,
                           eps,
                           domain,
                           group};
        p.add(l);
      },
      nb::kw_only(), nb::arg("x"), nb::arg("weight"), nb::arg("y"), nb::arg("yq"), nb::arg("x_stride"),
      nb::arg("y_stride"), nb::arg("n"), nb::arg("groups"), nb::arg("eps"), nb::arg("domain"), nb::arg("group"));
}

void bind_quantize(Class& c) {
  c.def(
      "quantize",
      [](rb::Program& p, Address x, Address xq, int32_t x_stride, int32_t k, int32_t domain, int32_t group) {
        auto l = launch(RB_OP_QUANTIZE);
        l.args.quantize = {at<const float>(x), at<uint8_t>(xq), x_stride, k, domain, group};
        p.add(l);
      },
      nb::kw_only(), nb::arg("x"), nb::arg("xq"), nb::arg("x_stride"), nb::arg("k"), nb::arg("domain"),
      nb::arg("group"));
}

void bind_matmul(Class& c) {
  c.def(
      "matmul",
      [](rb::Program& p, Matrix w, Address x, Address xq, Address bias, Address residual, Address y, int32_t x_stride,
         int32_t y_stride, int32_t residual_stride, int32_t domain, int32_t group) {
        auto l = launch(RB_OP_MATMUL);
        l.args.matmul = {matrix(w),
                         at<const float>(x),
                         at<const uint8_t>(xq),
                         at<const float>(bias),
                         at<const float>(residual),
                         at<float>(y),
                         x_stride,
                         y_stride,
                         residual_stride,
                         domain,
                         group};
        p.add(l);
      },
      nb::kw_only(), nb::arg("w"), nb::arg("x"), nb::arg("xq"), nb::arg("bias"), nb::arg("residual"), nb::arg("y"),
      nb::arg("x_stride"), nb::arg("y_stride"), nb::arg("residual_stride"), nb::arg("domain"), nb::arg("group"));
}

void bind_rope(Class& c) {
  c.def(
      "rope",
      [](rb::Program& p, Address x, Address y, Address table, int32_t x_stride, int32_t y_stride, int32_t heads,
         int32_t head_dim, int32_t dim, int32_t table_rows) {
        auto l = launch(RB_OP_ROPE);
        l.args.rope = {at<const float>(x), at<float>(y), at<const float>(table),
                       x_stride,           y_stride,     heads,
                       head_dim,           dim,          table_rows};
        p.add(l);
      },
      nb::kw_only(), nb::arg("x"), nb::arg("y"), nb::arg("table"), nb::arg("x_stride"), nb::arg("y_stride"),
      nb::arg("heads"), nb::arg("head_dim"), nb::arg("dim"), nb::arg("table_rows"));
}

void bind_append(Class& c) {
  c.def(
      "append",
      [](rb::Program& p, Address k, Address v, Address cache, int64_t block_stride, int32_t kv_type, int32_t k_stride,
         int32_t v_stride, int32_t kv_heads, int32_t head_dim, int32_t blocks) {
        auto l = launch(RB_OP_APPEND);
        l.args.append = {at<const float>(k), at<const float>(v), at<uint8_t>(cache), block_stride, kv_type,
                         k_stride,           v_stride,           kv_heads,           head_dim,     blocks};
        p.add(l);
      },
      nb::kw_only(), nb::arg("k"), nb::arg("v"), nb::arg("cache"), nb::arg("block_stride"), nb::arg("kv_type"),
      nb::arg("k_stride"), nb::arg("v_stride"), nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("blocks"));
}

void bind_rope_append(Class& c) {
  c.def(
      "rope_append",
      [](rb::Program& p, Address q, Address out, Address table, Address k, Address v, Address cache, int32_t q_stride,
         int32_t out_stride, int32_t heads, int32_t dim, int32_t table_rows, int64_t block_stride, int32_t kv_type,
         int32_t k_stride, int32_t v_stride, int32_t kv_heads, int32_t head_dim, int32_t blocks) {
        auto l = launch(RB_OP_ROPE_APPEND);
        l.args.rope_append.rope = {
            at<const float>(q), at<float>(out), at<const float>(table), q_stride, out_stride, heads, head_dim, dim,
            table_rows};
        l.args.rope_append.append = {at<const float>(k), at<const float>(v), at<uint8_t>(cache), block_stride, kv_type,
                                     k_stride,           v_stride,           kv_heads,           head_dim,     blocks};
        p.add(l);
      },
      nb::kw_only(), nb::arg("q"), nb::arg("out"), nb::arg("table"), nb::arg("k"), nb::arg("v"), nb::arg("cache"),
      nb::arg("q_stride"), nb::arg("out_stride"), nb::arg("heads"), nb::arg("dim"), nb::arg("table_rows"),
      nb::arg("block_stride"), nb::arg("kv_type"), nb::arg("k_stride"), nb::arg("v_stride"), nb::arg("kv_heads"),
      nb::arg("head_dim"), nb::arg("blocks"));
}

void bind_attention(Class& c) {
  c.def(
      "attention",
      [](rb::Program& p, bool merge, Address q, Address cache, Address out, Address outq, Address work,
         int64_t block_stride, int32_t kv_type, int32_t q_stride, int32_t out_stride, int32_t heads, int32_t kv_heads,
         int32_t head_dim, int32_t window, int32_t max_positions, int32_t blocks, float scale, float softcap,
         int32_t group) {
        auto l = launch(merge ? RB_OP_ATTENTION_MERGE : RB_OP_ATTENTION);
        l.args.attention = {at<const float>(q),
                            at<const uint8_t>(cache),
                            at<float>(out),
                            at<uint8_t>(outq),
                            at<float>(work),
                            block_stride,
                            kv_type,
                            q_stride,
                            out_stride,
                            heads,
                            kv_heads,
                            head_dim,
                            window,
                            max_positions,
                            blocks,
                            scale,
                            softcap,
                            group};
        p.add(l);
      },
      nb::kw_only(), nb::arg("merge"), nb::arg("q"), nb::arg("cache"), nb::arg("out"), nb::arg("outq"), nb::arg("work"),
      nb::arg("block_stride"), nb::arg("kv_type"), nb::arg("q_stride"), nb::arg("out_stride"), nb::arg("heads"),
      nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("window"), nb::arg("max_positions"), nb::arg("blocks"),
      nb::arg("scale"), nb::arg("softcap"), nb::arg("group"));
}

void bind_gated(Class& c) {
  c.def(
      "gated",
      [](rb::Program& p, Address x, Address y, Address yq, int32_t x_stride, int32_t y_stride, int32_t n, int32_t act,
         int32_t domain, int32_t group) {
        auto l = launch(RB_OP_GATED);
        l.args.gated = {at<const float>(x), at<float>(y), at<uint8_t>(yq), x_stride, y_stride, n, act, domain, group};
        p.add(l);
      },
      nb::kw_only(), nb::arg("x"), nb::arg("y"), nb::arg("yq"), nb::arg("x_stride"), nb::arg("y_stride"), nb::arg("n"),
      nb::arg("act"), nb::arg("domain"), nb::arg("group"));
}

void bind_add(Class& c) {
  c.def(
      "add",
      [](rb::Program& p, Address a, Address b, Address y, int32_t a_stride, int32_t b_stride, int32_t y_stride,
         int32_t n, int32_t domain) {
        auto l = launch(RB_OP_ADD);
        l.args.add = {at<const float>(a), at<const float>(b), at<float>(y), a_stride, b_stride, y_stride, n, domain};
        p.add(l);
      },
      nb::kw_only(), nb::arg("a"), nb::arg("b"), nb::arg("y"), nb::arg("a_stride"), nb::arg("b_stride"),
      nb::arg("y_stride"), nb::arg("n"), nb::arg("domain"));
}

void bind_select(Class& c) {
  c.def(
      "select",
      [](rb::Program& p, Address x, Address y, int32_t x_stride, int32_t y_stride, int32_t n) {
        auto l = launch(RB_OP_SELECT);
        l.args.select = {at<const float>(x), at<float>(y), x_stride, y_stride, n};
        p.add(l);
      },
      nb::kw_only(), nb::arg("x"), nb::arg("y"), nb::arg("x_stride"), nb::arg("y_stride"), nb::arg("n"));
}

void bind_softcap(Class& c) {
  c.def(
      "softcap",
      [](rb::Program& p, Address x, Address y, int32_t x_stride, int32_t y_stride, int32_t n, int32_t domain,
         float cap) {
        auto l = launch(RB_OP_SOFTCAP);
        l.args.softcap = {at<const float>(x), at<float>(y), x_stride, y_stride, n, domain, cap};
        p.add(l);
      },
      nb::kw_only(), nb::arg("x"), nb::arg("y"), nb::arg("x_stride"), nb::arg("y_stride"), nb::arg("n"),
      nb::arg("domain"), nb::arg("cap"));
}

void bind_launches(Class& c) {
  bind_embed(c);
  bind_rms_norm(c);
  bind_quantize(c);
  bind_matmul(c);
  bind_rope(c);
  bind_append(c);
  bind_rope_append(c);
  bind_attention(c);
  bind_gated(c);
  bind_add(c);
  bind_select(c);
  bind_softcap(c);
  bind_lora(c);
  bind_image_launches(c);
  bind_training(c);
}

}  // namespace

void bind_hal(nb::module_& m) {
  nb::class_<rb::Pool>(m, "Pool")
      .def(nb::init<int>(), nb::arg("threads"))
      .def_prop_ro("threads", &rb::Pool::threads)
      .def_prop_ro("scratch_bytes", &rb::Pool::scratch_bytes);
  bind_step(m);
  auto program =
      nb::class_<rb::Program>(m, "Program")
          .def(
              "__init__",
              [](rb::Program* self, rb::Pool& pool, int32_t isa, int32_t rows, int32_t logit_rows, int32_t sequences,
                 int32_t vocab, int32_t positions, int32_t blocks, int32_t adapters) {
                new (self) rb::Program(pool, isa, {rows, logit_rows, sequences, vocab, positions, blocks, adapters});
              },
              nb::keep_alive<1, 2>(), nb::arg("pool"), nb::arg("isa"), nb::kw_only(), nb::arg("rows"),
              nb::arg("logit_rows"), nb::arg("sequences"), nb::arg("vocab"), nb::arg("positions"), nb::arg("blocks"),
              nb::arg("adapters") = 0)
          .def("__len__", &rb::Program::size)
          .def("name", &rb::Program::name)
          .def(
              "run",
              [](const rb::Program& p, const Step& s, size_t begin, size_t end) {
                const rb_step step = s.view();
                nb::gil_scoped_release release;
                p.run(step, begin, end);
              },
              nb::arg("step"), nb::arg("begin"), nb::arg("end"))
          .def(
              "run_timed",
              [](const rb::Program& p, const Step& s, size_t begin, size_t end) {
                const rb_step step = s.view();
                std::vector<int64_t> ns(end > begin && end <= p.size() ? end - begin : 0);
                {
                  nb::gil_scoped_release release;
                  p.run_timed(step, begin, end, ns.data());
                }
                return ns;
              },
              nb::arg("step"), nb::arg("begin"), nb::arg("end"));
  bind_launches(program);
}
