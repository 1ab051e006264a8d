// agreed.h: a launch's result, when every instruction set and every way of handing tasks out gives the same bits.
#pragma once
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "support.h"
#include "test.h"

using Launch = std::function<std::vector<float>(int32_t isa, Split split)>;

// The scalar one.
inline std::vector<float> agreed(const char* what, const Launch& launch) {
  const std::vector<float> scalar = launch(RB_ISA_SCALAR, Split::kWhole);
  for (const int32_t isa : available_isas()) {
    test_context = std::string(what) + " " + rb_isa_name(isa);
    for (const Split split : {Split::kWhole, Split::kSingle, Split::kBackwards})
      CHECK(same_bits(launch(isa, split), scalar));
  }
  return scalar;
}

// The bytes of a buffer, so that quantized rows and caches are compared whole.
inline std::vector<float> as_floats(const Buffer& b) {
  std::vector<float> out(b.size() / 4);
  std::memcpy(out.data(), b.data(), b.size());
  return out;
}
