// JSON records to Python objects, where they are as most records are.
//
// The law: what is read here is what msgspec reads, to the type and the bit, and everything else is left to it: errors and their
// words, lone surrogates, whole numbers of more than 18 digits, numbers out of range, -0, what lies deeper than kDepth. A record
// is read whole or not at all. The time of records is in their texts: those are gone through 16 bytes at a time.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace nb = nanobind;

namespace {

constexpr int kDepth = 64;
constexpr int kDigits = 18;         // of a whole number that surely fits into 64 bits
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

// Goes on to the first byte that does not stand for itself in a text: a quote, a backslash, a control character. What was gone
// over is copied to `out`, where there is room for all up to `end`. high: whether some of it is not ASCII.
template <bool kCopy>
void plain(const char*& at, const char* end, char*& out, bool& high) {
#if defined(__SSE2__)
  const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\'), control = _mm_set1_epi8(31);
  while (end - at >= 16) {
    const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    if constexpr (kCopy) _mm_storeu_si128(reinterpret_cast<__m128i*>(out), some);
    const __m128i marks = _mm_or_si128(_mm_cmpeq_epi8(some, quote), _mm_cmpeq_epi8(some, slash));
    const __m128i low = _mm_cmpeq_epi8(_mm_min_epu8(some, control), some);
    const auto stop = static_cast<unsigned>(_mm_movemask_epi8(_mm_or_si128(marks, low)));
    const auto wide = static_cast<unsigned>(_mm_movemask_epi8(some));
    const int count = stop == 0 ? 16 : __builtin_ctz(stop);
    high |= (wide & ((1U << count) - 1)) != 0;
    at += count;
    if constexpr (kCopy) out += count;
    if (stop != 0) return;
  }
#endif
  for (; at < end && *at != '"' && *at != '\\' && static_cast<uint8_t>(*at) > 31; ++at) {
    high |= (*at & 0x80) != 0;
    if constexpr (kCopy) *out++ = *at;
  }
}

class Record {
 public:
  // scratch: for texts with escapes, which become shorter by them.
  Record(std::string_view text, std::vector<char>& scratch)
      : at_(text.data()), end_(at_ + text.size()), scratch_(scratch) {}

  // A new reference; nullptr where the record is left to others, or with a Python error.
  PyObject* read() {
    PyObject* value = this->value(0);
    if (value == nullptr) return nullptr;
    white();
    if (at_ == end_) return value;
    Py_DECREF(value);
    return nullptr;
  }

 private:
  void white() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  }

  bool next(char mark) {
    white();
    if (at_ == end_ || *at_ != mark) return false;
    ++at_;
    return true;
  }

  PyObject* value(int depth) {
    white();
    if (at_ == end_ || depth > kDepth) return nullptr;
    switch (*at_) {
      case '{':
        return object(depth);
      case '[':
        return array(depth);
      case '"':
        return text();
      case 't':
        return word("true", Py_True);
      case 'f':
        return word("false", Py_False);
      case 'n':
        return word("null", Py_None);
      default:
        return number();
    }
  }

  PyObject* word(std::string_view said, PyObject* value) {
    if (static_cast<std::size_t>(end_ - at_) < said.size() || std::memcmp(at_, said.data(), said.size()) != 0)
      return nullptr;
    at_ += said.size();
    return Py_NewRef(value);
  }

  PyObject* object(int depth) {
    ++at_;
    nb::object found = nb::steal(PyDict_New());
    if (!found.is_valid() || next('}')) return found.release().ptr();
    do {
      white();
      nb::object key = nb::steal(this->key());
      if (!key.is_valid() || !next(':')) return nullptr;
      nb::object item = nb::steal(value(depth + 1));
      if (!item.is_valid() || PyDict_SetItem(found.ptr(), key.ptr(), item.ptr()) != 0) return nullptr;
    } while (next(','));
    return next('}') ? found.release().ptr() : nullptr;
  }

  PyObject* array(int depth) {
    ++at_;
    nb::object found = nb::steal(PyList_New(0));
    if (!found.is_valid() || next(']')) return found.release().ptr();
    do {
      nb::object item = nb::steal(value(depth + 1));
      if (!item.is_valid() || PyList_Append(found.ptr(), item.ptr()) != 0) return nullptr;
    } while (next(','));
    return next(']') ? found.release().ptr() : nullptr;
  }

  PyObject* key() {
    if (at_ == end_ || *at_ != '"') return nullptr;
    bool high = false;
    const char* end = at_ + 1;
    plain<false>(end, end_, out_, high);
    if (high || end == end_ || *end != '"') return text();
    PyObject* key = known_key(at_ + 1, static_cast<std::size_t>(end - at_ - 1));
    at_ = end + 1;
    return key;
  }

