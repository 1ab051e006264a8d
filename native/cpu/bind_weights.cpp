// bind_weights.cpp: weight formats for Python: sizes, packing on several threads, unpacking, the instruction sets of this machine.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cpu/layout.h"
#include "rebar.h"

namespace nb = nanobind;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using BytesOut = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void raise_shape_error(const std::string& message) {
  const nb::object type = nb::module_::import_("rebar.errors").attr("ShapeError");
  PyErr_SetString(type.ptr(), message.c_str());
  throw nb::python_error();
}

std::string matrix_name(int type, int64_t n, int64_t k) {
  return "a matrix of type " + std::to_string(type) + " with " + std::to_string(n) + " outputs and " +
         std::to_string(k) + " inputs";
}

uint64_t sized(uint64_t bytes, int type, int64_t n, int64_t k) {
  if (bytes == 0) {
    raise_shape_error(
        matrix_name(type, n, k) +
        " is impossible. Types are 0..10 (native/rebar.h); block formats need inputs in 32s, K formats in 256s.");
  }
  return bytes;
}

uint64_t packed_nbytes(int type, int64_t n, int64_t k) { return sized(rb_packed_bytes(type, n, k), type, n, k); }
uint64_t stored_nbytes(int type, int64_t n, int64_t k) { return sized(rb_stored_bytes(type, n, k), type, n, k); }

struct Packing {
  int type;
  const void* stored;
  uint64_t stored_bytes;
  int64_t n, k;
  const int32_t* rows;
  void* packed;
  uint64_t packed_bytes;

  int tiles(int64_t begin, int64_t end) const {
    return rb_pack(type, stored, stored_bytes, n, k, rows, packed, packed_bytes, begin, end);
  }
};

// Tiles are written by one thread each; every thread has its own error.
int pack_on_threads(const Packing& p, int threads) {
  const int64_t tiles = rb::tile_count(p.n), count = std::clamp<int64_t>(threads, 1, tiles),
                each = (tiles + count - 1) / count;
  std::vector<int> errors(static_cast<size_t>(count), RB_PACK_OK);
  const auto part = [&](int64_t i) {
    errors[static_cast<size_t>(i)] = p.tiles(std::min(i * each, tiles), std::min((i + 1) * each, tiles));
  };
  std::vector<std::thread> workers;
  for (int64_t i = 1; i < count; ++i) workers.emplace_back(part, i);
  part(0);
  for (std::thread& worker : workers) worker.join();
  return *std::max_element(errors.begin(), errors.end());
}

void pack(int type, const Bytes& stored, int64_t n, int64_t k, const std::optional<Rows>& rows, const BytesOut& out,
          int threads) {
  const uint64_t packed_bytes = packed_nbytes(type, n, k), stored_bytes = stored_nbytes(type, n, k);
  const std::string what = matrix_name(type, n, k);
  if (rows && rows->size() != static_cast<size_t>(n)) {
    raise_shape_error(what + " needs " + std::to_string(n) + " entries of rows and has " +
                      std::to_string(rows->size()) + ". Pass one stored row for every output.");
  }
  const Packing p{type, stored.data(), stored.size(), n, k, rows ? rows->data() : nullptr, out.data(), out.size()};
  int error;
  {
    nb::gil_scoped_release release;
    error = pack_on_threads(p, threads);
  }
  if (error == RB_PACK_STORED) {
    raise_shape_error(what + " has " + std::to_string(stored_bytes) + " stored bytes and " +
                      std::to_string(stored.size()) + " were given. Check the file: it may be cut short.");
  }
  if (error == RB_PACK_PACKED) {
    raise_shape_error(what + " needs " + std::to_string(packed_bytes) + " packed bytes and out has " +
                      std::to_string(out.size()) + ". Size it with packed_nbytes.");
  }
  if (error != RB_PACK_OK)
    raise_shape_error(what + " was given an entry of rows outside 0.." + std::to_string(n - 1) +
                      ". Fix the row order.");
}

nb::ndarray<nb::numpy, float> unpack(int type, const Bytes& packed, int64_t n, int64_t k) {
  const uint64_t bytes = packed_nbytes(type, n, k);
  if (packed.size() < bytes) {
    raise_shape_error(matrix_name(type, n, k) + " needs " + std::to_string(bytes) + " packed bytes and has " +
                      std::to_string(packed.size()) + ". Pass the whole packed matrix.");
  }
  float* out = new float[static_cast<size_t>(n) * static_cast<size_t>(k)];
  const nb::capsule owner(out, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  const rb_matrix w{packed.data(), type, static_cast<int32_t>(n), static_cast<int32_t>(k)};
  {
    nb::gil_scoped_release release;
    rb_unpack(&w, out);
  }
  return nb::ndarray<nb::numpy, float>(out, {static_cast<size_t>(n), static_cast<size_t>(k)}, owner);
}

size_t quantized_stride(int32_t k) {
  if (k < 32 || k % 32 != 0)
    raise_shape_error("quantized rows have inputs in 32s, not " + std::to_string(k) + ". Pad the row.");
  return rb_quantized_stride(k);
}

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (int32_t isa = 0; isa < RB_ISAS; ++isa) {
    if (rb_kernels(isa) != nullptr) names.emplace_back(rb_isa_name(isa));
  }
  return names;
}

}  // namespace

void bind_weights(nb::module_& m) {
  m.def("packed_nbytes", &packed_nbytes, nb::arg("type"), nb::arg("n"), nb::arg("k"),
        "Bytes of a packed (n outputs, k inputs) matrix.");
  m.def("stored_nbytes", &stored_nbytes, nb::arg("type"), nb::arg("n"), nb::arg("k"),
        "Bytes of the same matrix in a model file.");
  m.def("pack", &pack, nb::arg("type"), nb::arg("stored"), nb::arg("n"), nb::arg("k"), nb::arg("rows").none(),
        nb::arg("out"), nb::arg("threads") = 1,
        "Packs stored rows into tiles; output row i is stored row rows[i] when rows is given.");
  m.def("unpack", &unpack, nb::arg("type"), nb::arg("packed"), nb::arg("n"), nb::arg("k"),
        "Packed tiles -> f32 (n, k).");
  m.def("quantized_stride", &quantized_stride, nb::arg("k"), "Bytes from one quantized activation row to the next.");
  m.attr("ATTENTION_SPLIT_ROWS") = RB_ATTENTION_SPLIT_ROWS;
  m.def("kv_bytes", &rb_kv_bytes, nb::arg("type"), nb::arg("kv_heads"), nb::arg("head_dim"),
        "Bytes of one layer's keys and values in a block of 16 positions.");
  m.def("attention_work", &rb_attention_work, nb::arg("heads"), nb::arg("head_dim"), nb::arg("window"),
        nb::arg("max_positions"), "f32 values of attention's work for each row of a step of few rows.");
  m.def("attention_parts", &rb_attention_parts, nb::arg("max_positions"),
        "Parts of attention's gradient that need room for a [dk | dv] of their own in each row.");
  m.def("isas", &isas, "Instruction sets this build and machine have.");
  m.def("best_isa", [] { return std::string(rb_isa_name(rb_best_isa())); }, "The fastest of them.");
}
