#include "text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "text/unicode.h"

namespace rebar::text {

static_assert(std::endian::native == std::endian::little, "the tables are little-endian");
static_assert(sizeof(Header) == 64 + 13 * sizeof(Section));

namespace {

uint64_t load(const uint8_t* p, size_t n) {
  uint64_t x = 0;
  std::memcpy(&x, p, n);
  return x;
}

void need(bool holds, const char* what) {
  if (!holds) throw VocabularyError(std::string("the vocabulary table is damaged: ") + what);
}

bool power_of_two(uint64_t n) { return std::has_single_bit(n); }

bool well_formed(std::string_view text) {
  const auto* p = reinterpret_cast<const uint8_t*>(text.data());
  for (const uint8_t* end = p + text.size(); p < end;) {
    const Point point = read_point(p, end);
    if (point.code == kBadPoint) return false;
    p += point.bytes;
  }
  return true;
}

}  // namespace

// Four lanes so that the multiplications overlap: about 10 GB/s, a 20 MB table in 2 ms.
uint64_t checksum(const uint8_t* p, size_t n) {
  uint64_t lane[4] = {n, 1, 2, 3};
  constexpr uint64_t kOdd = 0x9fb21c651e98df25ull;
  for (; n >= 32; p += 32, n -= 32)
    for (int i = 0; i < 4; ++i) lane[i] = std::rotl((lane[i] ^ load(p + 8 * i, 8)) * kOdd, 29);
  for (; n > 0; p += std::min<size_t>(n, 8), n -= std::min<size_t>(n, 8))
    lane[0] = std::rotl((lane[0] ^ load(p, std::min<size_t>(n, 8))) * kOdd, 29);
  return mix(lane[0] ^ mix(lane[1] ^ mix(lane[2] ^ mix(lane[3]))));
}

uint64_t word_hash(const uint8_t* p, size_t n) {
  uint64_t h = n * 0x9e3779b97f4a7c15ull;
  for (; n > 8; p += 8, n -= 8) h = std::rotl((h ^ load(p, 8)) * 0x9fb21c651e98df25ull, 29);
  return mix(h ^ load(p, n));
}

template <class T>
const T* Vocabulary::section(std::span<const uint8_t> bytes, const Section& s, const char* name) const {
  need(s.offset % 8 == 0 && s.offset >= sizeof(Header) && s.offset <= bytes.size(), name);
  need(s.count <= (bytes.size() - s.offset) / sizeof(T), name);
  return reinterpret_cast<const T*>(bytes.data() + s.offset);
}

Vocabulary Vocabulary::open(std::span<const uint8_t> bytes) {
  need(reinterpret_cast<uintptr_t>(bytes.data()) % 8 == 0, "it does not begin at a multiple of 8 bytes");
  need(bytes.size() >= sizeof(Header), "it is shorter than its header");
  Vocabulary v;
  const Header& h = *(v.h_ = reinterpret_cast<const Header*>(bytes.data()));
  need(std::memcmp(h.magic, kMagic, sizeof kMagic) == 0, "it does not begin with RBVOCAB");
  if (h.version != kVersion)
    throw VocabularyError("the vocabulary table has version " + std::to_string(h.version) + ", this build reads " +
                          std::to_string(kVersion));
  need(h.header_bytes == sizeof(Header) && h.total_bytes == bytes.size(), "its length is not what it says");
  constexpr size_t kBehind = offsetof(Header, checksum) + sizeof h.checksum;
  need(checksum(bytes.data() + kBehind, bytes.size() - kBehind) == h.checksum, "its checksum is wrong");
  v.text_ = v.section<uint8_t>(bytes, h.text, "text");
  v.offsets_ = v.section<uint32_t>(bytes, h.offsets, "offsets");
  v.types_ = v.section<uint8_t>(bytes, h.types, "types");
  v.section<float>(bytes, h.scores, "scores");
  v.merges_ = v.section<Merge>(bytes, h.merges, "merges");
  v.initial_ = v.section<uint32_t>(bytes, h.initial, "initial");
  v.chars_ = v.section<CharSlot>(bytes, h.chars, "chars");
  v.pairs_ = v.section<uint64_t>(bytes, h.pairs, "pairs");
  v.nodes_ = v.section<Node>(bytes, h.nodes, "nodes");
  v.edges_ = v.section<Edge>(bytes, h.edges, "edges");
  v.words_ = v.section<WordSlot>(bytes, h.words, "words");
  v.section<uint32_t>(bytes, h.ends, "ends");
  v.section<char>(bytes, h.pre, "pre");
  v.check_tokens();
  v.merge_mask_ = h.merges.count - 1, v.char_mask_ = h.chars.count - 1, v.word_mask_ = h.words.count - 1;
  v.check_merges();
  v.check_lookups();
  v.check_tree();
  return v;
}

void Vocabulary::check_tokens() const {
  const Header& h = *h_;
  need(h.vocab >= 1 && h.vocab <= kMaxVocabulary, "vocabulary size");
  need(h.offsets.count == uint64_t{h.vocab} + 1 && h.types.count == h.vocab, "token counts");
  need(h.scores.count == 0 || h.scores.count == h.vocab, "score count");
  need(h.split <= static_cast<uint32_t>(Split::kLlama3), "pre-tokenizer");
  for (uint32_t i = 0; i < h.vocab; ++i) {
    need(offsets_[i] <= offsets_[i + 1], "token offsets");
    need(types_[i] >= 1 && types_[i] <= 6, "token types");
  }
  need(offsets_[h.vocab] <= h.text.count, "token text");
  for (const uint32_t id : {h.bos, h.eos, h.unknown, h.pad}) need(id == kNone || id < h.vocab, "special ids");
  for (const uint32_t id : ends()) need(id < h.vocab, "end ids");
  need(well_formed(pre()), "the pre-tokenizer's name");
}

// Ids that text may turn into without anybody asking for control tokens.
bool Vocabulary::ordinary(uint32_t id) const { return id < h_->vocab && type(id) != TokenType::kControl; }

void Vocabulary::check_merges() const {
  need(power_of_two(h_->merges.count), "merge table size");
  for (uint64_t i = 0; i < h_->merges.count; ++i) {
    const Merge& m = merges_[i];
    need(m.left == kNone || (ordinary(m.left) && ordinary(m.right) && ordinary(m.id)), "merge ids");
  }
}

void Vocabulary::check_lookups() const {
  const Header& h = *h_;
  need(h.initial.count == 256, "byte table size");
  for (int i = 0; i < 256; ++i) need(initial_[i] == kNone || ordinary(initial_[i]), "byte ids");
  need(power_of_two(h.chars.count) && power_of_two(h.words.count), "look-up table size");
  for (uint64_t i = 0; i < h.chars.count; ++i) need(chars_[i].code == kNone || ordinary(chars_[i].id), "character ids");
  for (uint64_t i = 0; i < h.words.count; ++i) need(words_[i].id == kNone || ordinary(words_[i].id), "word ids");
  need(h.pairs.count == (split() == Split::kSpm ? kAsciiPairWords + kPairWords : 0), "pair table size");
}

void Vocabulary::check_tree() const {
  const Header& h = *h_;
  need(h.nodes.count >= 1 && h.nodes.count <= uint64_t{kMaxVocabulary} * 16, "tree size");
  std::vector<uint8_t> depth(h.nodes.count, 0);
  for (uint32_t i = 0; i < h.nodes.count; ++i) {
    const Node& n = nodes_[i];
    need(n.token == kNone || n.token < h.vocab, "tree tokens");
    need(n.first_edge <= h.edges.count && n.edges <= h.edges.count - n.first_edge && n.edges <= 256, "tree edges");
    for (uint32_t e = n.first_edge; e < n.first_edge + n.edges; ++e) {
      need(edges_[e].byte < 256 && edges_[e].child > i && edges_[e].child < h.nodes.count, "tree children");
      need(depth[i] < kMaxMatchBytes, "tree depth");
      depth[edges_[e].child] = std::max<uint8_t>(depth[edges_[e].child], depth[i] + 1);
    }
  }
}

std::string_view Vocabulary::pre() const {
  return {reinterpret_cast<const char*>(h_) + h_->pre.offset, static_cast<size_t>(h_->pre.count)};
}

std::span<const uint32_t> Vocabulary::ends() const {
  const auto* base = reinterpret_cast<const uint8_t*>(h_) + h_->ends.offset;
  return {reinterpret_cast<const uint32_t*>(base), static_cast<size_t>(h_->ends.count)};
}

std::span<const float> Vocabulary::scores() const {
  const auto* base = reinterpret_cast<const uint8_t*>(h_) + h_->scores.offset;
  return {reinterpret_cast<const float*>(base), static_cast<size_t>(h_->scores.count)};
}

std::vector<Merge> Vocabulary::merges() const {
  std::vector<Merge> all;
  for (uint64_t i = 0; i < h_->merges.count; ++i)
    if (merges_[i].left != kNone) all.push_back(merges_[i]);
  std::sort(all.begin(), all.end(), [](const Merge& a, const Merge& b) { return a.rank < b.rank; });
  return all;
}

uint32_t Vocabulary::char_id(uint32_t code) const {
  uint64_t i = pair_hash(0, code);
  for (uint32_t step = 0; step < kMaxProbe; ++step, ++i) {
    count_steps(1);
    const CharSlot& slot = chars_[i & char_mask_];
    if (slot.code == code) return slot.id;
    if (slot.code == kNone) break;
  }
  return kNone;
}

uint32_t Vocabulary::word_id(const uint8_t* p, size_t n) const {
  if (n > h_->longest_word) return kNone;
  count_steps(n);
  const uint64_t hash = word_hash(p, n);
  uint64_t i = hash;
  for (uint32_t step = 0; step < kMaxProbe; ++step, ++i) {
    const WordSlot& slot = words_[i & word_mask_];
    if (slot.id == kNone) break;
    count_steps(1);
    if (slot.tag != hash >> 32) continue;
    const std::string_view word = text(slot.id);
    if (word.size() == n && std::memcmp(word.data(), p, n) == 0) return slot.id;
  }
  return kNone;
}

uint32_t Vocabulary::child(const Node& node, uint8_t byte) const {
  for (uint32_t e = node.first_edge; e < node.first_edge + node.edges; ++e)
    if (count_steps(1); edges_[e].byte == byte) return edges_[e].child;
  return kNone;
}

}  // namespace rebar::text
