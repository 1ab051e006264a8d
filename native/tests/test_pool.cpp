// The thread pool and the program's door. Run under ThreadSanitizer too: cmake -DRB_SANITIZE=thread.
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "program.h"
#include "test.h"

namespace {

std::vector<std::atomic<int>> counts(200'000);
std::atomic<int64_t> wrong{0};

// A kernel whose launch carries how many tasks it has (embed.out_stride) and what it adds to each (embed.w.n).
int64_t fake_tasks(const rb_args* a, const rb_step*) { return a->embed.out_stride; }
size_t fake_scratch(const rb_args*, int32_t) { return 64; }
void fake_run(const rb_args* a, const rb_step*, int64_t begin, int64_t end, void* scratch) {
  if (begin < 0 || end > a->embed.out_stride || reinterpret_cast<uintptr_t>(scratch) % 64 != 0) wrong.fetch_add(1);
  int64_t kept;  // zero before a thread's first piece of a launch, afterwards what the piece before left
  std::memcpy(&kept, scratch, sizeof kept);
  if (kept != 0 && kept != a->embed.w.k) wrong.fetch_add(1);
  std::memcpy(scratch, &(kept = a->embed.w.k), sizeof kept);
  for (int64_t i = begin; i < end; ++i)
    counts[static_cast<size_t>(i)].fetch_add(a->embed.w.n, std::memory_order_relaxed);
}

const rb_kernel fake{"fake", fake_tasks, fake_run, fake_scratch};

rb_args job(int32_t tasks, int32_t amount) {
  static int32_t launch = 0;
  rb_args args{};
  args.embed.w.k = ++launch;
  args.embed.out_stride = tasks;
  args.embed.w.n = amount;
  return args;
}

// Every task of every job is done once, whatever the threads do; a late thread never touches the next job.
TEST(pool, every_task_once) {
  for (const int threads : {1, 2, 3, 8}) {
    rb::Pool pool(threads);
    pool.reserve_scratch(64);
    for (auto& c : counts) c.store(0);
    const rb_step step{};
    std::vector<int> expected(counts.size(), 0);
    for (int round = 0; round < 3000; ++round) {
      const int32_t tasks = round * 7919 % 97, amount = 1 + round % 3;  // 0 and 1 tasks are among them
      const rb_args args = job(tasks, amount);
      pool.run({&fake, &args, &step});
      for (int32_t i = 0; i < tasks; ++i) expected[static_cast<size_t>(i)] += amount;
    }
    bool equal = true;
    for (size_t i = 0; i < counts.size(); ++i) equal = equal && counts[i].load() == expected[i];
    CHECK(equal);
    CHECK(wrong.load() == 0);
  }
}

// More tasks than a range can number, and a count that is no multiple of what is claimed at once.
TEST(pool, more_tasks_than_sixteen_bits_count) {
  for (const int threads : {1, 2, 5}) {
    rb::Pool pool(threads);
    pool.reserve_scratch(64);
    for (auto& c : counts) c.store(0);
    const rb_step step{};
    const auto tasks = static_cast<int32_t>(counts.size()) - 1;
    const rb_args args = job(tasks, 1);
    pool.run({&fake, &args, &step});
    int64_t done = 0;
    for (const auto& c : counts) done += c.load() == 1;
    CHECK(done == tasks);
    CHECK(counts.back().load() == 0);
    CHECK(wrong.load() == 0);
  }
}

// A thread that loses its core in mid-piece holds that piece only: the others take the rest of its range.
TEST(pool, a_slow_thread_is_relieved) {
  static std::atomic<int> slow_tasks;
  static std::thread::id caller;
  slow_tasks.store(0);
  caller = std::this_thread::get_id();
  const rb_kernel uneven{"uneven", fake_tasks,
                         [](const rb_args*, const rb_step*, int64_t begin, int64_t end, void*) {
                           if (std::this_thread::get_id() != caller) return;
                           slow_tasks.fetch_add(static_cast<int>(end - begin));
                           std::this_thread::sleep_for(std::chrono::milliseconds(20));
                         },
                         fake_scratch};
  rb::Pool pool(2);
  pool.reserve_scratch(64);
  const rb_step step{};
  const rb_args args = job(64, 1);
  pool.run({&uneven, &args, &step});
  // Its own half is 32 and its first piece a quarter of that; while it sleeps the other one, unless it is kept from
  // running altogether for 20 ms a piece, empties both ranges. Alone it would have done 64.
  CHECK(slow_tasks.load() >= 8);
  CHECK(slow_tasks.load() <= 32);
}

TEST(pool, refuses_absurd_sizes) {
  for (const int threads : {0, -1, 257}) {
    bool refused = false;
    try {
      rb::Pool pool(threads);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused);
  }
}

TEST(pool, scratch_grows_and_stays_aligned) {
  rb::Pool pool(2);
  pool.reserve_scratch(100);
  CHECK(pool.scratch_bytes() == 128);
  pool.reserve_scratch(10);
  CHECK(pool.scratch_bytes() == 128);
}

struct Arrays {
  std::vector<int32_t> ids{1, 2, 3}, positions{15, 16, 0}, sequences{0, 0, 1}, tables{0, 1, 2, 3}, logit_index{2},
      adapters{-1, -1, 1};
  rb_step step() const {
    return {
        3, 1, ids.data(), positions.data(), sequences.data(), tables.data(), 2, logit_index.data(), adapters.data()};
  }
};

bool refuses(const rb::Program& p, const rb_step& step) {
  try {
    p.run(step, 0, p.size());
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

// Whatever would let a kernel read elsewhere is refused before the first launch.
TEST(pool, the_door_checks_every_number) {
  rb::Pool pool(1);
  const rb::Limits limits{
      .rows = 3, .logit_rows = 1, .sequences = 2, .vocab = 10, .positions = 32, .blocks = 4, .adapters = 2};
  const rb::Program p(pool, RB_ISA_SCALAR, limits);
  CHECK(!refuses(p, Arrays{}.step()));
  const auto with = [&](auto change) {
    Arrays a;
    change(a);
    return refuses(p, a.step());
  };
  CHECK(with([](Arrays& a) { a.ids[1] = 10; }));
  CHECK(with([](Arrays& a) { a.ids[1] = -1; }));
  CHECK(with([](Arrays& a) { a.positions[2] = -1; }));
  CHECK(with([](Arrays& a) { a.positions[2] = 32; }));
  CHECK(with([](Arrays& a) { a.positions[1] = 18; }));  // not consecutive
  CHECK(with([](Arrays& a) { a.sequences[2] = 2; }));
  CHECK(with([](Arrays& a) { a.tables[1] = 4; }));
  CHECK(with([](Arrays& a) { a.tables[0] = -1; }));
  CHECK(!with([](Arrays& a) { a.tables[3] = 99; }));  // a block that no row reaches
  CHECK(with([](Arrays& a) { a.logit_index[0] = 3; }));
  CHECK(with([](Arrays& a) { a.adapters[0] = 2; }));
  CHECK(with([](Arrays& a) { a.adapters[0] = -2; }));
  rb_step many = Arrays{}.step();
  many.rows = 4;
  CHECK(refuses(p, many));
  many.rows = -1;
  CHECK(refuses(p, many));
}

TEST(pool, a_missing_instruction_set_is_refused) {
  rb::Pool pool(1);
  bool refused = false;
  try {
    const rb::Program p(pool, 99, {});
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

}  // namespace
