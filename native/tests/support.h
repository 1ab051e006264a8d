// support.h: what kernel tests share: random numbers, aligned buffers, running a launch, quantized rows, random stored matrices.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "rebar.h"

constexpr double kRound = 0x1p-24;  // unit roundoff of f32

class Random {  // splitmix64
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits();
  int below(int n) { return static_cast<int>(bits() % static_cast<uint64_t>(n)); }
  float uniform(float low, float high);
  float normal();
  std::vector<float> normals(size_t n);

 private:
  uint64_t state_;
};

// 64-byte aligned bytes of exactly this size, so that a sanitizer sees one byte too many; filled with a NaN pattern.
class Buffer {
 public:
  explicit Buffer(size_t bytes);
  explicit Buffer(const std::vector<uint8_t>& from) : Buffer(from.size()) {
    std::memcpy(data_, from.data(), from.size());
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  size_t size() const { return bytes_; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }

 private:
  uint8_t* data_;
  size_t bytes_;
};

// Where weight (output j, input i) of a matrix with k inputs stands among packed floats: tiles of 16 outputs.
inline size_t tiled(int64_t k, int64_t j, int64_t i) { return static_cast<size_t>((j / 16 * k + i) * 16 + j % 16); }

enum class Split { kWhole, kSingle, kBackwards };  // how a launch's tasks are handed out

std::vector<int32_t> available_isas();
const char* type_name(int32_t type);
void run_launch(int32_t isa, int32_t op, const rb_args& args, const rb_step& step, Split split = Split::kWhole);

rb_step rows_step(int32_t rows);  // a step of `rows` rows, all of which want logits; no ids, positions or tables
std::vector<uint8_t> random_stored(Random& random, int32_t type, int64_t n, int64_t k);  // finite, scales near 1
Buffer packed(int32_t type, const std::vector<uint8_t>& stored, int64_t n, int64_t k, const int32_t* rows = nullptr);
std::vector<uint8_t> quantized(int32_t isa, const float* x, int32_t rows, int32_t k, int32_t group = 16);

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
