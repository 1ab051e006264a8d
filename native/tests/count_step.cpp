// count_step.cpp: one step of a small decoder, for counting its instructions under callgrind. Not a test by itself: tools/count_steps.py
// runs it and compares with what was recorded.
//
//   count_step version         the compiler, as records are named by it
//   count_step STEP            runs a step once to warm and once inside rb_counted_step, on AVX2 and one thread
//
// STEP: prompt (64 rows of one sequence), one (a row at position 64), eight (a row each of eight sequences). The decoder is of two layers
// with a weight format each for its matrices, so that a slower kernel of any common format shows.
#include <cmath>
#include <cstdio>

#include "program.h"
#include "support.h"

namespace {

constexpr int32_t kWidth = 256, kHeads = 4, kKvHeads = 2, kHeadDim = 64, kMlp = 512, kVocab = 1024, kLayers = 2;
constexpr int32_t kRows = 64, kSequences = 8, kPositions = 128, kStride = kPositions / 16,
                  kBlocks = kSequences * kStride;
constexpr int32_t kQkv = (kHeads + 2 * kKvHeads) * kHeadDim;
constexpr int64_t kBlockBytes = 2 * kKvHeads * kHeadDim * 32;  // a layer's keys and values in f16

template <class T>
std::vector<T> zeros(size_t n) {
  return std::vector<T>(n);
}

struct Weights {
  explicit Weights(Random& random)
      : qkv(matrix(random, RB_Q4_1, kQkv, kWidth)),
        out(matrix(random, RB_Q4_0, kWidth, kHeads * kHeadDim)),
        gate_up(matrix(random, RB_Q4_K, 2 * kMlp, kWidth)),
        down(matrix(random, RB_Q6_K, kWidth, kMlp)) {}
  static Buffer matrix(Random& random, int32_t type, int32_t n, int32_t k) {
    return packed(type, random_stored(random, type, n, k), n, k);
  }
  Buffer qkv, out, gate_up, down;
  std::vector<uint8_t> cache = zeros<uint8_t>(size_t{kBlocks} * kBlockBytes);
};

// All buffers and the program over them.
class Model {
 public:
  Model() : random_(1), layers_(), head_(Weights::matrix(random_, RB_Q8_0, kVocab, kWidth)) {
    for (int i = 0; i < kLayers; ++i) layers_.emplace_back(random_);
    ids_.resize(kRows);
    for (int32_t i = 0; i < kRows; ++i) ids_[static_cast<size_t>(i)] = random_.below(kVocab);
    for (int32_t p = 0; p < kPositions; ++p) {
      for (int32_t i = 0; i < kHeadDim / 2; ++i) {
        const double angle = p * std::pow(10000.0, -2.0 * i / kHeadDim);
        table_[static_cast<size_t>(p * kHeadDim + i)] = static_cast<float>(std::cos(angle));
        table_[static_cast<size_t>(p * kHeadDim + kHeadDim / 2 + i)] = static_cast<float>(std::sin(angle));
      }
    }
    embed();
    for (Weights& w : layers_) {
      attention(w);
      mlp(w);
    }
    head();
  }
  void run(const rb_step& step) const { program_.run(step, 0, program_.size()); }
  const int32_t* ids() const { return ids_.data(); }

