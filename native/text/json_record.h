// json_record.h: one JSON record as most records are, read into whatever a builder makes of its values.
//
// The law: what is read here is what msgspec reads, to the type and the bit, and everything else is left to it: errors and their
// words, lone surrogates, whole numbers of more than 18 digits, numbers out of range, -0, what lies deeper than kJsonDepth. A
// record is read whole or not at all. The time of records is in their texts: those are gone through 16 bytes at a time.
//
// A Builder has a type Value, movable, that is false where nothing could be made, and makes values: null(), boolean(bool),
// integer(int64_t), real(double), text(utf8, nbytes, high), key(utf8, nbytes) (of ASCII), array(), object(), append(array, item),
// put(object, key, item). high: whether some of the text is not ASCII; whether that is UTF-8 is the builder's to find.
#pragma once
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace rebar::text {

constexpr int kJsonDepth = 64;
constexpr int kJsonDigits = 18;  // of a whole number that surely fits into 64 bits

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

template <class Builder>
class JsonRecord {
 public:
  using Value = typename Builder::Value;

  // scratch: for texts with escapes, which become shorter by them.
  JsonRecord(std::string_view text, std::vector<char>& scratch, Builder& make)
      : at_(text.data()), end_(at_ + text.size()), scratch_(scratch), make_(make) {}

  // False where the record is left to others.
  Value read() {
    Value value = this->value(0);
    white();
    return value && at_ == end_ ? std::move(value) : Value();
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

  Value value(int depth) {
    white();
    if (at_ == end_ || depth > kJsonDepth) return {};
    switch (*at_) {
      case '{':
        return object(depth);
      case '[':
        return array(depth);
      case '"':
        return text();
      case 't':
        return word("true") ? make_.boolean(true) : Value();
      case 'f':
        return word("false") ? make_.boolean(false) : Value();
      case 'n':
        return word("null") ? make_.null() : Value();
      default:
        return number();
    }
  }

  bool word(std::string_view said) {
    if (static_cast<std::size_t>(end_ - at_) < said.size() || std::memcmp(at_, said.data(), said.size()) != 0)
      return false;
    at_ += said.size();
    return true;
  }

  Value object(int depth) {
    ++at_;
    Value found = make_.object();
    if (!found || next('}')) return found;
    do {
      white();
      Value key = this->key();
      if (!key || !next(':')) return {};
      Value item = value(depth + 1);
      if (!item || !make_.put(found, key, item)) return {};
    } while (next(','));
    return next('}') ? std::move(found) : Value();
  }

  Value array(int depth) {
    ++at_;
    Value found = make_.array();
    if (!found || next(']')) return found;
    do {
      Value item = value(depth + 1);
      if (!item || !make_.append(found, item)) return {};
    } while (next(','));
    return next(']') ? std::move(found) : Value();
  }

  Value key() {
    if (at_ == end_ || *at_ != '"') return {};
    bool high = false;
    const char* end = at_ + 1;
    plain<false>(end, end_, out_, high);
    if (high || end == end_ || *end != '"') return text();
    Value key = make_.key(at_ + 1, static_cast<std::size_t>(end - at_ - 1));
    at_ = end + 1;
    return key;
  }

  Value text() {
    bool high = false;
    const char* begin = ++at_;
    plain<false>(at_, end_, out_, high);
    if (at_ < end_ && *at_ == '"') return make_.text(begin, static_cast<std::size_t>(at_++ - begin), high);
    if (const auto room = static_cast<std::size_t>(end_ - begin); scratch_.size() < room) scratch_.resize(room);
    out_ = std::copy(begin, at_, scratch_.data());
    while (at_ < end_ && *at_ == '\\') {
      if (!escape(high)) return {};
      plain<true>(at_, end_, out_, high);
    }
    if (at_ == end_ || *at_ != '"') return {};
    ++at_;
    return make_.text(scratch_.data(), static_cast<std::size_t>(out_ - scratch_.data()), high);
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
  Value number() {
    const char* begin = at_;
    const bool minus = *at_ == '-';
    at_ += minus;
    const bool zero = at_ < end_ && *at_ == '0';
    const std::size_t whole = digits();
    if (whole == 0 || (zero && whole > 1)) return {};
    bool real = false;
    if (at_ < end_ && *at_ == '.') {
      real = true;
      ++at_;
      if (digits() == 0) return {};
    }
    if (at_ < end_ && (*at_ | 0x20) == 'e') {
      real = true;
      ++at_;
      if (at_ < end_ && (*at_ == '+' || *at_ == '-')) ++at_;
      if (digits() == 0) return {};
    }
    if (real) {
      double value = 0;
      const auto [end, error] = std::from_chars(begin, at_, value);
      return error == std::errc() && end == at_ ? make_.real(value) : Value();
    }
    if (whole > kJsonDigits || (minus && zero)) return {};
    int64_t value = 0;
    std::from_chars(begin, at_, value);
    return make_.integer(value);
  }

  const char* at_;
  const char* end_;
  std::vector<char>& scratch_;
  Builder& make_;
  char* out_ = nullptr;  // behind what was unpacked of a text
};

}  // namespace rebar::text
