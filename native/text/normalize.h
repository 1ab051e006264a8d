// normalize.h: NFC (Unicode Standard Annex 15), by the Unicode version of the reference tokenizers.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace rebar::text {

constexpr uint8_t kUnsettled = 16;  // class bit: a character that NFC may change, move or join to the one before

// Adds kUnsettled to a table of classes (see class_table()).
void mark_unsettled(uint8_t* classes);

// NFC of `text`: the text itself when nothing in it is unsettled, else a view of `store`. Bytes that are no UTF-8 stay.
// Linear, however many combining marks follow each other.
std::string_view nfc(std::string_view text, const uint8_t* classes, std::string& store);

}  // namespace rebar::text
