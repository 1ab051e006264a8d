// bind_text.cpp: tokenizers for Python. The GIL is released while text is worked on; objects never change.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>

#include "text/tokenizer.h"

namespace nb = nanobind;
using namespace rebar::text;

namespace {

// A read-only buffer (bytes, memoryview, array), held as long as the tables are used.
struct Buffer {
  Py_buffer view{};
  explicit Buffer(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { PyBuffer_Release(&view); }
  std::span<const uint8_t> bytes() const {
    return {static_cast<const uint8_t*>(view.buf), static_cast<size_t>(view.len)};
  }
};

// The UTF-8 of a str; the str keeps it. Raises UnicodeEncodeError for lone surrogates.
std::string_view utf8(nb::str text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (!data) throw nb::python_error();
  return {data, static_cast<size_t>(size)};
}

nb::list to_list(const std::vector<uint32_t>& ids) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(ids.size()));
  if (!list) throw nb::python_error();
  nb::list result = nb::steal<nb::list>(list);
  for (size_t i = 0; i < ids.size(); ++i) {
    PyObject* id = PyLong_FromUnsignedLong(ids[i]);
    if (!id) throw nb::python_error();
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), id);
  }
  return result;
}

std::optional<uint32_t> present(uint32_t id) { return id == kNone ? std::nullopt : std::optional(id); }

class BoundTokenizer {
 public:
  explicit BoundTokenizer(nb::object buffer) : buffer_(buffer), tokenizer_(Vocabulary::open(buffer_.bytes())) {}

  nb::list encode(nb::str text, bool special) const {
    const std::string_view bytes = utf8(text);
    std::vector<uint32_t> ids;
    {
      nb::gil_scoped_release release;
      tokenizer_.encode(bytes, special, ids);
    }
    return to_list(ids);
  }

  nb::list encode_ordinary(nb::str text, bool first) const {
    const std::string_view bytes = utf8(text);
    std::vector<uint32_t> ids;
    {
      nb::gil_scoped_release release;
      Scratch scratch;
      tokenizer_.encode_ordinary(bytes, first, scratch, ids);
    }
    return to_list(ids);
  }

  // Ids of many texts in one array: (int32 ids, uint64 end of each text), as bytes. before and after: an id around each text.
  nb::tuple encode_many(nb::list texts, bool special, std::optional<uint32_t> before,
                        std::optional<uint32_t> after) const {
    std::vector<nb::object> kept;  // another thread may change the list meanwhile
    std::vector<std::string_view> all;
    for (nb::handle item : texts) {
      kept.push_back(nb::borrow(item));
      all.push_back(utf8(nb::cast<nb::str>(item)));
    }
    std::vector<uint32_t> ids;
    std::vector<uint64_t> ends;
    {
      nb::gil_scoped_release release;
      for (std::string_view text : all) {
        if (before) ids.push_back(*before);
        tokenizer_.encode(text, special, ids);
        if (after) ids.push_back(*after);
        ends.push_back(ids.size());
      }
    }
    return nb::make_tuple(nb::bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(uint32_t)),
                          nb::bytes(reinterpret_cast<const char*>(ends.data()), ends.size() * sizeof(uint64_t)));
  }

  nb::list split(nb::str text, bool special) const {
    const std::string_view bytes = utf8(text);
    std::vector<Stretch> all;
    {
      nb::gil_scoped_release release;
      all = tokenizer_.stretches(bytes, special);
    }
    nb::list result;
    for (const Stretch& s : all) {
      if (s.id == kNone)
        result.append(nb::str(bytes.data() + s.begin, s.end - s.begin));
      else
        result.append(s.id);
    }
    return result;
  }

  nb::bytes decode(nb::list list, bool skip_special) const {
    std::vector<uint32_t> ids;
    ids.reserve(nb::len(list));
    for (nb::handle item : list) ids.push_back(checked(item));
    std::string bytes;
    tokenizer_.decode(ids.data(), ids.size(), skip_special, bytes);
    return nb::bytes(bytes.data(), bytes.size());
  }

  // What one id adds to a stream of text; nothing for a special one that is skipped.
  nb::bytes stream_bytes(nb::object object, bool skip_special) const {
    const uint32_t id = checked(object);
    const TokenType type = vocabulary().type(id);
    if (skip_special && (type == TokenType::kControl || type == TokenType::kUnknown)) return nb::bytes("", 0);
    const std::string_view text = vocabulary().text(id);
    return nb::bytes(text.data(), text.size());
  }

  nb::list control_ids() const {
    nb::list ids;
    for (uint32_t id = 0; id < vocabulary().size(); ++id)
      if (vocabulary().type(id) == TokenType::kControl) ids.append(id);
    return ids;
  }

  nb::bytes token_bytes(nb::object id) const {
    const std::string_view text = vocabulary().text(checked(id));
    return nb::bytes(text.data(), text.size());
  }

  uint32_t token_type(nb::object id) const { return static_cast<uint32_t>(vocabulary().type(checked(id))); }
  nb::list missing_bytes() const {
    nb::list missing;
    for (uint32_t b = 0; b < 256; ++b)
      if (vocabulary().byte_id(static_cast<uint8_t>(b)) == kNone) missing.append(b);
    return missing;
  }
  const Vocabulary& vocabulary() const { return tokenizer_.vocabulary(); }

  // What the tables were built of, for who writes them in another format: u32 pairs of ids by rank, f32 a token.
  nb::bytes merges() const {
    std::vector<uint32_t> pairs;
    for (const Merge& m : vocabulary().merges()) pairs.insert(pairs.end(), {m.left, m.right});
    return nb::bytes(pairs.data(), pairs.size() * sizeof(uint32_t));
  }
  nb::bytes scores() const { return nb::bytes(vocabulary().scores().data(), vocabulary().scores().size_bytes()); }

 private:
  Buffer buffer_;
  Tokenizer tokenizer_;

  // No bool, no float, nothing outside the vocabulary: a ValueError says so.
  uint32_t checked(nb::handle item) const {
    if (!PyLong_Check(item.ptr()) || PyBool_Check(item.ptr())) throw nb::value_error("a token id must be an integer");
    int overflow = 0;
    const long long id = PyLong_AsLongLongAndOverflow(item.ptr(), &overflow);
    if (overflow != 0 || id < 0 || id >= vocabulary().size())
      throw nb::value_error(("token ids go from 0 to " + std::to_string(vocabulary().size() - 1)).c_str());
    return static_cast<uint32_t>(id);
  }
};

