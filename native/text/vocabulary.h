// vocabulary.h: a tokenizer's tables as they stand in a file, position-independent and used where they lie.
//
// The law: build() writes them, Vocabulary::open() checks every count, offset, id and hash capacity once, and from
// then on readers trust them without looking again. Nothing is parsed or copied; the bytes must outlive the view
// and must not change. All numbers are little-endian; sections are 8-byte aligned. A damaged or hostile table is a
// VocabularyError at open, never a read outside of it. Each look-up takes at most kMaxProbe steps.
#pragma once
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "text/pretokenize.h"
#include "text/steps.h"

namespace rebar::text {

constexpr uint32_t kNone = 0xFFFFFFFF;
constexpr uint32_t kMaxVocabulary = 1u << 24;
constexpr uint32_t kMaxMatchBytes = 255;  // longest control or user-defined token: bounds the work per input byte
constexpr uint32_t kMaxProbe = 64;
constexpr uint32_t kAsciiPairWords = 128 * 128 / 64;
constexpr uint32_t kPairWords = (1u << 20) / 64;  // hashed pairs of code points

struct VocabularyError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The model wants a pre-tokenizer that this build does not know.
struct UnknownSplitError : VocabularyError {
  using VocabularyError::VocabularyError;
};

// GGUF's numbers.
enum class TokenType : uint8_t { kNormal = 1, kUnknown = 2, kControl = 3, kUser = 4, kUnused = 5, kByte = 6 };

enum Flags : uint32_t { kAddBos = 1, kAddSpacePrefix = 2, kWholeWords = 4, kNfc = 8 };

struct Merge {  // an empty slot has left == kNone
  uint32_t left, right, rank, id;
};
struct CharSlot {  // an empty slot has code == kNone
  uint32_t code, id;
};
struct WordSlot {  // an empty slot has id == kNone; tag: high half of the word's hash
  uint32_t tag, id;
};
struct Node {  // of the tree of tokens that are matched whole; children follow their parent
  uint32_t first_edge, edges, token;
};
struct Edge {
  uint32_t byte, child;
};
struct Section {
  uint64_t offset, count;  // bytes from the start of the table; elements
};

struct Header {
  char magic[8];  // "RBVOCAB\0"
  uint32_t version, header_bytes;
  uint64_t total_bytes;
  uint64_t checksum;  // of every byte behind this field
  uint32_t vocab, split, flags, bos, eos, unknown, pad, longest_word;
  Section text, offsets, types, scores, merges, initial, chars, pairs, nodes, edges, words, ends, pre;
};
constexpr char kMagic[8] = {'R', 'B', 'V', 'O', 'C', 'A', 'B', 0};
constexpr uint32_t kVersion = 1;

uint64_t checksum(const uint8_t* p, size_t n);

inline uint64_t mix(uint64_t x) {  // finalizer of MurmurHash3 (Appleby, public domain)
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}
inline uint64_t pair_hash(uint32_t left, uint32_t right) {
  const uint64_t x = (uint64_t{left} << 32 | right) * 0x9e3779b97f4a7c15ull;
  return x ^ (x >> 32);
}
uint64_t word_hash(const uint8_t* p, size_t n);

// The tables, checked. Cheap to copy; owns nothing.
class Vocabulary {
 public:
  Vocabulary() = default;
  // Throws VocabularyError. `bytes` must be 8-byte aligned.
  static Vocabulary open(std::span<const uint8_t> bytes);

  uint32_t size() const { return h_->vocab; }
  Split split() const { return static_cast<Split>(h_->split); }
  bool flag(Flags f) const { return (h_->flags & f) != 0; }
  const Header& header() const { return *h_; }
  TokenType type(uint32_t id) const { return static_cast<TokenType>(types_[id]); }
  // Text of a token as bytes: what decoding puts out. Spaces are spaces.
  std::string_view text(uint32_t id) const {
    return {reinterpret_cast<const char*>(text_) + offsets_[id], offsets_[id + 1] - offsets_[id]};
  }
  std::string_view pre() const;
  std::span<const uint32_t> ends() const;
  std::span<const float> scores() const;  // none for byte-level BPE
  std::vector<Merge> merges() const;      // by rank; a new list each time

  const Merge* merge(uint32_t left, uint32_t right) const {
    uint64_t i = pair_hash(left, right);
    for (uint32_t step = 0; step < kMaxProbe; ++step, ++i) {
      count_steps(1);
      const Merge& m = merges_[i & merge_mask_];
      if (m.left == left && m.right == right) return &m;
      if (m.left == kNone) return nullptr;
    }
    return nullptr;
  }
  uint32_t byte_id(uint8_t byte) const { return initial_[byte]; }
  uint32_t char_id(uint32_t code) const;
  // The id of a piece that one token covers and that merging would arrive at; kNone when there is none.
  uint32_t word_id(const uint8_t* p, size_t n) const;
  // False: no merge ever joins text across the border between these two code points.
  bool joinable(uint32_t before, uint32_t after) const {
    if ((before | after) < 128) return pairs_[before * 2 + after / 64] >> (after % 64) & 1;
    const uint64_t bit = pair_hash(before, after) % (kPairWords * 64);
    return pairs_[kAsciiPairWords + bit / 64] >> (bit % 64) & 1;
  }
  const Node& node(uint32_t i) const { return nodes_[i]; }
  uint32_t nodes() const { return static_cast<uint32_t>(h_->nodes.count); }
  uint32_t child(const Node& node, uint8_t byte) const;

 private:
  const Header* h_ = nullptr;
  const uint8_t *text_ = nullptr, *types_ = nullptr;
  const uint32_t *offsets_ = nullptr, *initial_ = nullptr;
  const Merge* merges_ = nullptr;
  const CharSlot* chars_ = nullptr;
  const uint64_t* pairs_ = nullptr;
  const Node* nodes_ = nullptr;
  const Edge* edges_ = nullptr;
  const WordSlot* words_ = nullptr;
  uint64_t merge_mask_ = 0, char_mask_ = 0, word_mask_ = 0;

  template <class T>
  const T* section(std::span<const uint8_t> bytes, const Section& s, const char* name) const;
  void check_tokens() const;
  void check_merges() const;
  void check_lookups() const;
  void check_tree() const;
  bool ordinary(uint32_t id) const;
};

// What a model file says of its tokenizer; see TokenizerData in Python.
struct VocabularySource {
  bool spm = false;
  std::string pre;
  std::vector<std::string> tokens;
  std::vector<uint8_t> types;
  std::vector<float> scores;
  std::vector<std::string> merges;
  uint32_t bos = kNone, eos = kNone, unknown = kNone, pad = kNone;
  std::vector<uint32_t> ends;
  bool add_bos = false, add_space_prefix = false;
};

// The table for `source`. Throws VocabularyError for tables that contradict themselves or an unknown pre-tokenizer.
std::vector<uint8_t> build(const VocabularySource& source);

}  // namespace rebar::text
