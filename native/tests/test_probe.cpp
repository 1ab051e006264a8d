// The probes read their slices and nothing else, count what they do, and end. What they measure is no matter of a test.
#include <stdexcept>

#include "cpu/probe_tables.h"
#include "probe.h"
#include "support.h"
#include "test.h"

namespace {

template <class F>
bool refuses(F call) {
  try {
    call();
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

}  // namespace

// Exactly these bytes: a sanitizer sees one too many.
TEST(probe, reads_stay_in_their_slices) {
  rb::Pool pool(3);
  const Buffer data(6 * rb::kProbeBlock);
  for (const int32_t isa : available_isas()) {
    test_context = rb_isa_name(isa);
    for (const int threads : {1, 2, 3}) {
      for (const bool ahead : {false, true})
        CHECK(rb::probe_read(pool, isa, data.data(), 6 * rb::kProbeBlock, threads, 3, ahead) > 0.0);
    }
  }
}

TEST(probe, operations_are_counted_for_all_threads) {
  rb::Pool pool(3);
  for (const int32_t isa : available_isas()) {
    const int64_t one = rb::probe_arithmetic(pool, isa, rb::Arithmetic::kDot, 1, 10).operations;
    CHECK(one > 0);
    CHECK(rb::probe_arithmetic(pool, isa, rb::Arithmetic::kDot, 3, 10).operations == 3 * one);
    CHECK(4 * rb::probe_arithmetic(pool, isa, rb::Arithmetic::kFma, 1, 10).operations == one);
  }
}

TEST(probe, a_meeting_ends_also_on_one_core) {
  for (const int threads : {1, 2, 5}) {
    rb::Pool pool(threads);
    for (int i = 0; i < 20; ++i) CHECK(rb::probe_meeting(pool) > 0.0);
    CHECK(rb::probe_launches(pool, 100) > 0.0);
  }
}

TEST(probe, odd_sizes_are_refused) {
  rb::Pool pool(2);
  const Buffer data(4 * rb::kProbeBlock);
  const auto read = [&](int64_t nbytes, int threads, int64_t rounds, int32_t isa) {
    return refuses([&] { rb::probe_read(pool, isa, data.data(), nbytes, threads, rounds, false); });
  };
  CHECK(!read(4 * rb::kProbeBlock, 2, 1, RB_ISA_SCALAR));
  CHECK(read(3 * rb::kProbeBlock, 2, 1, RB_ISA_SCALAR));
  CHECK(read(0, 1, 1, RB_ISA_SCALAR));
  CHECK(read(rb::kProbeBlock, 3, 1, RB_ISA_SCALAR));
  CHECK(read(rb::kProbeBlock, 1, 0, RB_ISA_SCALAR));
  CHECK(read(rb::kProbeBlock, 1, 1, 99));
}
