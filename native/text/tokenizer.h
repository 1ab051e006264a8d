// tokenizer.h: text <-> ids over a Vocabulary. After construction every method is const and may be called from
// any number of threads; the work grows as the length of the text, whatever the text (tests/test_steps.cpp counts it).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/merge_queue.h"
#include "text/vocabulary.h"

namespace rebar::text {

// Working memory of one call; grows to the longest word met.
struct Scratch {
  struct Symbol {
    uint32_t id, previous, next;  // neighbours by index, kNone at the ends
  };
  std::vector<uint32_t> ids;
  std::vector<Symbol> symbols;
  std::optional<MergeQueue> queue;  // made for the first long word: most texts have none
  std::string text;                 // the stretch as the tables spell it
};

// Byte-pair merging of one word: the lowest rank first, among equals the leftmost (Sennrich et al., arXiv:1508.07909).
// scratch.ids: the starting symbols; what is left of them is appended to out. O(n), see merge_queue.h.
void merge_symbols(const Vocabulary& v, Scratch& scratch, std::vector<uint32_t>& out);

// A stretch of text: ordinary when id == kNone, else the one token it was matched as.
struct Stretch {
  size_t begin, end;
  uint32_t id;
};

class Tokenizer {
 public:
  explicit Tokenizer(Vocabulary vocabulary);

  const Vocabulary& vocabulary() const { return v_; }
  // Tokens matched whole (user-defined ones; control ones too when `special`) and the ordinary text between them.
  // Leftmost first, at one place the longest.
  std::vector<Stretch> stretches(std::string_view text, bool special) const;
  // Ids of a text; any bytes are taken. Without `special` no control id can come out.
  void encode(std::string_view text, bool special, std::vector<uint32_t>& out) const;
  // The same for one ordinary stretch; `first`: nothing stands before it (add_space_prefix).
  void encode_ordinary(std::string_view text, bool first, Scratch& scratch, std::vector<uint32_t>& out) const;
  // Ids of one word by merging alone.
  void merge_word(std::string_view word, Scratch& scratch, std::vector<uint32_t>& out) const;
  // Bytes of the ids, in a row; ids must be below the vocabulary size. skip_special: without control and unknown ones.
  void decode(const uint32_t* ids, size_t n, bool skip_special, std::string& out) const;

 private:
  Vocabulary v_;
  const uint8_t* classes_;
  bool starts_[2][256] = {};  // may a matched token begin with this byte? [special][byte]
  bool matches_[2] = {};      // is there anything to match?
  uint32_t ascii_[128];       // spm: ids of ASCII characters

  void find_starts();
  Stretch match(std::string_view text, size_t at, bool special) const;
  void byte_symbols(const uint8_t* p, size_t n, std::vector<uint32_t>& ids) const;
  void char_symbols(const uint8_t* p, size_t n, std::vector<uint32_t>& ids) const;
  const uint8_t* joined_end(const uint8_t* p, const uint8_t* end) const;
};

}  // namespace rebar::text
