#include "support.h"

#include <cmath>

#include "cpu/half.h"

uint64_t Random::bits() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

float Random::uniform(float low, float high) {
  return low + (high - low) * static_cast<float>(bits() >> 40) * 0x1p-24f;
}

float Random::normal() {
  const double u = (static_cast<double>(bits() >> 11) + 1.0) * 0x1p-53, v = static_cast<double>(bits() >> 11) * 0x1p-53;
  return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v));
}

std::vector<float> Random::normals(size_t n) {
  std::vector<float> out(n);
  for (float& x : out) x = normal();
  return out;
}

Buffer::Buffer(size_t bytes) : data_(nullptr), bytes_(bytes) {
  if (posix_memalign(reinterpret_cast<void**>(&data_), 64, bytes > 0 ? bytes : 1) != 0) std::abort();
  std::memset(data_, 0xff, bytes);
}

std::vector<int32_t> available_isas() {
  std::vector<int32_t> found;
  for (int32_t isa = 0; isa < RB_ISAS; ++isa) {
    if (rb_kernels(isa) != nullptr) found.push_back(isa);
  }
  return found;
}

const char* type_name(int32_t type) {
  static constexpr const char* names[] = {"F32",  "F16",  "BF16", "Q8_0", "Q4_0", "Q4_1",
                                          "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"};
  return names[type];
}

void run_launch(int32_t isa, int32_t op, const rb_args& args, const rb_step& step, Split split) {
  const rb_kernel& kernel = rb_kernels(isa)[op];
  const int64_t tasks = kernel.tasks(&args, &step);
  Buffer scratch(kernel.scratch_bytes(&args, step.rows > step.logit_rows ? step.rows : step.logit_rows));
  std::memset(scratch.data(), 0, scratch.size() < 8 ? scratch.size() : 8);  // as rebar.h promises
  if (split == Split::kWhole && tasks > 0) return kernel.run(&args, &step, 0, tasks, scratch.data());
  for (int64_t i = 0; i < tasks; ++i) {
    const int64_t task = split == Split::kBackwards ? tasks - 1 - i : i;
    std::memset(scratch.data(), 0xff, scratch.size());
    std::memset(scratch.data(), 0, scratch.size() < 8 ? scratch.size() : 8);
    kernel.run(&args, &step, task, task + 1, scratch.data());
  }
}

rb_step rows_step(int32_t rows) {
  rb_step step{};
  step.rows = step.logit_rows = rows;
  return step;
}

namespace {

void put_half(std::vector<uint8_t>& out, size_t at, float value) {
  const uint16_t h = rb::f32_to_f16(value);
  std::memcpy(out.data() + at, &h, 2);
}

void put_float(std::vector<uint8_t>& out, int32_t type, size_t i, float value) {
  if (type == RB_F32) std::memcpy(out.data() + 4 * i, &value, 4);
  if (type == RB_F16) put_half(out, 2 * i, value);
  if (type == RB_BF16) {
    const uint16_t b = static_cast<uint16_t>(rb::bits_of(value) >> 16);
    std::memcpy(out.data() + 2 * i, &b, 2);
  }
}

}  // namespace

std::vector<uint8_t> random_stored(Random& random, int32_t type, int64_t n, int64_t k) {
  std::vector<uint8_t> out(rb_stored_bytes(type, n, k));
  if (type <= RB_BF16) {
    for (size_t i = 0; i < static_cast<size_t>(n * k); ++i) put_float(out, type, i, random.normal());
    return out;
  }
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(random.bits());
  const bool super = type >= RB_Q4_K,
             minimum = type == RB_Q4_1 || type == RB_Q5_1 || type == RB_Q4_K || type == RB_Q5_K;
  const size_t block = out.size() / static_cast<size_t>(n * k / (super ? 256 : 32));
  for (size_t at = 0; at < out.size(); at += block) {  // only the f16 scales must be sane numbers
    put_half(out, type == RB_Q6_K ? at + 208 : at, random.uniform(0.01f, 0.1f) * (random.below(2) ? 1.0f : -1.0f));
    if (minimum) put_half(out, at + 2, random.uniform(-1.0f, 1.0f));
  }
  return out;
}

Buffer packed(int32_t type, const std::vector<uint8_t>& stored, int64_t n, int64_t k, const int32_t* rows) {
  Buffer out(rb_packed_bytes(type, n, k));
  if (rb_pack(type, stored.data(), stored.size(), n, k, rows, out.data(), out.size(), 0, (n + 15) / 16) != RB_PACK_OK)
    std::abort();
  return out;
}

std::vector<uint8_t> quantized(int32_t isa, const float* x, int32_t rows, int32_t k, int32_t group) {
  Buffer out(rb_quantized_stride(k) * static_cast<size_t>(rows));
  std::memset(out.data(), 0, out.size());
  rb_args args{};
  args.quantize = {x, out.data(), k, k, RB_ROWS, group};
  run_launch(isa, RB_OP_QUANTIZE, args, rows_step(rows));
  return {out.data(), out.data() + out.size()};
}
