#include "cut_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>

namespace rb {
namespace {

struct Guard {
  std::atomic<bool> taken{false};
  std::atomic<uintptr_t> begin{0}, end{0};  // both 0: nothing is guarded
  std::atomic<bool> cut{false};
};

std::array<Guard, kGuards> guards;
struct sigaction before;

Guard* guard_of(uintptr_t address) {
  for (Guard& guard : guards) {
    if (guard.begin.load() <= address && address < guard.end.load()) return &guard;
  }
  return nullptr;
}

// The file ends before this page, so before all that follow: they become zeros at once, and one signal is the last.
bool zeros_from(Guard& guard, uintptr_t address) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = address / page * page;
  const std::size_t nbytes = guard.end.load() - begin;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
  guard.cut.store(true);
  return mmap(reinterpret_cast<void*>(begin), nbytes, PROT_READ, kFlags, -1, 0) != MAP_FAILED;
}

void on_bus_error(int, siginfo_t* info, void*) {
  const int error = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  Guard* guard = info->si_code == BUS_ADRERR ? guard_of(address) : nullptr;
  // Not ours: the read is tried again, and meets what was there before.
  if (guard == nullptr || !zeros_from(*guard, address)) sigaction(SIGBUS, &before, nullptr);
  errno = error;
}

void watch() {
  struct sigaction action{};
  action.sa_sigaction = &on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, &before);
}

}  // namespace

int guard_mapping(const void* address, std::size_t nbytes) {
  static std::once_flag once;
  std::call_once(once, watch);
  for (int number = 0; number < kGuards; ++number) {
    Guard& guard = guards[number];
    if (guard.taken.exchange(true)) continue;
    guard.cut.store(false);
    guard.begin.store(reinterpret_cast<uintptr_t>(address));
    guard.end.store(reinterpret_cast<uintptr_t>(address) + nbytes);
    return number;
  }
  return -1;
}

void give_up_guard(int number) {
  Guard& guard = guards[number];
  guard.end.store(0);
  guard.begin.store(0);
  guard.taken.store(false);
}

bool was_cut(int number) { return guards[number].cut.load(); }

}  // namespace rb
