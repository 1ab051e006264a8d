// build.cpp: from a model file's lists to the mapped tables of vocabulary.h.
#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string_view>
#include <unordered_map>

#include "text/tokenizer.h"
#include "text/unicode.h"
#include "text/vocabulary.h"

namespace rebar::text {
namespace {

using Ids = std::unordered_map<std::string_view, uint32_t>;
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

const uint8_t* bytes_of(std::string_view s) { return reinterpret_cast<const uint8_t*>(s.data()); }

// Open addressing, at most half full, grown until every entry is found within kMaxProbe steps.
template <class Slot, class Key, class Empty>
std::vector<Slot> hashed(const std::vector<Slot>& items, Slot empty, Key hash, Empty is_empty) {
  for (size_t capacity = std::bit_ceil(items.size() * 2 + 8);; capacity *= 2) {
    std::vector<Slot> table(capacity, empty);
    const bool placed = std::all_of(items.begin(), items.end(), [&](const Slot& item) {
      uint64_t i = hash(item);
      for (uint32_t step = 0; step < kMaxProbe; ++step, ++i) {
        Slot& slot = table[i & (capacity - 1)];
        if (!is_empty(slot)) continue;
        slot = item;
        return true;
      }
      return false;
    });
    if (placed) return table;
  }
}

class Builder {
 public:
  explicit Builder(const VocabularySource& source) : s_(source), n_(static_cast<uint32_t>(source.tokens.size())) {
    check();
    choose_split();
    spell();
    for (uint32_t i = 0; i < n_; ++i) ids_[s_.tokens[i]] = i;
  }

  std::vector<uint8_t> run() {
    if (s_.spm)
      spm_tables();
    else
      bpe_tables();
    tree();
    merge_table_ = hashed(
        merges_, Merge{kNone, kNone, kNone, kNone}, [](const Merge& m) { return pair_hash(m.left, m.right); },
        [](const Merge& m) { return m.left == kNone; });
    char_table_ = hashed(
        chars_, CharSlot{kNone, kNone}, [](const CharSlot& c) { return pair_hash(0, c.code); },
        [](const CharSlot& c) { return c.code == kNone; });
    word_table({});
    std::vector<uint8_t> draft = write();
    word_table(whole_words(draft));
    return write();
  }

 private:
  const VocabularySource& s_;
  uint32_t n_;
  Split split_ = Split::kSpm;
  uint32_t flags_ = 0;
  std::vector<std::string> spelled_;  // bytes a token decodes to
  std::vector<bool> literal_;         // bpe: not in the printable-byte alphabet, or a control or user-defined token
  Ids ids_;                           // as the file spells them; the last of equals wins
  std::vector<uint32_t> initial_ = std::vector<uint32_t>(256, kNone);
  std::vector<Merge> merges_, merge_table_;
  std::vector<CharSlot> chars_, char_table_;
  std::vector<WordSlot> word_table_;
  std::vector<uint64_t> pairs_;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  uint32_t longest_word_ = 0;

  TokenType type(uint32_t id) const { return static_cast<TokenType>(s_.types[id]); }
  [[noreturn]] static void fail(const std::string& what) {
    throw VocabularyError("the tokenizer of this model " + what);
  }

  void check() const {
    if (n_ == 0 || s_.tokens.size() > kMaxVocabulary) fail("has " + std::to_string(s_.tokens.size()) + " tokens");
    if (s_.types.size() != n_)
      fail("has " + std::to_string(s_.types.size()) + " types for " + std::to_string(n_) + " tokens");
    if (s_.spm && s_.scores.size() != n_) fail("has no score for every token");
    for (uint32_t i = 0; i < n_; ++i)
      if (s_.types[i] < 1 || s_.types[i] > 6) fail("gives token " + std::to_string(i) + " an unknown type");
    std::vector<uint32_t> special = s_.ends;
    special.insert(special.end(), {s_.bos, s_.eos, s_.unknown, s_.pad});
    for (const uint32_t id : special)
      if (id != kNone && id >= n_) fail("names id " + std::to_string(id) + " of " + std::to_string(n_));
  }

  void choose_split() {
    if (s_.add_bos) flags_ |= kAddBos;
    if (s_.spm) {
      if (s_.add_space_prefix) flags_ |= kAddSpacePrefix;
      return;
    }
    const auto split = split_named(s_.pre);
    if (!split)
      throw UnknownSplitError("the tokenizer of this model wants the pre-tokenizer \"" + s_.pre +
                              "\", which this build does not know; it knows " + split_names());
    split_ = *split;
    if (split_ == Split::kQwen2) flags_ |= kNfc;
    if (split_ == Split::kLlama3) flags_ |= kWholeWords;
  }

