#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "sampling/batch.h"
#include "sampling/philox.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace rebar::sampling;

namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Tokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

struct OwnedParams {
  Params params;
  std::vector<Bias> bias;
};

struct Job {
  Row row;
  std::vector<Alternative> top;
};

const Lanes& lanes_of(const std::string& isa) {
  const Lanes* lanes = isa.empty() ? &best_lanes() : lanes_named(isa.c_str());
  if (lanes == nullptr) throw std::invalid_argument("no sampler for instruction set '" + isa + "' on this machine");
  return *lanes;
}

// The caller's sequence owns the words and outlives the call.
const uint32_t* words_of(const Tokens& mask, int32_t vocab_size) {
  if (mask.shape(0) * 32 < static_cast<size_t>(vocab_size))
    throw std::invalid_argument("a mask must have a bit for every id");
  return reinterpret_cast<const uint32_t*>(mask.data());
}

// (tokens, prompt, total, position, params, mask): tokens[:total] are known, position < total is the one whose logits these
// are. No conversion: a converted copy of tokens would not outlive this function.
Job job_of(nb::handle item, const float* logits, int32_t vocab_size) {
  const auto [tokens, prompt, total, position, params, mask] =
      nb::cast<std::tuple<Tokens, int64_t, int64_t, int64_t, const OwnedParams*, nb::object>>(item, false);
  if (prompt < 0 || position < 0 || position >= total || static_cast<size_t>(total) > tokens.shape(0))
    throw std::invalid_argument("a wanted position must be inside the sequence's known ids");
  const int64_t known = position + 1, split = prompt < known ? prompt : known;
  Job job;
  job.row.params = &params->params;
  job.row.request = {logits,
                     {tokens.data(), static_cast<size_t>(split)},
                     {tokens.data() + split, static_cast<size_t>(known - split)},
                     static_cast<uint64_t>(known),
                     known < total ? tokens.data()[known] : -1};
  if (!mask.is_none()) job.row.request.mask = words_of(nb::cast<Tokens>(mask, false), vocab_size);
  job.top.resize(static_cast<size_t>(std::max(0, std::min(params->params.top, vocab_size))));
  return job;
}

nb::tuple answer_of(const Job& job) {
  nb::list top;
  const Answer& answer = job.row.answer;
  for (int32_t i = 0; i < answer.top; ++i) top.append(nb::make_tuple(job.top[i].id, job.top[i].logprob));
  return nb::make_tuple(static_cast<int>(answer.status), answer.id, answer.logprob, nb::tuple(top));
}

nb::list sample(Batch& batch, const Logits& logits, const nb::list& wanted) {
  if (logits.shape(0) != wanted.size() || logits.shape(1) < static_cast<size_t>(batch.vocab_size()))
    throw std::invalid_argument("logits must be (wanted positions, at least vocab_size)");
  if (logits.shape(0) > 0 && logits.stride(1) != 1) throw std::invalid_argument("a row of logits must be contiguous");
  std::vector<Job> jobs;
  std::vector<Row> rows;
  jobs.reserve(wanted.size());
  for (size_t row = 0; row < wanted.size(); ++row)
    jobs.push_back(
        job_of(wanted[row], logits.data() + static_cast<int64_t>(row) * logits.stride(0), batch.vocab_size()));
  for (Job& job : jobs) job.row.top = job.top.data(), rows.push_back(job.row);
  {
    const nb::gil_scoped_release release;
    batch.sample(rows);
  }
  nb::list answers;
  for (size_t row = 0; row < jobs.size(); ++row) {
    jobs[row].row.answer = rows[row].answer;
    answers.append(answer_of(jobs[row]));
  }
  return answers;
}

}  // namespace

void bind_sampling(nb::module_& m) {
  nb::class_<OwnedParams>(m, "SamplerParams",
                          "What one request asks of the sampler, converted once (native/sampling/sample.h).")
      .def(
          "__init__",
          [](OwnedParams* self, double temperature, int64_t top_k, double top_p, double min_p, double repetition,
             double frequency, double presence, uint64_t seed, int32_t top,
             const std::vector<std::tuple<int32_t, double>>& bias) {
            new (self) OwnedParams{};
            for (const auto& [id, value] : bias) self->bias.push_back({id, static_cast<float>(value)});
            self->params = {temperature,
                            top_k,
                            top_p,
                            min_p,
                            static_cast<float>(repetition),
                            static_cast<float>(frequency),
                            static_cast<float>(presence),
                            seed,
                            top,
                            self->bias};
          },
          "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "repetition"_a, "frequency"_a, "presence"_a, "seed"_a,
          "top"_a, "bias"_a);
  nb::class_<Batch>(m, "Sampler", "Logits rows -> ids for one vocabulary size.")
      .def(
          "__init__",
          [](Batch* self, int32_t vocab_size, const std::string& isa, rb::Pool* pool) {
            if (vocab_size < 1) throw std::invalid_argument("vocab_size must be positive");
            new (self) Batch(vocab_size, lanes_of(isa), pool);
          },
          nb::keep_alive<1, 4>(), "vocab_size"_a, "isa"_a = "", "pool"_a.none() = nb::none())
      .def("sample", &sample, "logits"_a.noconvert(), "wanted"_a,
           nb::sig("def sample(self, logits: numpy.typing.NDArray[numpy.float32], wanted: "
                   "list[tuple[numpy.typing.NDArray[numpy.int32], int, int, "
                   "int, SamplerParams, numpy.typing.NDArray[numpy.int32] | None]]) -> list[tuple[int, int, float, "
                   "tuple[tuple[int, float], ...]]]"),
           "logits (n, >= vocab_size) f32, n tuples (tokens, prompt, total, position, params, mask) -> n (status, id, "
           "logprob, top).");
  m.def("sampler_isas", [] {
    std::vector<std::string> names;
    for (const char* name : {"portable", "avx2", "avx512"})
      if (lanes_named(name) != nullptr) names.emplace_back(name);
    return names;
  });
  m.def("philox", [](const std::vector<uint32_t>& counter, uint32_t key0, uint32_t key1) {
    const Counter c = philox({counter.at(0), counter.at(1), counter.at(2), counter.at(3)}, key0, key1);
    return std::vector<uint32_t>(c.begin(), c.end());
  });
  m.def("sampler_uniform", &uniform, "seed"_a, "position"_a, "The draw's u in [0, 1) at (seed, position).");
}
