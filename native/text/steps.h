// steps.h: counts the steps of tokenizing, in the one test that proves them linear in the length of the text.
//
// A step is one character read, one look-up tried, one candidate moved. Compiled away unless RB_COUNT_STEPS is defined,
// which the test does for its own copy of these sources.
#pragma once
#include <cstdint>

namespace rebar::text {

#ifdef RB_COUNT_STEPS
inline uint64_t steps = 0;
inline void count_steps(uint64_t n) { steps += n; }
#else
inline void count_steps(uint64_t) {}
#endif

}  // namespace rebar::text