  // The GPT-2 alphabet (Radford et al. 2019): printable Latin-1 stands for itself, the other bytes for U+0100 and up.
  static std::vector<int> alphabet() {
    std::vector<int> byte_of(512, -1);
    int next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      byte_of[printable ? b : next++] = b;
    }
    return byte_of;
  }

  static bool spell_bytes(std::string_view token, const std::vector<int>& byte_of, std::string& out) {
    const uint8_t* end = bytes_of(token) + token.size();
    for (const uint8_t* p = bytes_of(token); p < end;) {
      const Point c = read_point(p, end);
      if (c.code >= byte_of.size() || byte_of[c.code] < 0) return false;
      out.push_back(static_cast<char>(byte_of[c.code]));
      p += c.bytes;
    }
    return true;
  }

  static std::string spaced(std::string_view token) {
    std::string out;
    for (size_t i = 0; i < token.size();) {
      const bool mark = token.substr(i, kSpaceMark.size()) == kSpaceMark;
      out.push_back(mark ? ' ' : token[i]);
      i += mark ? kSpaceMark.size() : 1;
    }
    return out;
  }

  // "<0x0A>" -> 10; -1 for anything else.
  static int byte_named(std::string_view token) {
    if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
    const auto digit = [](char c) {
      return c >= '0' && c <= '9'   ? c - '0'
             : c >= 'A' && c <= 'F' ? c - 'A' + 10
             : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                    : -1;
    };
    const int high = digit(token[3]), low = digit(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
  }

  void spell() {
    const std::vector<int> byte_of = alphabet();
    spelled_.resize(n_);
    literal_.assign(n_, false);
    for (uint32_t i = 0; i < n_; ++i) {
      const std::string& token = s_.tokens[i];
      const bool whole =
          type(i) == TokenType::kControl || type(i) == TokenType::kUser || type(i) == TokenType::kUnknown;
      if (s_.spm) {
        const int byte = type(i) == TokenType::kByte ? byte_named(token) : -1;
        spelled_[i] = byte >= 0 ? std::string(1, static_cast<char>(byte)) : spaced(token);
      } else if (whole || !spell_bytes(token, byte_of, spelled_[i])) {
        spelled_[i] = token;
        literal_[i] = true;
      }
    }
  }

  void bpe_tables() {
    for (uint32_t i = 0; i < n_; ++i)
      if (!literal_[i] && spelled_[i].size() == 1 && ids_.at(s_.tokens[i]) == i)
        initial_[static_cast<uint8_t>(spelled_[i][0])] = i;
    for (uint32_t rank = 0; rank < s_.merges.size(); ++rank) {
      const std::string_view line = s_.merges[rank];
      const size_t space = line.find(' ');
      if (space == std::string_view::npos) fail("has a merge that is no pair: \"" + std::string(line) + "\"");
      add_merge(line.substr(0, space), line.substr(space + 1), rank);
    }
    drop_repeats();
  }

  void add_merge(std::string_view left, std::string_view right, uint32_t rank) {
    const std::string whole = std::string(left).append(right);
    const auto a = ids_.find(left), b = ids_.find(right), c = ids_.find(whole);
    if (a == ids_.end() || b == ids_.end() || c == ids_.end())
      fail("merges \"" + std::string(left) + "\" and \"" + std::string(right) +
           "\", which are not all in its vocabulary");
    const auto control = [&](uint32_t id) { return type(id) == TokenType::kControl; };
    if (control(a->second) || control(b->second) || control(c->second)) return;  // text never becomes a control token
    merges_.push_back({a->second, b->second, rank, c->second});
  }

  // A pair that is listed twice counts with its last rank, as in the reference.
  void drop_repeats() {
    std::unordered_map<uint64_t, size_t> place;
    std::vector<Merge> kept;
    for (const Merge& m : merges_) {
      const auto [at, fresh] = place.try_emplace(uint64_t{m.left} << 32 | m.right, kept.size());
      if (fresh)
        kept.push_back(m);
      else
        kept[at->second] = m;
    }
    merges_ = std::move(kept);
  }

  bool all_spaces(uint32_t id) const {
    return !spelled_[id].empty() && spelled_[id].find_first_not_of(' ') == std::string::npos;
  }
  // spm: pieces that merging works with. Runs of spaces are merged, not matched, as in the reference.
  bool mergeable(uint32_t id) const {
    return type(id) == TokenType::kNormal || (type(id) == TokenType::kUser && all_spaces(id));
  }

  void spm_tables() {
    Ids pieces;
    for (uint32_t i = 0; i < n_; ++i) {
      if (type(i) == TokenType::kByte && byte_named(s_.tokens[i]) >= 0) initial_[byte_named(s_.tokens[i])] = i;
      if (mergeable(i) && !spelled_[i].empty()) pieces[spelled_[i]] = i;
    }
    pairs_.assign(kAsciiPairWords + kPairWords, 0);
    for (const auto& [text, id] : pieces) {
      const Point first = read_point(bytes_of(text), bytes_of(text) + text.size());
      if (first.code != kBadPoint && first.bytes == text.size()) chars_.push_back({first.code, id});
    }
    std::sort(chars_.begin(), chars_.end(), [](const CharSlot& a, const CharSlot& b) { return a.code < b.code; });
    for (uint32_t i = 0; i < n_; ++i)
      if (const auto at = pieces.find(spelled_[i]); at != pieces.end() && at->second == i) derive_merges(i, pieces);
    rank_merges();
  }

  // Every way to put piece `id` together from two pieces; rank is the left one's length in characters for now.
  void derive_merges(uint32_t id, const Ids& pieces) {
    const std::string_view text = spelled_[id];
    const uint8_t* end = bytes_of(text) + text.size();
    Point before = read_point(bytes_of(text), end);
    uint32_t chars = 1;
    for (size_t cut = before.bytes; cut < text.size(); ++chars) {
      const Point after = read_point(bytes_of(text) + cut, end);
      const auto left = pieces.find(text.substr(0, cut)), right = pieces.find(text.substr(cut));
      if (left != pieces.end() && right != pieces.end()) merges_.push_back({left->second, right->second, chars, id});
      mark_pair(before.code, after.code);
      cut += after.bytes;
      before = after;
    }
  }

  void mark_pair(uint32_t before, uint32_t after) {
    if ((before | after) < 128) {
      pairs_[before * 2 + after / 64] |= uint64_t{1} << (after % 64);
      return;
    }
    const uint64_t bit = pair_hash(before, after) % (kPairWords * 64);
    pairs_[kAsciiPairWords + bit / 64] |= uint64_t{1} << (bit % 64);
  }

  // User-defined pieces by id, then the others by falling score; for one piece the longest left part first.
  void rank_merges() {
    std::stable_sort(merges_.begin(), merges_.end(), [this](const Merge& a, const Merge& b) {
      const bool user_a = type(a.id) == TokenType::kUser, user_b = type(b.id) == TokenType::kUser;
      if (user_a != user_b) return user_a;
      if (!user_a && s_.scores[a.id] != s_.scores[b.id]) return s_.scores[a.id] > s_.scores[b.id];
      if (a.id != b.id) return a.id < b.id;
      return a.rank > b.rank;
    });
    for (uint32_t i = 0; i < merges_.size(); ++i) merges_[i].rank = i;
  }

  // Tokens that are matched whole before anything else: control and user-defined ones.
  bool matched(uint32_t id) const {
    if (spelled_[id].empty() || ids_.at(s_.tokens[id]) != id) return false;
    if (type(id) == TokenType::kUser) return !(s_.spm && all_spaces(id));
    return type(id) == TokenType::kControl;
  }

  void tree() {
    std::vector<uint32_t> order;
    for (uint32_t i = 0; i < n_; ++i)
      if (matched(i)) order.push_back(i);
    for (const uint32_t id : order)
      if (spelled_[id].size() > kMaxMatchBytes) fail("has a control or user-defined token of more than 255 bytes");
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return spelled_[a] < spelled_[b]; });
    grow_tree(order);
  }

