#include "text/pretokenize.h"

#include <iterator>

#include "text/unicode.h"

namespace rebar::text {
namespace {

struct Name {
  std::string_view name;
  Split split;
};
constexpr Name kNames[] = {
    {"gpt-2", Split::kGpt2}, {"smollm", Split::kSmollm}, {"qwen2", Split::kQwen2}, {"llama-bpe", Split::kLlama3}};

// A place in the text and the character there; `bits` and `code` are those of nothing at the end.
struct Cursor {
  const uint8_t* p;
  const uint8_t* end;
  const uint8_t* classes;
  uint32_t code = kBadPoint;
  uint32_t bytes = 0;
  uint8_t bits = 0;

  Cursor(const uint8_t* at, const uint8_t* stop, const uint8_t* table) : p(at), end(stop), classes(table) { read(); }
  bool done() const { return p == end; }
  bool is(uint8_t mask) const { return (bits & mask) != 0; }
  bool newline() const { return code == '\n' || code == '\r'; }
  // [^\s\p{L}\p{N}]
  bool symbol() const { return !done() && !is(kLetter | kNumber | kSpace); }
  void next() {
    p += bytes;
    read();
  }
  void run(uint8_t mask) {
    while (is(mask)) next();
  }

 private:
  void read() {
    if (p == end) {
      code = kBadPoint, bytes = 0, bits = 0;
      return;
    }
    const Point point = read_point(p, end);
    code = point.code, bytes = point.bytes, bits = classes[code];
  }
};

// 's 't 're 've 'm 'll 'd at an apostrophe, or nullptr. any_case: letters in any case, and U+017F, which folds to s.
const uint8_t* contraction(const Cursor& at, bool any_case) {
  const uint8_t* p = at.p + 1;
  const auto letter = [&](const uint8_t* q) -> int {
    if (q >= at.end) return 0;
    return any_case && *q >= 'A' && *q <= 'Z' ? *q + 32 : *q;
  };
  const int a = letter(p), b = letter(p + 1);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 1;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return p + 2;
  if (any_case && a == 0xC5 && b == 0xBF) return p + 2;
  return nullptr;
}

// \s+(?!\S)|\s+ : a run of spaces keeps its last one for the word behind it. `stop(c)`: the text ends before c.
template <class Stop>
const uint8_t* spaces(Cursor c, Stop stop) {
  const uint8_t* last = c.p;
  const uint8_t* first = c.p;
  while (c.is(kSpace)) {
    last = c.p;
    c.next();
  }
  return c.done() || stop(c) || last == first ? c.p : last;
}

// '(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ ; digits: Digits(individual) before it.
const uint8_t* gpt2(Cursor c, bool digits) {
  const auto cut = [digits](const Cursor& x) { return digits && x.is(kDigit); };
  if (cut(c)) return c.p + c.bytes;
  if (c.code == '\'')
    if (const uint8_t* end = contraction(c, false)) return end;
  Cursor word = c;
  if (c.code == ' ') word.next();
  if (!cut(word)) {
    if (word.is(kLetter | kNumber)) {
      const uint8_t kind = word.bits & (kLetter | kNumber);
      while (word.is(kind) && !cut(word)) word.next();
      return word.p;
    }
    if (word.symbol()) {
      while (word.symbol() && !cut(word)) word.next();
      return word.p;
    }
  }
  return spaces(c, cut);
}

// \s*[\r\n]+ : through the last line end of a run of spaces, or nullptr when it has none.
const uint8_t* lines(Cursor c) {
  const uint8_t* end = nullptr;
  while (c.is(kSpace)) {
    if (c.newline()) end = c.p + c.bytes;
    c.next();
  }
  return end;
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,numbers}| ?[^\s\p{L}\p{N}]+[\r\n]*
// |\s*[\r\n]+|\s+(?!\S)|\s+
const uint8_t* llama3(Cursor c, int numbers) {
  if (c.code == '\'')
    if (const uint8_t* end = contraction(c, true)) return end;
  Cursor word = c;
  if (!c.newline() && !c.is(kLetter | kNumber)) word.next();
  if (word.is(kLetter)) {
    word.run(kLetter);
    return word.p;
  }
  if (c.is(kNumber)) {
    for (int i = 0; i < numbers && c.is(kNumber); ++i) c.next();
    return c.p;
  }
  Cursor symbols = c;
  if (c.code == ' ') symbols.next();
  if (symbols.symbol()) {
    while (symbols.symbol()) symbols.next();
    while (symbols.newline()) symbols.next();
    return symbols.p;
  }
  if (const uint8_t* end = lines(c)) return end;
  return spaces(c, [](const Cursor&) { return false; });
}

}  // namespace

std::optional<Split> split_named(std::string_view name) {
  for (const Name& n : kNames)
    if (n.name == name) return n.split;
  return std::nullopt;
}

std::string split_names() {
  std::string all;
  for (const Name& n : kNames) all.append(all.empty() ? "" : ", ").append(n.name);
  return all;
}

const uint8_t* piece_end(Split split, const uint8_t* p, const uint8_t* end, const uint8_t* classes) {
  const Cursor c(p, end, classes);
  switch (split) {
    case Split::kSmollm:
      return gpt2(c, true);
    case Split::kQwen2:
      return llama3(c, 1);
    case Split::kLlama3:
      return llama3(c, 3);
    default:
      return gpt2(c, false);
  }
}

}  // namespace rebar::text
