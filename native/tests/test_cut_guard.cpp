// A mapped file that is cut while it is read: zeros, and the reader is told. Anything else meets what was there before.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "cut_guard.h"
#include "test.h"

namespace {

const auto kPage = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));

// A file of ones without a name, mapped.
struct Ones {
  explicit Ones(std::size_t pages) : nbytes(pages * kPage), descriptor(memfd_create("ones", MFD_CLOEXEC)) {
    const std::string ones(nbytes, 1);
    CHECK(write(descriptor, ones.data(), nbytes) == static_cast<ssize_t>(nbytes));
    data = static_cast<const char*>(mmap(nullptr, nbytes, PROT_READ, MAP_SHARED, descriptor, 0));
  }
  ~Ones() {
    munmap(const_cast<char*>(data), nbytes);
    close(descriptor);
  }
  std::size_t sum() const {
    std::size_t found = 0;
    for (std::size_t at = 0; at < nbytes; ++at) found += static_cast<const volatile char*>(data)[at];
    return found;
  }

  std::size_t nbytes;
  int descriptor;
  const char* data = nullptr;
};

}  // namespace

TEST(cut_guard, what_was_cut_is_zeros) {
  const Ones file(100);
  const int guard = rb::guard_mapping(file.data, file.nbytes);
  CHECK(file.sum() == file.nbytes);
  CHECK(!rb::was_cut(guard));
  CHECK(ftruncate(file.descriptor, static_cast<off_t>(10 * kPage - 5)) == 0);
  CHECK(file.sum() == 10 * kPage - 5);  // of the last page the system itself makes zeros
  CHECK(rb::was_cut(guard));
  CHECK(ftruncate(file.descriptor, static_cast<off_t>(file.nbytes)) == 0);
  CHECK(file.sum() == 10 * kPage - 5);
  rb::give_up_guard(guard);
}

TEST(cut_guard, one_file_of_many_threads) {
  const Ones kept(3);
  const Ones file(64);
  const int guards[] = {rb::guard_mapping(kept.data, kept.nbytes), rb::guard_mapping(file.data, file.nbytes)};
  CHECK(ftruncate(file.descriptor, 0) == 0);
  std::vector<std::size_t> sums(4, 1);
  std::vector<std::thread> threads;
  for (std::size_t& sum : sums) threads.emplace_back([&] { sum = file.sum(); });
  for (std::thread& thread : threads) thread.join();
  for (const std::size_t sum : sums) CHECK(sum == 0);
  CHECK(rb::was_cut(guards[1]));
  CHECK(!rb::was_cut(guards[0]));
  CHECK(kept.sum() == kept.nbytes);
  for (const int guard : guards) rb::give_up_guard(guard);
}

TEST(cut_guard, a_number_is_given_again_and_knows_nothing_of_before) {
  const Ones file(1);
  const int first = rb::guard_mapping(file.data, file.nbytes);
  CHECK(ftruncate(file.descriptor, 0) == 0);
  CHECK(file.sum() == 0);
  rb::give_up_guard(first);
  const int second = rb::guard_mapping(file.data, file.nbytes);
  CHECK(second == first);
  CHECK(!rb::was_cut(second));
  rb::give_up_guard(second);
}

TEST(cut_guard, there_is_an_end_of_guards) {
  const Ones file(1);
  std::vector<int> guards;
  int guard = 0;
  while ((guard = rb::guard_mapping(file.data, file.nbytes)) >= 0) guards.push_back(guard);
  CHECK(guards.size() == rb::kGuards);
  for (const int number : guards) rb::give_up_guard(number);
  guard = rb::guard_mapping(file.data, file.nbytes);
  CHECK(guard >= 0);
  rb::give_up_guard(guard);
}

// The handler steps aside for what was there before: here the system's own way, which is the end.
TEST(cut_guard, what_is_not_guarded_is_for_others) {
  const Ones file(2), guarded(1);
  const int guard = rb::guard_mapping(guarded.data, guarded.nbytes);
  CHECK(ftruncate(file.descriptor, 0) == 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(static_cast<int>(file.sum()));
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status != 0);  // a signal, or what a sanitizer makes of it
  rb::give_up_guard(guard);
}