  PyObject* text() {
    bool high = false;
    const char* begin = ++at_;
    plain<false>(at_, end_, out_, high);
    if (at_ < end_ && *at_ == '"') return made(begin, at_++ - begin, high);
    if (const auto room = static_cast<std::size_t>(end_ - begin); scratch_.size() < room) scratch_.resize(room);
    out_ = std::copy(begin, at_, scratch_.data());
    while (at_ < end_ && *at_ == '\\') {
      if (!escape(high)) return nullptr;
      plain<true>(at_, end_, out_, high);
    }
    if (at_ == end_ || *at_ != '"') return nullptr;
    ++at_;
    return made(scratch_.data(), out_ - scratch_.data(), high);
  }

  // PyUnicode_DecodeUTF8 finds what is no UTF-8: not read here.
  static PyObject* made(const char* utf8, Py_ssize_t nbytes, bool high) {
    if (high) {
      PyObject* text = PyUnicode_DecodeUTF8(utf8, nbytes, nullptr);
      if (text == nullptr && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) PyErr_Clear();
      return text;
    }
    PyObject* text = PyUnicode_New(nbytes, 127);
    if (text != nullptr) std::memcpy(PyUnicode_1BYTE_DATA(text), utf8, static_cast<std::size_t>(nbytes));
    return text;
  }

  bool escape(bool& high) {
    if (end_ - at_ < 2) return false;
    const char mark = at_[1];
    at_ += 2;
    switch (mark) {
      case '"':
      case '\\':
      case '/':
        *out_++ = mark;
        return true;
      case 'b':
        *out_++ = '\b';
        return true;
      case 'f':
        *out_++ = '\f';
        return true;
      case 'n':
        *out_++ = '\n';
        return true;
      case 'r':
        *out_++ = '\r';
        return true;
      case 't':
        *out_++ = '\t';
        return true;
      case 'u':
        return character(high);
      default:
        return false;
    }
  }

  // Behind \u: a character, or the first half of one with the second behind it.
  bool character(bool& high) {
    uint32_t code = 0;
    if (!hex(code)) return false;
    if (code >= 0xD800 && code < 0xE000) {
      uint32_t low = 0;
      if (code >= 0xDC00 || end_ - at_ < 2 || at_[0] != '\\' || at_[1] != 'u') return false;
      at_ += 2;
      if (!hex(low) || low < 0xDC00 || low >= 0xE000) return false;
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    high |= code > 127;
    append(code);
    return true;
  }

  bool hex(uint32_t& code) {
    if (end_ - at_ < 4) return false;
    for (int digit = 0; digit < 4; ++digit, ++at_) {
      const char c = *at_;
      const char lower = static_cast<char>(c | 0x20);
      if (c >= '0' && c <= '9')
        code = code * 16 + static_cast<uint32_t>(c - '0');
      else if (lower >= 'a' && lower <= 'f')
        code = code * 16 + static_cast<uint32_t>(lower - 'a' + 10);
      else
        return false;
    }
    return true;
  }

  void append(uint32_t code) {
    const auto byte = [this](uint32_t bits) { *out_++ = static_cast<char>(bits); };
    if (code < 0x80) return byte(code);
    if (code < 0x800) {
      byte(0xC0 | code >> 6);
    } else {
      if (code < 0x10000) {
        byte(0xE0 | code >> 12);
      } else {
        byte(0xF0 | code >> 18);
        byte(0x80 | (code >> 12 & 63));
      }
      byte(0x80 | (code >> 6 & 63));
    }
    byte(0x80 | (code & 63));
  }

  std::size_t digits() {
    const char* begin = at_;
    while (at_ < end_ && *at_ >= '0' && *at_ <= '9') ++at_;
    return static_cast<std::size_t>(at_ - begin);
  }

  // -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?
  PyObject* number() {
    const char* begin = at_;
    const bool minus = *at_ == '-';
    at_ += minus;
    const bool zero = at_ < end_ && *at_ == '0';
    const std::size_t whole = digits();
    if (whole == 0 || (zero && whole > 1)) return nullptr;
    bool real = false;
    if (at_ < end_ && *at_ == '.') {
      real = true;
      ++at_;
      if (digits() == 0) return nullptr;
    }
    if (at_ < end_ && (*at_ | 0x20) == 'e') {
      real = true;
      ++at_;
      if (at_ < end_ && (*at_ == '+' || *at_ == '-')) ++at_;
      if (digits() == 0) return nullptr;
    }
    if (real) {
      double value = 0;
      const auto [end, error] = std::from_chars(begin, at_, value);
      return error == std::errc() && end == at_ ? PyFloat_FromDouble(value) : nullptr;
    }
    if (whole > kDigits || (minus && zero)) return nullptr;
    int64_t value = 0;
    std::from_chars(begin, at_, value);
    return PyLong_FromLongLong(value);
  }

  const char* at_;
  const char* end_;
  std::vector<char>& scratch_;
  char* out_ = nullptr;  // behind what was unpacked of a text
};

// What was read of several records, in two lists.
class Found {
 public:
  void add(std::string_view text) {
    PyObject* value = Record(text, scratch_).read();
    if (value == nullptr && PyErr_Occurred() != nullptr) throw nb::python_error();
    if (value == nullptr) unread_.append(values_.size());
    values_.append(value == nullptr ? nb::none() : nb::steal(value));
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
