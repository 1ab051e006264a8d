#include "text/tokenizer.h"

#include <algorithm>
#include <cstring>

#include "text/normalize.h"
#include "text/unicode.h"

namespace rebar::text {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, SentencePiece's way to write a space

const uint8_t* bytes_of(std::string_view text) { return reinterpret_cast<const uint8_t*>(text.data()); }

// `text` with every U+2581 as a space, which is how the tables spell it; the text itself when there is none.
std::string_view spaced(std::string_view text, bool prefix, std::string& store) {
  size_t at = text.find(kSpaceMark);
  if (at == std::string_view::npos && !prefix) return text;
  count_steps(text.size());
  store.assign(prefix ? 1 : 0, ' ');
  size_t from = 0;
  for (; at != std::string_view::npos; at = text.find(kSpaceMark, from)) {
    store.append(text, from, at - from).push_back(' ');
    from = at + kSpaceMark.size();
  }
  store.append(text, from);
  return store;
}

}  // namespace

Tokenizer::Tokenizer(Vocabulary vocabulary) : v_(vocabulary), classes_(class_table()) {
  find_starts();
  for (uint32_t c = 0; c < 128; ++c) ascii_[c] = v_.char_id(c);
}

void Tokenizer::find_starts() {
  std::vector<bool> user(v_.nodes());  // is a token that is matched without `special` in this subtree?
  for (uint32_t i = v_.nodes(); i-- > 0;) {
    const Node& node = v_.node(i);
    user[i] = node.token != kNone && v_.type(node.token) != TokenType::kControl;
    for (int byte = 0; byte < 256 && node.edges > 0; ++byte) {
      const uint32_t child = v_.child(node, static_cast<uint8_t>(byte));
      if (child == kNone) continue;
      if (user[child]) user[i] = true;
      if (i != 0) continue;
      starts_[1][byte] = matches_[1] = true;
      if (user[child]) starts_[0][byte] = matches_[0] = true;
    }
  }
}

Stretch Tokenizer::match(std::string_view text, size_t at, bool special) const {
  Stretch found{at, at, kNone};
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    node = v_.child(v_.node(node), static_cast<uint8_t>(text[i]));
    if (node == kNone) break;
    const uint32_t token = v_.node(node).token;
    if (token != kNone && (special || v_.type(token) != TokenType::kControl)) found = {at, i + 1, token};
  }
  return found;
}

std::vector<Stretch> Tokenizer::stretches(std::string_view text, bool special) const {
  std::vector<Stretch> all;
  size_t begin = 0;
  for (size_t at = 0; matches_[special] && at < text.size();) {
    const Stretch found =
        starts_[special][static_cast<uint8_t>(text[at])] ? match(text, at, special) : Stretch{at, at, kNone};
    count_steps(1);
    if (found.id == kNone) {
      ++at;
      continue;
    }
    if (at > begin) all.push_back({begin, at, kNone});
    all.push_back(found);
    begin = at = found.end;
  }
  if (begin < text.size()) all.push_back({begin, text.size(), kNone});
  return all;
}

void Tokenizer::encode(std::string_view text, bool special, std::vector<uint32_t>& out) const {
  Scratch scratch;
  for (const Stretch& s : stretches(text, special)) {
    if (s.id == kNone)
      encode_ordinary(text.substr(s.begin, s.end - s.begin), s.begin == 0, scratch, out);
    else
      out.push_back(s.id);
  }
}

void Tokenizer::encode_ordinary(std::string_view text, bool first, Scratch& scratch, std::vector<uint32_t>& out) const {
  const bool spm = v_.split() == Split::kSpm;
  if (spm) text = spaced(text, first && !text.empty() && v_.flag(kAddSpacePrefix), scratch.text);
  if (v_.flag(kNfc)) text = nfc(text, classes_, scratch.text);
  const uint8_t* end = bytes_of(text) + text.size();
  for (const uint8_t* p = bytes_of(text); p < end;) {
    const uint8_t* stop = spm ? joined_end(p, end) : piece_end(v_.split(), p, end, classes_);
    const auto n = static_cast<size_t>(stop - p);
    if (const uint32_t id = v_.word_id(p, n); id != kNone)
      out.push_back(id);
    else
      merge_word({reinterpret_cast<const char*>(p), n}, scratch, out);
    p = stop;
  }
}

// SentencePiece models have no pre-tokenizer: a word is text that merges might join. The cuts change no id, since no
// token of the vocabulary reaches across them.
const uint8_t* Tokenizer::joined_end(const uint8_t* p, const uint8_t* end) const {
  Point before = read_point(p, end);
  for (p += before.bytes; p < end;) {
    const Point after = read_point(p, end);
    if (!v_.joinable(before.code, after.code)) break;
    p += after.bytes;
    before = after;
  }
  return p;
}

void Tokenizer::merge_word(std::string_view word, Scratch& scratch, std::vector<uint32_t>& out) const {
  scratch.ids.clear();
  if (v_.split() == Split::kSpm)
    char_symbols(bytes_of(word), word.size(), scratch.ids);
  else
    byte_symbols(bytes_of(word), word.size(), scratch.ids);
  merge_symbols(v_, scratch, out);
}

// A byte for which the vocabulary has no token is left out, as the reference does.
void Tokenizer::byte_symbols(const uint8_t* p, size_t n, std::vector<uint32_t>& ids) const {
  count_steps(n);
  for (size_t i = 0; i < n; ++i)
    if (const uint32_t id = v_.byte_id(p[i]); id != kNone) ids.push_back(id);
}

// Characters; those without a token as their bytes; without byte tokens as the unknown token, one for a run of them.
void Tokenizer::char_symbols(const uint8_t* p, size_t n, std::vector<uint32_t>& ids) const {
  const uint32_t unknown = v_.header().unknown;
  for (const uint8_t* end = p + n; p < end;) {
    const Point point = read_point(p, end);
    const uint32_t id = point.code < 128 ? ascii_[point.code] : v_.char_id(point.code);
    const bool bytes = std::all_of(p, p + point.bytes, [&](uint8_t b) { return v_.byte_id(b) != kNone; });
    if (id != kNone)
      ids.push_back(id);
    else if (bytes)
      for (uint32_t i = 0; i < point.bytes; ++i) ids.push_back(v_.byte_id(p[i]));
    else if (unknown != kNone && (ids.empty() || ids.back() != unknown))
      ids.push_back(unknown);
    p += point.bytes;
  }
}

void Tokenizer::decode(const uint32_t* ids, size_t n, bool skip_special, std::string& out) const {
  for (size_t i = 0; i < n; ++i) {
    count_steps(1 + v_.text(ids[i]).size());
    const TokenType type = v_.type(ids[i]);
    if (skip_special && (type == TokenType::kControl || type == TokenType::kUnknown)) continue;
    out.append(v_.text(ids[i]));
  }
}

}  // namespace rebar::text