 private:
  static rb_matrix of(const Buffer& data, int32_t type, int32_t n, int32_t k) { return {data.data(), type, n, k}; }
  void add(int32_t op, const rb_args& args) {
    rb_launch launch{};
    launch.op = op, launch.args = args;
    program_.add(launch);
  }
  void embed() {
    rb_args a{};
    a.embed.w = of(head_, RB_Q8_0, kVocab, kWidth);
    a.embed.out = x_.data(), a.embed.out_stride = kWidth, a.embed.scale = 1.0f;
    add(RB_OP_EMBED, a);
  }
  void norm(const std::vector<float>& x, int32_t domain, int32_t group) {
    rb_args a{};
    a.rms_norm.x = x.data(), a.rms_norm.weight = ones_.data(), a.rms_norm.yq = quantized_.data();
    a.rms_norm.x_stride = a.rms_norm.y_stride = a.rms_norm.n = kWidth;
    a.rms_norm.groups = 1, a.rms_norm.eps = 1e-5f, a.rms_norm.domain = domain;
    a.rms_norm.group = group;
    add(RB_OP_RMS_NORM, a);
  }
  void matmul(const rb_matrix& w, float* y, float* residual, int32_t group, int32_t domain = RB_ROWS) {
    rb_args a{};
    a.matmul.w = w, a.matmul.xq = quantized_.data(), a.matmul.y = y, a.matmul.residual = residual;
    a.matmul.y_stride = a.matmul.residual_stride = w.n, a.matmul.domain = domain;
    a.matmul.group = group;
    add(RB_OP_MATMUL, a);
  }
  void rope(float* x, int32_t heads) {
    rb_args a{};
    a.rope.x = a.rope.y = x, a.rope.table = table_.data(), a.rope.x_stride = a.rope.y_stride = kQkv;
    a.rope.heads = heads, a.rope.head_dim = a.rope.dim = kHeadDim, a.rope.table_rows = kPositions;
    add(RB_OP_ROPE, a);
  }
  void attention(Weights& w) {
    norm(x_, RB_ROWS, 16);
    matmul(of(w.qkv, RB_Q4_1, kQkv, kWidth), qkv_.data(), nullptr, 16);
    float *q = qkv_.data(), *k = q + kHeads * kHeadDim, *v = k + kKvHeads * kHeadDim;
    rope(q, kHeads), rope(k, kKvHeads);
    rb_args a{};
    a.append.k = k, a.append.v = v, a.append.cache = w.cache.data(), a.append.block_stride = kBlockBytes;
    a.append.k_stride = a.append.v_stride = kQkv, a.append.blocks = kBlocks;
    a.append.kv_heads = kKvHeads, a.append.head_dim = kHeadDim;
    add(RB_OP_APPEND, a);
    rb_args b{};
    b.attention.q = q, b.attention.cache = w.cache.data(), b.attention.block_stride = kBlockBytes;
    b.attention.outq = quantized_.data(), b.attention.q_stride = kQkv, b.attention.out_stride = kHeads * kHeadDim;
    b.attention.heads = kHeads, b.attention.kv_heads = kKvHeads, b.attention.head_dim = kHeadDim;
    b.attention.max_positions = kPositions, b.attention.blocks = kBlocks, b.attention.scale = 0.125f;
    b.attention.group = 16;
    add(RB_OP_ATTENTION, b);
    matmul(of(w.out, RB_Q4_0, kWidth, kHeads * kHeadDim), x_.data(), x_.data(), 16);
  }
  void mlp(const Weights& w) {
    norm(x_, RB_ROWS, 32);
    matmul(of(w.gate_up, RB_Q4_K, 2 * kMlp, kWidth), mlp_.data(), nullptr, 32);
    rb_args a{};
    a.gated.x = mlp_.data(), a.gated.yq = quantized_.data(), a.gated.x_stride = 2 * kMlp;
    a.gated.y_stride = a.gated.n = kMlp, a.gated.domain = RB_ROWS, a.gated.group = 32;
    add(RB_OP_GATED, a);
    matmul(of(w.down, RB_Q6_K, kWidth, kMlp), x_.data(), x_.data(), 32);
  }
  void head() {
    rb_args a{};
    a.select.x = x_.data(), a.select.y = selected_.data();
    a.select.x_stride = a.select.y_stride = a.select.n = kWidth;
    add(RB_OP_SELECT, a);
    norm(selected_, RB_LOGIT_ROWS, 32);
    matmul(of(head_, RB_Q8_0, kVocab, kWidth), logits_.data(), nullptr, 32, RB_LOGIT_ROWS);
  }

  Random random_;
  std::vector<Weights> layers_;
  Buffer head_;
  std::vector<int32_t> ids_;
  std::vector<float> x_ = zeros<float>(kRows * kWidth), selected_ = x_, qkv_ = zeros<float>(kRows * kQkv),
                     mlp_ = zeros<float>(kRows * 2 * kMlp), logits_ = zeros<float>(kSequences * kVocab),
                     table_ = zeros<float>(kPositions * kHeadDim), ones_ = std::vector<float>(kMlp, 1.0f);
  Buffer quantized_{kRows * rb_quantized_stride(kMlp)};
  rb::Pool pool_{1};
  rb::Program program_{pool_,
                       RB_ISA_AVX2,
                       {.rows = kRows,
                        .logit_rows = kSequences,
                        .sequences = kSequences,
                        .vocab = kVocab,
                        .positions = kPositions,
                        .blocks = kBlocks}};
};

// rows of `sequences` sequences, the first at position `first`; the last row of each wants logits.
class Step {
 public:
  Step(const Model& model, int32_t sequences, int32_t first, int32_t count) : ids_(model.ids()) {
    for (int32_t s = 0; s < sequences; ++s) {
      for (int32_t b = 0; b < kStride; ++b) tables_.push_back(s * kStride + b);
      for (int32_t i = 0; i < count; ++i) positions_.push_back(first + i), sequences_.push_back(s);
      logits_.push_back((s + 1) * count - 1);
    }
  }
  rb_step view() const {
    rb_step step{};
    step.rows = static_cast<int32_t>(positions_.size()), step.logit_rows = static_cast<int32_t>(logits_.size());
    step.ids = ids_, step.positions = positions_.data(), step.sequences = sequences_.data();
    step.tables = tables_.data(), step.table_stride = kStride, step.logit_index = logits_.data();
    return step;
  }

 private:
  const int32_t* ids_;
  std::vector<int32_t> positions_, sequences_, tables_, logits_;
};

}  // namespace

// What callgrind counts (--toggle-collect): by name, and nothing else.
extern "C" __attribute__((noinline)) void rb_counted_step(const void* model, const rb_step* step) {
  static_cast<const Model*>(model)->run(*step);
}

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "version") {
#if defined(__clang__)
    std::printf("clang %d\n", __clang_major__);
#else
    std::printf("gcc %d\n", __GNUC__);
#endif
    return rb_kernels(RB_ISA_AVX2) != nullptr ? 0 : 3;
  }
  if (what != "prompt" && what != "one" && what != "eight") return 2;
  const Model model;
  const Step prompt(model, 1, 0, kRows), one(model, 1, kRows, 1), eight(model, kSequences, 0, 1);
  const rb_step first = prompt.view(), step = (what == "prompt" ? prompt : what == "one" ? one : eight).view();
  model.run(first);
  model.run(step);
  rb_counted_step(&model, &step);
  return 0;
}
