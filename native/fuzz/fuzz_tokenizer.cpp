// Fuzz target for vocabularies and tokenizers (libFuzzer).
//
// The first byte chooses: a damaged table (edits to a good one, its checksum put right again, so that the checks behind
// the checksum are reached), lists that contradict each other, or any bytes as text for a good table. Whatever the
// input, the answer is ids inside the vocabulary, without control tokens when none were asked for, or a
// VocabularyError.
#include <cstring>
#include <iterator>

#include "text/tokenizer.h"

using namespace rebar::text;

namespace {

[[noreturn]] void wrong() { __builtin_trap(); }

struct Input {
  const uint8_t* p;
  const uint8_t* end;

  uint32_t number(int bytes) {
    uint32_t x = 0;
    for (int i = 0; i < bytes && p < end; ++i) x = x << 8 | *p++;
    return x;
  }
  std::string text(size_t n) {
    n = std::min(n, static_cast<size_t>(end - p));
    std::string s(reinterpret_cast<const char*>(p), n);
    p += n;
    return s;
  }
};

std::string printable(int byte) {  // GPT-2's character for a byte, good enough for ASCII and a few more
  const bool plain = byte >= 33 && byte <= 126;
  if (plain) return std::string(1, static_cast<char>(byte));
  const int code = 256 + (byte < 33 ? byte : byte - 94);
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

VocabularySource bytes_source(const char* pre) {
  VocabularySource s;
  s.pre = pre;
  for (int b = 0; b < 33 + 94; ++b) s.tokens.push_back(printable(b));
  s.types.assign(s.tokens.size(), 1);
  for (const char* merge : {"a b", "ab c", "b c", "e e", "ee ee", "\xC4\xA0 a"}) {
    s.merges.push_back(merge);
    std::string whole(merge);
    whole.erase(whole.find(' '), 1);
    s.tokens.push_back(whole);
    s.types.push_back(1);
  }
  for (const char* special : {"<|end|>", "<|", "<tool>", "<too"}) {
    s.tokens.push_back(special);
    s.types.push_back(special[1] == '|' ? 3 : 4);
  }
  s.bos = s.eos = static_cast<uint32_t>(s.tokens.size() - 4);
  s.ends = {s.eos};
  return s;
}

VocabularySource pieces_source() {
  VocabularySource s;
  s.spm = true, s.add_space_prefix = true, s.unknown = 0, s.bos = 1;
  s.tokens = {"<unk>", "<s>", "\n\n", "  ", "   "};
  s.types = {2, 3, 4, 4, 4};
  for (int b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", b);
    s.tokens.push_back(name);
    s.types.push_back(6);
  }
  for (const char* piece : {"\xE2\x96\x81", "a", "b",
                            "\xE2\x96\x81"
                            "a",
                            "ab", "aba", "ba", "\xC3\xA9", "\xC3\xA9\xC3\xA9"}) {
    s.tokens.push_back(piece);
    s.types.push_back(1);
  }
  for (size_t i = 0; i < s.tokens.size(); ++i) s.scores.push_back(-static_cast<float>(i));
  return s;
}

const std::vector<uint8_t>& good(uint32_t which) {
  static const std::vector<uint8_t> tables[] = {build(bytes_source("gpt-2")), build(bytes_source("smollm")),
                                                build(bytes_source("qwen2")), build(bytes_source("llama-bpe")),
                                                build(pieces_source())};
  return tables[which % std::size(tables)];
}

void check(const std::vector<uint8_t>& table, const std::string& text) {
  const Tokenizer tokenizer(Vocabulary::open(table));
  const Vocabulary& v = tokenizer.vocabulary();
  for (const bool special : {false, true}) {
    std::vector<uint32_t> ids;
    tokenizer.encode(text, special, ids);
    for (const uint32_t id : ids) {
      if (id >= v.size()) wrong();
      if (!special && v.type(id) == TokenType::kControl && id != v.header().unknown) wrong();
    }
    std::string back;
    tokenizer.decode(ids.data(), ids.size(), false, back);
  }
}

void damaged(Input in) {
  std::vector<uint8_t> table = good(in.number(1));
  for (uint32_t edits = in.number(1) % 16; edits > 0; --edits) {
    const uint32_t at = in.number(3) % static_cast<uint32_t>(table.size()), size = in.number(1) % 9;
    for (uint32_t i = 0; i < size && at + i < table.size(); ++i) table[at + i] = static_cast<uint8_t>(in.number(1));
  }
  if (in.number(1) % 8 == 0) table.resize(table.size() - std::min<size_t>(table.size(), in.number(2)));
  if (table.size() >= sizeof(Header)) {
    auto* h = reinterpret_cast<Header*>(table.data());
    h->total_bytes = table.size();
    constexpr size_t kBehind = offsetof(Header, checksum) + sizeof h->checksum;
    h->checksum = checksum(table.data() + kBehind, table.size() - kBehind);
  }
  check(table, in.text(4096));
}

void contradicting(Input in) {
  VocabularySource s;
  s.spm = in.number(1) & 1;
  s.add_space_prefix = in.number(1) & 1;
  s.pre = "qwen2";
  for (uint32_t n = in.number(1); n > 0; --n) {
    s.tokens.push_back(in.text(in.number(1) % 8));
    s.types.push_back(static_cast<uint8_t>(in.number(1) % 8));
    s.scores.push_back(static_cast<float>(static_cast<int8_t>(in.number(1))));
  }
  for (uint32_t n = in.number(1) % 32; n > 0; --n) s.merges.push_back(in.text(in.number(1) % 12));
  s.unknown = in.number(1) & 1 ? in.number(1) : kNone;
  check(build(s), in.text(4096));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in{data, data + size};
  try {
    switch (in.number(1) % 3) {
      case 0:
        damaged(in);
        break;
      case 1:
        contradicting(in);
        break;
      default: {
        const uint32_t which = in.number(1);
        check(good(which), in.text(size));
      }
    }
  } catch (const VocabularyError&) {
  }
  return 0;
}
