// 07_rows.cpp: several rows for each weight that is loaded (rows.h).
//
// Law: up to 8 rows by 16 outputs are under way at once. For one row it is rung 6.
//
// Why: 8 sums hide the latency of the instruction, and a weight in a register is used 8 times instead of once.
#include "rows.h"

#if defined(__AVX512F__) && defined(__AVX512VNNI__)
const char* needs() { return nullptr; }

void multiply(const Problem* p) {
  for (int first = 0; first < p->n; first += 16) all_rows(p, first);
}
#else
const char* needs() { return "AVX-512 VNNI"; }
void multiply(const Problem*) {}
#endif