  // Breadth first, so that the edges of a node lie together and children follow parents.
  void grow_tree(const std::vector<uint32_t>& order) {
    struct Span {
      size_t begin, end, depth;
    };
    std::vector<Span> spans{{0, order.size(), 0}};
    for (size_t i = 0; i < spans.size(); ++i) {
      auto [begin, end, depth] = spans[i];
      Node node{static_cast<uint32_t>(edges_.size()), 0, kNone};
      for (; begin < end && spelled_[order[begin]].size() == depth; ++begin) node.token = order[begin];
      while (begin < end) {
        const char byte = spelled_[order[begin]][depth];
        const size_t from = begin;
        while (begin < end && spelled_[order[begin]][depth] == byte) ++begin;
        edges_.push_back({static_cast<uint8_t>(byte), static_cast<uint32_t>(spans.size())});
        spans.push_back({from, begin, depth + 1});
        ++node.edges;
      }
      nodes_.push_back(node);
    }
  }

  // Tokens whose own text merges to just themselves, so that a piece found here needs no merging.
  std::vector<WordSlot> whole_words(const std::vector<uint8_t>& draft) {
    const Tokenizer tokenizer(Vocabulary::open(draft));
    std::vector<WordSlot> words;
    std::vector<uint32_t> out;
    Scratch scratch;
    for (uint32_t i = 0; i < n_; ++i) {
      const bool candidate = s_.spm ? mergeable(i) : type(i) == TokenType::kNormal && !literal_[i];
      if (!candidate || spelled_[i].empty()) continue;
      if (!(flags_ & kWholeWords)) {
        out.clear();
        tokenizer.merge_word(spelled_[i], scratch, out);
        if (out.size() != 1 || out[0] != i) continue;
      } else if (ids_.at(s_.tokens[i]) != i) {
        continue;
      }
      longest_word_ = std::max(longest_word_, static_cast<uint32_t>(spelled_[i].size()));
      words.push_back({static_cast<uint32_t>(word_hash(bytes_of(spelled_[i]), spelled_[i].size()) >> 32), i});
    }
    return words;
  }