nb::bytes build_bytes(bool spm, const std::string& pre, std::vector<std::string> tokens, nb::bytes types,
                      nb::bytes scores, std::vector<std::string> merges, std::optional<uint32_t> bos,
                      std::optional<uint32_t> eos, std::optional<uint32_t> unknown, std::optional<uint32_t> pad,
                      std::vector<uint32_t> ends, bool add_bos, bool add_space_prefix) {
  VocabularySource source;
  source.spm = spm, source.pre = pre;
  source.tokens = std::move(tokens), source.merges = std::move(merges);
  const auto* first = static_cast<const uint8_t*>(types.data());
  source.types.assign(first, first + types.size());
  source.scores.resize(scores.size() / sizeof(float));
  if (!source.scores.empty()) std::memcpy(source.scores.data(), scores.data(), source.scores.size() * sizeof(float));
  source.bos = bos.value_or(kNone), source.eos = eos.value_or(kNone);
  source.unknown = unknown.value_or(kNone), source.pad = pad.value_or(kNone);
  source.ends = std::move(ends);
  source.add_bos = add_bos, source.add_space_prefix = add_space_prefix;
  std::vector<uint8_t> blob;
  {
    nb::gil_scoped_release release;
    blob = build(source);
  }
  return nb::bytes(blob.data(), blob.size());
}

}  // namespace

void bind_text(nb::module_& m) {
  nb::object damaged = nb::exception<VocabularyError>(m, "VocabularyError", PyExc_ValueError);
  nb::exception<UnknownSplitError>(m, "UnknownSplitError", damaged);
  using namespace nb::literals;
  m.def("build_vocabulary", &build_bytes, "spm"_a, "pre"_a, "tokens"_a, "types"_a, "scores"_a, "merges"_a,
        "bos"_a.none(), "eos"_a.none(), "unknown"_a.none(), "pad"_a.none(), "ends"_a, "add_bos"_a,
        "add_space_prefix"_a);
  using B = BoundTokenizer;
  nb::class_<B>(m, "TextTokenizer")
      .def(nb::init<nb::object>(), "vocabulary"_a)
      .def("encode", &B::encode, "text"_a, "special"_a,
           nb::sig("def encode(self, text: str, special: bool) -> list[int]"))
      .def("encode_ordinary", &B::encode_ordinary, "text"_a, "first"_a,
           nb::sig("def encode_ordinary(self, text: str, first: bool) -> list[int]"))
      .def("encode_many", &B::encode_many, "texts"_a, "special"_a, "before"_a.none(), "after"_a.none(),
           nb::sig("def encode_many(self, texts: list[str], special: bool, before: int | None, after: int | None) -> "
                   "tuple[bytes, bytes]"))
      .def("split", &B::split, "text"_a, "special"_a,
           nb::sig("def split(self, text: str, special: bool) -> list[str | int]"))
      .def("decode", &B::decode, "ids"_a, "skip_special"_a,
           nb::sig("def decode(self, ids: list[int], skip_special: bool) -> bytes"))
      .def("stream_bytes", &B::stream_bytes, "id"_a.none(), "skip_special"_a)
      .def("control_ids", &B::control_ids, nb::sig("def control_ids(self) -> list[int]"))
      .def("token_bytes", &B::token_bytes, "id"_a.none())
      .def("token_type", &B::token_type, "id"_a.none())
      .def("missing_bytes", &B::missing_bytes, nb::sig("def missing_bytes(self) -> list[int]"))
      .def("merges", &B::merges)
      .def("scores", &B::scores)
      .def_prop_ro("size", [](const B& b) { return b.vocabulary().size(); })
      .def_prop_ro("pre", [](const B& b) { return std::string(b.vocabulary().pre()); })
      .def_prop_ro("spm", [](const B& b) { return b.vocabulary().split() == Split::kSpm; })
      .def_prop_ro("nfc", [](const B& b) { return b.vocabulary().flag(kNfc); })
      .def_prop_ro("add_bos", [](const B& b) { return b.vocabulary().flag(kAddBos); })
      .def_prop_ro("add_space_prefix", [](const B& b) { return b.vocabulary().flag(kAddSpacePrefix); })
      .def_prop_ro("bos_id", [](const B& b) { return present(b.vocabulary().header().bos); })
      .def_prop_ro("eos_id", [](const B& b) { return present(b.vocabulary().header().eos); })
      .def_prop_ro("pad_id", [](const B& b) { return present(b.vocabulary().header().pad); })
      .def_prop_ro("unknown_id", [](const B& b) { return present(b.vocabulary().header().unknown); })
      .def_prop_ro("end_ids",
                   [](const B& b) {
                     const auto ends = b.vocabulary().ends();
                     return std::vector<uint32_t>(ends.begin(), ends.end());
                   })
      .def_prop_ro("checksum", [](const B& b) { return b.vocabulary().header().checksum; });
}
