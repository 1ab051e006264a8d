// Tokenizing takes time linear in the length of the text, whatever the text: steps are counted (steps.h), not seconds.
//
// For each hostile text, a million bytes of it: eight times the length takes at most 8.1 times the steps (n log n would
// take 9.4, n^2 64 times), and no byte more steps than a bound. Servers hung on 200,000 times the same letter because
// merges were quadratic or a regular expression went back and forth.
#include <cstdio>
#include <cstdlib>

#include "text/normalize.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

using namespace rebar::text;

namespace {

// The character by which byte-level vocabularies spell a byte (GPT-2's bytes_to_unicode).
std::string spelled(uint8_t byte) {
  const auto plain = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  int code = byte;
  if (!plain(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += plain(b) ? 0 : 1;
  }
  if (code < 128) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

std::string times(const std::string& unit, size_t bytes) {
  std::string text;
  while (text.size() + unit.size() <= bytes) text += unit;
  return text;
}

std::string all_bytes() {
  std::string all;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  return all;
}

// What is repeated. The vocabularies join each unit, then twice, four times ... 64 times it.
const std::vector<std::string> kUnits = {"a",
                                         " ",
                                         "\n",
                                         "the",
                                         "\xC3\xA9",
                                         "\xCC\x81",
                                         "\xCC\x81\xCC\xA3",
                                         "\xF0\x9F\x91\xA8\xE2\x80\x8D",
                                         "a\xD0\xB1\xE6\xBC\xA2",
                                         "<|im_st",
                                         "<",
                                         "'",
                                         "1",
                                         " \n",
                                         "\xE1\x84\x80\xE1\x85\xA1",
                                         all_bytes()};

VocabularySource byte_level(const char* pre) {
  VocabularySource s;
  s.pre = pre;
  for (int b = 0; b < 256; ++b) s.tokens.push_back(spelled(static_cast<uint8_t>(b)));
  const auto join = [&s](const std::string& left, const std::string& right) {
    for (const std::string& merge : s.merges)
      if (merge == left + " " + right) return;
    s.merges.push_back(left + " " + right);
    s.tokens.push_back(left + right);
  };
  for (const std::string& unit : kUnits) {
    if (unit.size() > 16) continue;
    std::string whole = spelled(static_cast<uint8_t>(unit[0]));
    for (size_t i = 1; i < unit.size(); ++i) {
      const std::string next = spelled(static_cast<uint8_t>(unit[i]));
      join(whole, next);
      whole += next;
    }
    for (int i = 0; i < 6; ++i, whole += whole) join(whole, whole);
  }
  s.types.assign(s.tokens.size(), 1);
  for (const char* special : {"<|im_start|>", "<|im_end|>"}) s.tokens.push_back(special), s.types.push_back(3);
  return s;
}

VocabularySource pieces() {
  VocabularySource s;
  s.spm = true, s.unknown = 0;
  s.tokens = {"<unk>"}, s.types = {2};
  for (int b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", b);
    s.tokens.push_back(name), s.types.push_back(6);
  }
  const auto add = [&s](std::string piece) {
    for (size_t at = 0; (at = piece.find(' ', at)) != std::string::npos; at += 3) piece.replace(at, 1, "\xE2\x96\x81");
    for (const std::string& known : s.tokens)
      if (known == piece) return;
    s.tokens.push_back(piece), s.types.push_back(1);
  };
  for (const std::string& unit : kUnits) {
    if (unit.size() > 16) continue;
    const auto* p = reinterpret_cast<const uint8_t*>(unit.data());
    std::string whole;
    for (const uint8_t *at = p, *end = p + unit.size(); at < end;) {
      const Point point = read_point(at, end);
      const std::string next(reinterpret_cast<const char*>(at), point.bytes);
      add(next), add(whole += next);
      at += point.bytes;
    }
    for (int i = 0; i < 6; ++i) add(whole += whole);
  }
  s.tokens.push_back("<|im_start|>"), s.types.push_back(3);
  for (size_t i = 0; i < s.tokens.size(); ++i) s.scores.push_back(-static_cast<float>(i));
  return s;
}

struct Work {
  double encode, decode;
};

Work work_of(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<uint32_t> ids;
  steps = 0;
  tokenizer.encode(text, true, ids);
  const auto encoded = static_cast<double>(steps);
  std::string back;
  steps = 0;
  tokenizer.decode(ids.data(), ids.size(), false, back);
  if (tokenizer.vocabulary().flag(kNfc)) return {encoded, static_cast<double>(steps)};
  if (back != text) std::printf("%zu bytes came back as %zu\n", text.size(), back.size()), std::exit(1);
  return {encoded, static_cast<double>(steps)};
}

// Steps a byte: each symbol is read about twice and offered about twice, and a candidate moves once per bit of a rank,
// of which these vocabularies have 8; 19 were counted at most.
constexpr double kMostPerByte = 24, kGrowth = 8.1;

int check(const char* name, const Tokenizer& tokenizer, const std::string& unit, size_t n) {
  const std::string text = times(unit, 8 * n);
  const Work small = work_of(tokenizer, times(unit, n)), large = work_of(tokenizer, text);
  const double growth = large.encode / small.encode, each = large.encode / static_cast<double>(text.size());
  const bool good = growth < kGrowth && large.decode < kGrowth * small.decode && each < kMostPerByte;
  if (!good || std::getenv("VERBOSE") != nullptr)
    std::printf("%-9s %-12.12s %5.2f times the steps for 8 times the text, %5.1f a byte%s\n", name, unit.c_str(),
                growth, each, good ? "" : "  <-- not linear");
  return good ? 0 : 1;
}

}  // namespace

int main() {
#if defined(__SANITIZE_ADDRESS__)
  constexpr size_t kBytes = 4'096;
#else
  constexpr size_t kBytes = 125'000;  // and a million
#endif
  int wrong = 0, checked = 0;
  for (const char* pre : {"gpt-2", "smollm", "qwen2", "llama-bpe", "pieces"}) {
    const bool spm = std::string_view(pre) == "pieces";
    const std::vector<uint8_t> table = build(spm ? pieces() : byte_level(pre));
    const Tokenizer tokenizer(Vocabulary::open(table));
    for (const std::string& unit : kUnits) wrong += check(pre, tokenizer, unit, kBytes), ++checked;
    std::string word = "x";  // one giant word that hardly merges
    for (int i = 0; i < 997; ++i) word.push_back(static_cast<char>('a' + i * i % 26));
    wrong += check(pre, tokenizer, word, kBytes), ++checked;
  }
  std::printf("%d texts, %d not linear\n", checked, wrong);
  return wrong == 0 ? 0 : 1;
}
