#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <stdexcept>
#include <utility>
#include <vector>

#include "sampling/lookup.h"

namespace nb = nanobind;
using namespace nb::literals;
using rebar::sampling::Lookup;

namespace {

using Tokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
constexpr int64_t kMost = 64;  // guesses a call

std::pair<std::vector<int32_t>, std::vector<float>> guess(Lookup& lookup, const Tokens& tokens, int64_t total,
                                                          int64_t prompt, int64_t most) {
  if (total < 0 || static_cast<size_t>(total) > tokens.shape(0) || total > lookup.capacity())
    throw std::invalid_argument("total must be inside the sequence and the capacity");
  if (most < 0 || most > kMost) throw std::invalid_argument("at most 64 guesses");
  const std::span<const int32_t> known{tokens.data(), static_cast<size_t>(total)};
  std::array<int32_t, kMost> ids;
  std::array<float, kMost> chances;
  lookup.read(known, prompt);
  const int64_t count =
      lookup.guess(known, {ids.data(), static_cast<size_t>(most)}, {chances.data(), static_cast<size_t>(most)});
  return {{ids.data(), ids.data() + count}, {chances.data(), chances.data() + count}};
}

}  // namespace

void bind_lookup(nb::module_& m) {
  nb::class_<Lookup>(m, "Lookup", "What a sequence may say next, from its own ids (native/sampling/lookup.h).")
      .def(
          "__init__",
          [](Lookup* self, int64_t capacity) {
            if (capacity < 1 || capacity > INT32_MAX) throw std::invalid_argument("capacity must be positive");
            new (self) Lookup(capacity);
          },
          "capacity"_a)
      .def("guess", &guess, "tokens"_a.noconvert(), "total"_a, "prompt"_a, "most"_a,
           nb::sig("def guess(self, tokens: numpy.typing.NDArray[numpy.int32], total: int, prompt: int, most: int) -> "
                   "tuple[list[int], list[float]]"),
           "Reads tokens[:total], whose first `prompt` were not sampled; up to `most` ids that may follow, and of each "
           "the chance that it and all before it stand.");
}