  void word_table(const std::vector<WordSlot>& words) {
    word_table_ = hashed(
        words, WordSlot{0, kNone},
        [this](const WordSlot& w) { return word_hash(bytes_of(spelled_[w.id]), spelled_[w.id].size()); },
        [](const WordSlot& w) { return w.id == kNone; });
  }

  template <class T>
  static Section append(std::vector<uint8_t>& blob, const T* items, size_t count) {
    blob.resize((blob.size() + 7) / 8 * 8);
    const Section section{blob.size(), count};
    const auto* bytes = reinterpret_cast<const uint8_t*>(items);
    blob.insert(blob.end(), bytes, bytes + count * sizeof(T));
    return section;
  }
  template <class T>
  static Section append(std::vector<uint8_t>& blob, const T& items) {
    return append(blob, items.data(), items.size());
  }

  std::vector<uint8_t> write() const {
    std::string text;
    std::vector<uint32_t> offsets{0};
    for (const std::string& token : spelled_) {
      text += token;
      if (text.size() >= kNone) fail("holds more than 4 GB of text");
      offsets.push_back(static_cast<uint32_t>(text.size()));
    }
    std::vector<uint8_t> blob(sizeof(Header));
    Header h{};
    std::memcpy(h.magic, kMagic, sizeof kMagic);
    h.version = kVersion, h.header_bytes = sizeof(Header);
    h.vocab = n_, h.split = static_cast<uint32_t>(split_), h.flags = flags_;
    h.bos = s_.bos, h.eos = s_.eos, h.unknown = s_.unknown, h.pad = s_.pad, h.longest_word = longest_word_;
    h.text = append(blob, text), h.offsets = append(blob, offsets), h.types = append(blob, s_.types);
    h.scores = append(blob, s_.scores), h.merges = append(blob, merge_table_), h.initial = append(blob, initial_);
    h.chars = append(blob, char_table_), h.pairs = append(blob, pairs_), h.nodes = append(blob, nodes_);
    h.edges = append(blob, edges_), h.words = append(blob, word_table_), h.ends = append(blob, s_.ends);
    h.pre = append(blob, s_.pre);
    blob.resize((blob.size() + 7) / 8 * 8);
    h.total_bytes = blob.size();
    std::memcpy(blob.data(), &h, sizeof h);
    constexpr size_t kBehind = offsetof(Header, checksum) + sizeof h.checksum;
    h.checksum = checksum(blob.data() + kBehind, blob.size() - kBehind);
    std::memcpy(blob.data(), &h, sizeof h);
    return blob;
  }
};

}  // namespace

std::vector<uint8_t> build(const VocabularySource& source) { return Builder(source).run(); }

}  // namespace rebar::text
