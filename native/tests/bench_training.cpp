// bench_training.cpp: the products of training alone, beside the multiply-adds this processor can do. Not a test; build target
// rebar_bench_training.
//
//   rebar_bench_training [isa]        prints per shape and rows, one thread: GFLOP per second of processor time, and its part of the peak
//   rebar_bench_training [isa] THREADS   the gradient of attention: processor time, and what of it the busiest of THREADS has
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "cpu/probe_tables.h"
#include "support.h"

namespace {

double processor_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

template <class Work>
double best_seconds(const Work& work) {
  double best = 1e9;
  for (int pass = 0; pass < 7; ++pass) {
    const double start = processor_seconds();
    work();
    best = std::min(best, processor_seconds() - start);
  }
  return best;
}

const rb::Probes& probes_of(int32_t isa) {
  return *(isa == RB_ISA_SCALAR   ? rb::scalar_probes()
           : isa == RB_ISA_AVX2   ? rb::avx2_probes()
           : isa == RB_ISA_AVX512 ? rb::avx512_probes()
                                  : rb::neon_probes());
}

// GFLOP/s of the probe's multiply-adds, which touch no memory.
double multiply_adds_peak(int32_t isa) {
  const rb::Probes& probes = probes_of(isa);
  rb::Probe probe{};
  probe.tasks = 1, probe.rounds = 2000000;
  const rb_step step{};
  const double seconds = best_seconds([&] { probes.fma.run(&probe.args, &step, 0, 1, nullptr); });
  return 1e-9 * static_cast<double>(probe.rounds) * probes.fma_operations / seconds;
}

struct Shape {
  const char* what;
  int32_t op, type, n, k, rows;
};

double seconds_of(const Shape& s, int32_t isa) {
  Random random(1);
  const size_t rows = static_cast<size_t>(s.rows), n = static_cast<size_t>(s.n), k = static_cast<size_t>(s.k);
  const Buffer w = packed(s.type, random_stored(random, s.type, s.n, s.k), s.n, s.k);
  const rb_matrix matrix{w.data(), s.type, s.n, s.k};
  const std::vector<float> x = random.normals(rows * k), dy = random.normals(rows * n);
  std::vector<float> dx(rows * k), y(rows * n);
  rb_args args{};
  if (s.op == RB_OP_MATMUL_INPUT_GRADIENT) {
    args.matmul_input_gradient = {matrix, dy.data(), dx.data(), s.n, s.k, RB_ROWS, 1.0f};
  } else if (s.op == RB_OP_MATMUL_WEIGHT_GRADIENT) {
    args.matmul_weight_gradient = {matrix, x.data(), dy.data(), s.k, s.n, RB_ROWS, 1.0f};
  } else {
    args.matmul = {matrix, x.data(), nullptr, nullptr, nullptr, y.data(), s.k, s.n, 0, RB_ROWS, 16};
  }
  return best_seconds([&] { run_launch(isa, s.op, args, rows_step(s.rows)); });
}

struct Sequences {
  const char* what;
  int32_t count, length, heads, kv_heads, head_dim;
};

struct Times {
  double all, longest;  // processor time of all tasks, and of the thread that has most of them
};

// Each thread takes the next task when it has done one, as if every one had a core of its own.
Times attention_times(const rb_args& args, const rb_step& step, int32_t isa, int threads) {
  Times times{0.0, 0.0};
  std::vector<double> busy(threads);
  for (const int32_t op : {RB_OP_ATTENTION_GRADIENT, RB_OP_ATTENTION_GRADIENT_MERGE}) {
    const rb_kernel& kernel = rb_kernels(isa)[op];
    Buffer scratch(kernel.scratch_bytes(&args, step.rows));
    std::fill(busy.begin(), busy.end(), 0.0);
    const int64_t tasks = kernel.tasks(&args, &step), each = std::max<int64_t>(1, tasks / (32 * threads));
    for (int64_t task = 0; task < tasks; task += each) {
      const int64_t end = std::min(task + each, tasks);
      const double seconds = best_seconds([&] { kernel.run(&args, &step, task, end, scratch.data()); });
      times.all += seconds;
      *std::min_element(busy.begin(), busy.end()) += seconds;
    }
    times.longest += *std::max_element(busy.begin(), busy.end());
  }
  return times;
}

Times attention_times(const Sequences& s, int32_t isa, int threads) {
  Random random(1);
  const int32_t rows = s.count * s.length, width = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const int32_t stride = s.length / 16, blocks = s.count * stride;
  std::vector<int32_t> positions(rows), sequences(rows), tables(blocks);
  for (int32_t r = 0; r < rows; ++r) positions[r] = r % s.length, sequences[r] = r / s.length;
  for (int32_t b = 0; b < blocks; ++b) tables[b] = b;
  rb_step step = rows_step(rows);
  step.positions = positions.data(), step.sequences = sequences.data();
  step.tables = tables.data(), step.table_stride = stride;
  const int64_t block = static_cast<int64_t>(rb_kv_bytes(RB_KV_F32, s.kv_heads, s.head_dim));
  const size_t all = static_cast<size_t>(rows) * width, side = static_cast<size_t>(rows) * kv;
  const std::vector<float> cache = random.normals(static_cast<size_t>(blocks * block / 4));
  const std::vector<float> q = random.normals(all), out = random.normals(all), dout = random.normals(all);
  std::vector<float> dq(all), dk(side), dv(side), parts(2 * side * rb_attention_parts(s.length));
  const uint8_t* kv_bytes = reinterpret_cast<const uint8_t*>(cache.data());
  rb_args args{};
  args.attention_gradient = {q.data(),     kv_bytes, out.data(), dout.data(), dq.data(),  dk.data(), dv.data(),
                             parts.data(), block,    RB_KV_F32,  width,       width,      width,     width,
                             kv,           kv,       s.heads,    s.kv_heads,  s.head_dim, 0,         s.length,
                             blocks,       0.125f,   0.0f};
  return attention_times(args, step, isa, threads);
}

int attention(int32_t isa, int threads) {
  const Sequences cases[] = {{"SmolLM2", 1, 1024, 9, 3, 64}, {"SmolLM2", 4, 256, 9, 3, 64},
                             {"SmolLM2", 1, 2048, 9, 3, 64}, {"Gemma 3", 1, 1024, 4, 1, 256},
                             {"Gemma 3", 4, 256, 4, 1, 256}, {"Qwen2.5", 1, 1024, 14, 2, 64}};
  for (const Sequences& s : cases) {
    const Times t = attention_times(s, isa, threads);
    std::printf("dattention %s %d x %4d, kv heads %d: %7.2f ms, the longest of %d threads %7.2f ms, %.2f x\n", s.what,
                s.count, s.length, s.kv_heads, 1e3 * t.all, threads, 1e3 * t.longest, t.all / t.longest);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  int32_t isa = rb_best_isa();
  for (const int32_t each : available_isas()) {
    if (argc > 1 && std::strcmp(argv[1], rb_isa_name(each)) == 0) isa = each;
  }
  if (argc > 1 && std::atoi(argv[argc - 1]) > 0) return attention(isa, std::atoi(argv[argc - 1]));
  const double peak = multiply_adds_peak(isa);
  std::printf("%s: multiply-adds alone %.1f GFLOP/s\n", rb_isa_name(isa), peak);
  const int32_t down = RB_OP_MATMUL_INPUT_GRADIENT, weight = RB_OP_MATMUL_WEIGHT_GRADIENT, up = RB_OP_MATMUL;
  const Shape shapes[] = {{"dx", down, RB_Q8_0, 576, 576, 1024},   {"dx", down, RB_Q4_1, 1536, 576, 1024},
                          {"dx", down, RB_Q8_0, 3072, 576, 1024},  {"dx", down, RB_Q8_0, 576, 1536, 1024},
                          {"dx", down, RB_F32, 1536, 576, 1024},   {"dx", down, RB_Q8_0, 1536, 576, 256},
                          {"dx", down, RB_Q8_0, 49152, 576, 128},  {"dx", down, RB_Q8_0, 1536, 576, 16},
                          {"dw", weight, RB_F32, 576, 576, 1024},  {"dw", weight, RB_F32, 1536, 576, 1024},
                          {"dw", weight, RB_F32, 576, 1536, 1024}, {"dw", weight, RB_F32, 8192, 576, 128},
                          {"y ", up, RB_F32, 576, 576, 1024},      {"y ", up, RB_F32, 1536, 576, 1024},
                          {"y ", up, RB_F32, 576, 1536, 1024},     {"y ", up, RB_F32, 8192, 576, 128}};
  for (const Shape& s : shapes) {
    const double speed = 2e-9 * s.n * s.k * s.rows / seconds_of(s, isa);
    std::printf("%s %-4s %5d x %4d, rows %4d: %7.1f GFLOP/s, %3.0f %% of the peak\n", s.what, type_name(s.type), s.n,
                s.k, s.rows, speed, 100 * speed / peak);
  }
  return 0;
}
