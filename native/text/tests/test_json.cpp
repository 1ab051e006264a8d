// JSON records under the sanitizers: what is read and what is left to others, and the fuzz target over random pieces of JSON, whole,
// cut at any byte and with a byte changed. That what is read is what msgspec reads is decided in tests/dataflow/data/test_parse.py.
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>

#include "text/tests/random.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

Random chance;

constexpr const char* kPieces[] = {"{",
                                   "}",
                                   "[",
                                   "]",
                                   ",",
                                   ":",
                                   " ",
                                   "\t",
                                   "\n",
                                   "\r",
                                   "\"",
                                   "\\",
                                   "\"a\":",
                                   "\"\"",
                                   "\"key\"",
                                   "null",
                                   "true",
                                   "false",
                                   "0",
                                   "-1",
                                   "-0",
                                   "01",
                                   "1.5",
                                   "1e9",
                                   "-2.5E-3",
                                   "1e999",
                                   "123456789012345678",
                                   "1234567890123456789",
                                   "\"\\u00e9\"",
                                   "\"\\ud83d\\ude00\"",
                                   "\"\\ud83d\"",
                                   "\"\\n\\t\\\"\\\\\"",
                                   "\"\xC3\xA9\xE2\x82\xAC\"",
                                   "\"\xFF\"",
                                   "\"sixteen bytes or more of plain text, to go the fast way\"",
                                   "\"sixteen bytes or more, and then \\u0041n escape\"",
                                   "{\"role\": \"user\", \"content\": \"Hello\"}",
                                   "[1,2,3]"};

std::string value(int depth) {
  const uint64_t kind = chance.below(depth > 5 ? 4 : 6);
  if (kind < 4) return kPieces[13 + chance.below(std::size(kPieces) - 13)];
  std::string out = kind == 4 ? "[" : "{";
  const uint64_t count = chance.below(5);
  for (uint64_t i = 0; i < count; ++i) {
    out += i ? ", " : "";
    if (kind == 5) out += i % 2 ? "\"k\": " : "\"a longer key than is kept from one record to the next\":";
    out += value(depth + 1);
  }
  return out + (kind == 4 ? "]" : "}");
}

void read(const std::string& text) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

}  // namespace

int main() {
  int count = 0;
  for (int run = 0; run < 2'000; ++run) {
    std::string text = value(0);
    if (run % 4 == 0) {
      text.clear();
      for (uint64_t n = chance.below(12); n > 0; --n) text += kPieces[chance.below(std::size(kPieces))];
    }
    read(text);
    if (text.empty()) continue;
    read(text.substr(0, chance.below(text.size())));
    text[chance.below(text.size())] = static_cast<char>(chance.below(256));
    read(text);
    count += 3;
  }
  for (int depth : {63, 64, 65, 66, 100'000}) read(std::string(depth, '[') + std::string(depth, ']'));
  std::printf("%d records\n", count);
  return 0;
}
