// Python's view of the launches of the way back, of loss and optimizer (native/rebar_training.h).
#include "bind_hal.h"

using namespace nanobind::literals;
using namespace rb::bind;

namespace {

void bind_matmul_gradients(Class& c) {
  c.def(
      "matmul_input_gradient",
      [](rb::Program& p, Matrix w, Rows dy, Rows dx, float scale, int32_t domain) {
        auto l = launch(RB_OP_MATMUL_INPUT_GRADIENT);
        l.args.matmul_input_gradient = {matrix(w), data(dy), data(dx), stride(dy), stride(dx), domain, scale};
        p.add(l);
      },
      nb::kw_only(), "w"_a, "dy"_a, "dx"_a, "scale"_a, "domain"_a);
  c.def(
      "matmul_weight_gradient",
      [](rb::Program& p, Matrix dw, Rows x, Rows dy, float scale, int32_t domain) {
        auto l = launch(RB_OP_MATMUL_WEIGHT_GRADIENT);
        l.args.matmul_weight_gradient = {matrix(dw), data(x), data(dy), stride(x), stride(dy), domain, scale};
        p.add(l);
      },
      nb::kw_only(), "dw"_a, "x"_a, "dy"_a, "scale"_a, "domain"_a);
}

void bind_sums(Class& c) {
  c.def(
      "sum_rows",
      [](rb::Program& p, Rows dy, Address db, int32_t n, int32_t domain) {
        auto l = launch(RB_OP_SUM_ROWS);
        l.args.sum_rows = {data(dy), at<float>(db), stride(dy), n, domain};
        p.add(l);
      },
      nb::kw_only(), "dy"_a, "db"_a, "n"_a, "domain"_a);
  c.def(
      "add_into",
      [](rb::Program& p, Rows x, Rows y, int32_t n, float scale, int32_t domain) {
        auto l = launch(RB_OP_ADD_INTO);
        l.args.add_into = {data(x), data(y), stride(x), stride(y), n, domain, scale};
        p.add(l);
      },
      nb::kw_only(), "x"_a, "y"_a, "n"_a, "scale"_a, "domain"_a);
  c.def(
      "zero",
      [](rb::Program& p, Rows y, int32_t n, int32_t domain) {
        auto l = launch(RB_OP_ZERO);
        l.args.zero = {data(y), stride(y), n, domain};
        p.add(l);
      },
      nb::kw_only(), "y"_a, "n"_a, "domain"_a);
  c.def(
      "embed_gradient",
      [](rb::Program& p, Matrix dw, Rows dy, float scale) {
        auto l = launch(RB_OP_EMBED_GRADIENT);
        l.args.embed_gradient = {matrix(dw), data(dy), stride(dy), scale};
        p.add(l);
      },
      nb::kw_only(), "dw"_a, "dy"_a, "scale"_a);
}

void bind_norms(Class& c) {
  c.def(
      "rms_norm_gradient",
      [](rb::Program& p, Rows x, Address weight, Rows dy, Rows dx, Address dweight, int32_t n, int32_t groups,
         float eps, int32_t domain) {
        auto l = launch(RB_OP_RMS_NORM_GRADIENT);
        l.args.rms_norm_gradient = {data(x),
                                    at<float>(weight),
                                    data(dy),
                                    data(dx),
                                    at<float>(dweight),
                                    stride(x),
                                    stride(dy),
                                    stride(dx),
                                    n,
                                    groups,
                                    eps,
                                    domain};
        p.add(l);
      },
      nb::kw_only(), "x"_a, "weight"_a, "dy"_a, "dx"_a, "dweight"_a, "n"_a, "groups"_a, "eps"_a, "domain"_a);
  c.def(
      "rope_gradient",
      [](rb::Program& p, Rows dy, Rows dx, Address table, int32_t heads, int32_t head_dim, int32_t dim,
         int32_t table_rows) {
        auto l = launch(RB_OP_ROPE_GRADIENT);
        l.args.rope_gradient = {data(dy), data(dx), at<float>(table), stride(dy), stride(dx), heads,
                                head_dim, dim,      table_rows};
        p.add(l);
      },
      nb::kw_only(), "dy"_a, "dx"_a, "table"_a, "heads"_a, "head_dim"_a, "dim"_a, "table_rows"_a);
}

void bind_attention_gradient(Class& c) {
  c.def(
      "attention_gradient",
      [](rb::Program& p, Rows q, Address cache, Rows out, Rows dout, Rows dq, Rows dk, Rows dv, Address parts,
         bool merge, int64_t block_stride, int32_t kv_type, int32_t heads, int32_t kv_heads, int32_t head_dim,
         int32_t window, int32_t max_positions, int32_t blocks, float scale, float softcap) {
        auto l = launch(merge ? RB_OP_ATTENTION_GRADIENT_MERGE : RB_OP_ATTENTION_GRADIENT);
        l.args.attention_gradient = {data(q),       at<const uint8_t>(cache),
                                     data(out),     data(dout),
                                     data(dq),      data(dk),
                                     data(dv),      at<float>(parts),
                                     block_stride,  kv_type,
                                     stride(q),     stride(out),
                                     stride(dout),  stride(dq),
                                     stride(dk),    stride(dv),
                                     heads,         kv_heads,
                                     head_dim,      window,
                                     max_positions, blocks,
                                     scale,         softcap};
        p.add(l);
      },
      nb::kw_only(), "q"_a, "cache"_a, "out"_a, "dout"_a, "dq"_a, "dk"_a, "dv"_a, "parts"_a, "merge"_a,
      "block_stride"_a, "kv_type"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "window"_a, "max_positions"_a, "blocks"_a,
      "scale"_a, "softcap"_a);
}

void bind_elementwise(Class& c) {
  c.def(
      "gated_gradient",
      [](rb::Program& p, Rows x, Rows dy, Rows dx, int32_t n, int32_t act, int32_t domain) {
        auto l = launch(RB_OP_GATED_GRADIENT);
        l.args.gated_gradient = {data(x), data(dy), data(dx), stride(x), stride(dy), stride(dx), n, act, domain};
        p.add(l);
      },
      nb::kw_only(), "x"_a, "dy"_a, "dx"_a, "n"_a, "act"_a, "domain"_a);
  c.def(
      "select_gradient",
      [](rb::Program& p, Rows dy, Rows dx, int32_t n) {
        auto l = launch(RB_OP_SELECT_GRADIENT);
        l.args.select_gradient = {data(dy), data(dx), stride(dy), stride(dx), n};
        p.add(l);
      },
      nb::kw_only(), "dy"_a, "dx"_a, "n"_a);
  c.def(
      "softcap_gradient",
      [](rb::Program& p, Rows y, Rows dy, Rows dx, int32_t n, float cap, int32_t domain) {
        auto l = launch(RB_OP_SOFTCAP_GRADIENT);
        l.args.softcap_gradient = {data(y), data(dy), data(dx), stride(y), stride(dy), stride(dx), n, domain, cap};
        p.add(l);
      },
      nb::kw_only(), "y"_a, "dy"_a, "dx"_a, "n"_a, "cap"_a, "domain"_a);
}

void bind_loss(Class& c) {
  c.def(
      "cross_entropy",
      [](rb::Program& p, Rows logits, Address targets, Rows loss, int32_t n, int32_t domain) {
        auto l = launch(RB_OP_CROSS_ENTROPY);
        l.args.cross_entropy = {data(logits), at<int32_t>(targets), data(loss), stride(logits), stride(loss), n,
                                domain};
        p.add(l);
      },
      nb::kw_only(), "logits"_a, "targets"_a, "loss"_a, "n"_a, "domain"_a);
  c.def(
      "cross_entropy_gradient",
      [](rb::Program& p, Rows logits, Address targets, Rows dloss, Rows dlogits, int32_t n, int32_t domain) {
        auto l = launch(RB_OP_CROSS_ENTROPY_GRADIENT);
        l.args.cross_entropy_gradient = {data(logits),   at<int32_t>(targets), data(dloss),     data(dlogits),
                                         stride(logits), stride(dloss),        stride(dlogits), n,
                                         domain};
        p.add(l);
      },
      nb::kw_only(), "logits"_a, "targets"_a, "dloss"_a, "dlogits"_a, "n"_a, "domain"_a);
}

void bind_optimizers(Class& c) {
  c.def(
      "square_sums",
      [](rb::Program& p, Address x, Address sums, int64_t n) {
        auto l = launch(RB_OP_SQUARE_SUMS);
        l.args.square_sums = {at<float>(x), at<float>(sums), n};
        p.add(l);
      },
      nb::kw_only(), "x"_a, "sums"_a, "n"_a);
  c.def(
      "adamw",
      [](rb::Program& p, Address x, Address gradient, Address m, Address v, Address hyper, int64_t n) {
        auto l = launch(RB_OP_ADAMW);
        l.args.adamw = {at<float>(x), at<float>(gradient), at<float>(m), at<float>(v), at<float>(hyper), n};
        p.add(l);
      },
      nb::kw_only(), "x"_a, "gradient"_a, "m"_a, "v"_a, "hyper"_a, "n"_a);
  c.def(
      "sgd",
      [](rb::Program& p, Address x, Address gradient, Address m, Address hyper, int64_t n) {
        auto l = launch(RB_OP_SGD);
        l.args.sgd = {at<float>(x), at<float>(gradient), at<float>(m), at<float>(hyper), n};
        p.add(l);
      },
      nb::kw_only(), "x"_a, "gradient"_a, "m"_a, "hyper"_a, "n"_a);
}

}  // namespace

void bind_training(Class& c) {
  bind_matmul_gradients(c);
  bind_sums(c);
  bind_norms(c);
  bind_attention_gradient(c);
  bind_elementwise(c);
  bind_loss(c);
  bind_optimizers(c);
}
