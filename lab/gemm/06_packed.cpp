// 06_packed.cpp: weights laid out for the instruction: 16 outputs side by side (packed.h).
//
// Law: lane l of a sum is output l, whole: nothing is added across lanes. Four inputs of x are repeated in all lanes.
//
// Why: No additions across lanes at the end (at k = 576 they take as long as the products), and one load feeds 16
// outputs from a stream that runs through all of w.
#include "packed.h"

#if defined(__AVX512F__) && defined(__AVX512VNNI__)
const char* needs() { return nullptr; }

void multiply(const Problem* p) {
  for (int i = 0; i < p->m; ++i)
    for (int j = 0; j < p->n; j += 16) row_by_tile(p->xi + i * p->k, p->wi + j * p->k, p->yi + i * p->n + j, p->k);
}
#else
const char* needs() { return "AVX-512 VNNI"; }
void multiply(const Problem*) {}
#endif
