// JSON records to Python objects (json_record.h); what is not read there is left to msgspec.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <memory>
#include <stdexcept>

#include "text/json_record.h"

namespace nb = nanobind;

namespace {

constexpr std::size_t kKey = 32;    // bytes of a key that is kept for the next record
constexpr std::size_t kKeys = 256;  // records of one kind have a handful

// Keys seen before, each at the place of its hash; under the GIL, like all of this file.
PyObject* known_key(const char* begin, std::size_t nbytes) {
  static std::array<PyObject*, kKeys> keys{};
  if (nbytes == 0 || nbytes > kKey) return PyUnicode_FromStringAndSize(begin, static_cast<Py_ssize_t>(nbytes));
  const auto first = static_cast<uint8_t>(begin[0]), last = static_cast<uint8_t>(begin[nbytes - 1]);
  PyObject*& kept = keys[(nbytes * 67 + first * 31 + last) % kKeys];
  if (kept != nullptr && static_cast<std::size_t>(PyUnicode_GET_LENGTH(kept)) == nbytes &&
      std::memcmp(PyUnicode_1BYTE_DATA(kept), begin, nbytes) == 0) {
    return Py_NewRef(kept);
  }
  PyObject* made = PyUnicode_FromStringAndSize(begin, static_cast<Py_ssize_t>(nbytes));
  if (made != nullptr && PyUnicode_IS_ASCII(made)) Py_XSETREF(kept, Py_NewRef(made));
  return made;
}

// Objects under the GIL. Where nothing was made, Python may have an error.
struct PythonBuilder {
  class Value {
   public:
    Value() = default;
    explicit Value(PyObject* made) : made_(nb::steal(made)) {}
    explicit operator bool() const { return made_.is_valid(); }
    PyObject* get() const { return made_.ptr(); }
    nb::object take() { return std::move(made_); }

   private:
    nb::object made_;
  };

  Value null() { return Value(Py_NewRef(Py_None)); }
  Value boolean(bool value) { return Value(PyBool_FromLong(value)); }
  Value integer(int64_t value) { return Value(PyLong_FromLongLong(value)); }
  Value real(double value) { return Value(PyFloat_FromDouble(value)); }
  Value array() { return Value(PyList_New(0)); }
  Value object() { return Value(PyDict_New()); }
  Value key(const char* begin, std::size_t nbytes) { return Value(known_key(begin, nbytes)); }
  bool append(const Value& array, const Value& item) { return PyList_Append(array.get(), item.get()) == 0; }
  bool put(const Value& object, const Value& key, const Value& item) {
    return PyDict_SetItem(object.get(), key.get(), item.get()) == 0;
  }

  // PyUnicode_DecodeUTF8 finds what is no UTF-8: not read here.
  Value text(const char* utf8, std::size_t nbytes, bool high) {
    const auto length = static_cast<Py_ssize_t>(nbytes);
    if (high) {
      PyObject* text = PyUnicode_DecodeUTF8(utf8, length, nullptr);
      if (text == nullptr && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) PyErr_Clear();
      return Value(text);
    }
    PyObject* text = PyUnicode_New(length, 127);
    if (text != nullptr) std::memcpy(PyUnicode_1BYTE_DATA(text), utf8, nbytes);
    return Value(text);
  }
};

// What was read of several records, in two lists.
class Found {
 public:
  void add(std::string_view text) {
    PythonBuilder make;
    PythonBuilder::Value value = rebar::text::JsonRecord(text, scratch_, make).read();
    if (!value && PyErr_Occurred() != nullptr) throw nb::python_error();
    if (!value) unread_.append(values_.size());
    values_.append(value ? value.take() : nb::none());
  }
  nb::tuple lists() const { return nb::make_tuple(values_, unread_); }

 private:
  nb::list values_, unread_;
  std::vector<char> scratch_;
};

nb::tuple parse_records(const nb::list& records) {
  Found found;
  for (std::size_t number = 0; number < records.size(); ++number) {
    const nb::object record = records[number];
    Py_buffer buffer;
    if (PyObject_GetBuffer(record.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw nb::python_error();
    const std::unique_ptr<Py_buffer, decltype(&PyBuffer_Release)> held(&buffer, &PyBuffer_Release);
    found.add({static_cast<const char*>(buffer.buf), static_cast<std::size_t>(buffer.len)});
  }
  return found.lists();
}

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Spans = nb::ndarray<const uint64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;

nb::tuple parse_spans(const Bytes& data, const Spans& spans) {
  Found found;
  for (std::size_t number = 0; number < spans.shape(0); ++number) {
    const uint64_t begin = spans(number, 0), end = spans(number, 1);
    if (begin > end || end > data.size()) throw std::out_of_range("a record lies outside of the data");
    found.add({reinterpret_cast<const char*>(data.data() + begin), end - begin});
  }
  return found.lists();
}

}  // namespace

void bind_json(nb::module_& m) {
  m.def("parse_records", &parse_records, nb::arg("records"),
        nb::sig("def parse_records(records: list[bytes] | list[memoryview] | list[bytes | memoryview]) -> "
                "tuple[list[typing.Any], list[int]]"),
        "What the JSON of each record says, as msgspec has it, and the numbers of those left to it (None in the first "
        "list).");
  m.def(
      "parse_spans", &parse_spans, nb::arg("data"), nb::arg("spans"),
      nb::sig("def parse_spans(data: numpy.typing.NDArray[numpy.uint8], spans: numpy.typing.NDArray[numpy.uint64]) -> "
              "tuple[list[typing.Any], list[int]]"),
      "The same of the records data[begin:end] for each row (begin, end) of spans.");
}
