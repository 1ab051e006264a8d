// bench_matmul.cpp: matrix products alone, beside the ceilings measured in the same run. Not a test; build target rebar_bench_matmul.
//
//   rebar_bench_matmul [isa]   prints per shape, rows and threads: Gop/s (a multiply-add counts two) and GB/s of weights read, and
//   Gop per second of processor time and thread, which a busy machine does not distort.
// Weights of single-row products are cycled through copies larger than any cache, as the layers of a model are.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <thread>

#include "support.h"

namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double processor_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

struct Times {
  double wall, processor;
};

struct Shape {
  int32_t type, n, k;
};

struct Work {
  const rb_kernel* kernel;
  rb_args args;
  rb_step step;
  std::atomic<int64_t> next{0};

  void run(void* scratch) {
    const int64_t tasks = kernel->tasks(&args, &step);
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;)
      kernel->run(&args, &step, i, i + 1, scratch);
  }
};

// Best of several passes over all copies of the weights: seconds for one product, and processor seconds of the calling thread's share.
Times measure(const Shape& s, int32_t isa, int32_t rows, int threads) {
  Random random(1);
  const uint64_t bytes = rb_packed_bytes(s.type, s.n, s.k);
  const size_t copies = rows > 8 ? 4 : (200u << 20) / bytes + 1;
  const Buffer one = packed(s.type, random_stored(random, s.type, s.n, s.k), s.n, s.k);
  Buffer weights(bytes * copies);
  for (size_t i = 0; i < copies; ++i) std::memcpy(weights.data() + i * bytes, one.data(), bytes);
  const std::vector<float> x = random.normals(static_cast<size_t>(rows) * s.k);
  const std::vector<uint8_t> xq = quantized(isa, x.data(), rows, s.k, 32);
  std::vector<float> y(static_cast<size_t>(rows) * s.n);
  std::vector<Work> work(copies);
  for (size_t i = 0; i < copies; ++i) {
    work[i].kernel = &rb_kernels(isa)[RB_OP_MATMUL];
    work[i].args.matmul = {{weights.data() + i * bytes, s.type, s.n, s.k},
                           x.data(),
                           xq.data(),
                           nullptr,
                           nullptr,
                           y.data(),
                           s.k,
                           s.n,
                           0,
                           RB_ROWS,
                           32};
    work[i].step = rows_step(rows);
  }
  Times best{1e9, 1e9};
  for (int pass = 0; pass < 7; ++pass) {
    for (Work& w : work) w.next = 0;
    const auto all = [&] {
      Buffer scratch(work[0].kernel->scratch_bytes(&work[0].args, rows));
      for (Work& w : work) w.run(scratch.data());
    };
    std::atomic<double> processor{0.0};
    const auto timed = [&] {
      const double before = processor_seconds();
      all();
      processor.fetch_add(processor_seconds() - before);
    };
    const double start = seconds();
    std::vector<std::thread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(timed);
    timed();
    for (std::thread& t : others) t.join();
    const double count = static_cast<double>(copies), wall = (seconds() - start) / count;
    best = {wall < best.wall ? wall : best.wall,
            processor / count < best.processor ? processor / count : best.processor};
  }
  return best;
}

// Reads 400 MB with nothing else to do: the machine's read bandwidth in GB/s, by the wall clock and by processor time of a thread.
Times read_bandwidth(int threads) {
  Buffer memory(size_t{400} << 20);
  std::atomic<uint64_t> sink{0};
  Times best{0.0, 0.0};
  for (int pass = 0; pass < 7; ++pass) {
    const size_t part = memory.size() / 8 / static_cast<size_t>(threads);
    std::atomic<double> processor{0.0};
    const auto read = [&](int t) {
      const double before = processor_seconds();
      const uint64_t* p = memory.as<uint64_t>() + part * static_cast<size_t>(t);
      uint64_t sum[8] = {};
      for (size_t i = 0; i + 8 <= part; i += 8) {
        for (int l = 0; l < 8; ++l) sum[l] += p[i + static_cast<size_t>(l)];
      }
      for (const uint64_t s : sum) sink += s;
      processor.fetch_add(processor_seconds() - before);
    };
    const double start = seconds();
    std::vector<std::thread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(read, t);
    read(0);
    for (std::thread& t : others) t.join();
    const double gigabytes = static_cast<double>(memory.size()) * 1e-9, wall = gigabytes / (seconds() - start),
                 own = gigabytes / processor;
    best = {wall > best.wall ? wall : best.wall, own > best.processor ? own : best.processor};
  }
  return best;
}

int32_t chosen_isa(int argc, char** argv) {
  for (const int32_t isa : available_isas()) {
    if (argc > 1 && std::strcmp(argv[1], rb_isa_name(isa)) == 0) return isa;
  }
  return rb_best_isa();
}

}  // namespace

int main(int argc, char** argv) {
  const int32_t isa = chosen_isa(argc, argv);
  for (const int threads : {1, 2}) {
    const Times t = read_bandwidth(threads);
    std::printf("%s: reading, threads %d: %.1f GB/s; a thread's second %.1f GB\n", rb_isa_name(isa), threads, t.wall,
                t.processor);
  }
  const Shape shapes[] = {{RB_Q4_1, 576, 1536}, {RB_Q4_1, 1536, 576}, {RB_Q8_0, 49152, 576}};
  for (const Shape& s : shapes) {
    for (const int32_t rows : {1, 8, 512}) {
      if (rows == 512 && s.n > 4096) continue;
      for (const int threads : {1, 2}) {
        const Times t = measure(s, isa, rows, threads);
        const double operations = 2e-9 * s.n * s.k * rows,
                     bytes = static_cast<double>(rb_packed_bytes(s.type, s.n, s.k));
        std::printf(
            "%s %5dx%4d rows %3d threads %d: %8.1f us %7.1f Gop/s %6.1f GB/s; a thread's second %7.1f Gop %6.1f GB\n",
            type_name(s.type), s.n, s.k, rows, threads, t.wall * 1e6, operations / t.wall, bytes / t.wall * 1e-9,
            operations / t.processor, bytes / t.processor * 1e-9);
      }
    }
  }
  return 0;
}
