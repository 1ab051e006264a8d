// pretokenize.h: the regular expressions of the byte-level BPE families, written out by hand.
//
// Each reads a piece at p and returns its end; pieces follow each other without gaps, so the text is read once
// (runs of spaces twice). No backtracking: every alternative of the patterns can be decided by looking at most
// one character past a run.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rebar::text {

enum class Split : uint32_t { kSpm = 0, kGpt2 = 1, kSmollm = 2, kQwen2 = 3, kLlama3 = 4 };

// tokenizer.ggml.pre -> Split for byte-level BPE; nothing for a name that is not known.
std::optional<Split> split_named(std::string_view name);
std::string split_names();  // the known names, for messages

// End of the piece that begins at p < end. split must not be kSpm.
const uint8_t* piece_end(Split split, const uint8_t* p, const uint8_t* end, const uint8_t* classes);

}  // namespace rebar::text
