// cut_guard.h: mapped files that another process cuts short. Reading past their new end is a SIGBUS, which ends the process
// without a word; here it gives zeros, and whoever reads asks was_cut.
//
// The law: nothing happens to memory that is not guarded, and nothing to a signal that is not such a read: the handler that was
// there before has it. Guarding, giving up and asking are for any thread; the handler takes no lock and allocates nothing.
#pragma once
#include <cstddef>

namespace rb {

constexpr int kGuards = 4096;  // mappings at a time

// Guards `nbytes` bytes mapped at `address`, a page's beginning. A number for the other two calls; -1 when all are taken.
int guard_mapping(const void* address, std::size_t nbytes);
// Before the mapping goes: what is mapped there next has other ends.
void give_up_guard(int guard);
// Whether zeros stand there instead of the file, from some page on. They stay, whatever becomes of the file.
bool was_cut(int guard);

}  // namespace rb
