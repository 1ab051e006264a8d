#include "rebar.h"

extern "C" size_t rb_quantized_stride(int32_t k) {
  const size_t bytes = static_cast<size_t>(k) + static_cast<size_t>(k / 32) * 4 + static_cast<size_t>(k / 16) * 4;
  return (bytes + 63) / 64 * 64;
}
