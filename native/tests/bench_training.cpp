// bench_training.cpp: the products of training alone, beside the multiply-adds this processor can do. Not a test; build target
// rebar_bench_training.
//
//   rebar_bench_training [isa]   prints per shape and rows, one thread: GFLOP per second of processor time, and its part of the peak.
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

}  // namespace

int main(int argc, char** argv) {
  int32_t isa = rb_best_isa();
  for (const int32_t each : available_isas()) {
    if (argc > 1 && std::strcmp(argv[1], rb_isa_name(each)) == 0) isa = each;
  }
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
