// png_lines.h: the lines of a PNG image out of the differences that they are stored as (W3C, PNG Specification, second edition,
// section 9). A value may depend on the one before it, so this is a chain, and in Python it took a tenth of a second for a
// picture of 224 x 224 in colours, with the interpreter held: few bytes from a stranger, many such pictures.
#pragma once
#include <cstddef>
#include <cstdint>

namespace rb {

// raw: `height` lines, each a byte of rule and `nbytes` of differences. lines: height x nbytes, written. unit: bytes between a
// value and the one before it of the same channel, at least 1. False when a line has a rule that does not exist.
bool png_unfiltered(const std::uint8_t* raw, std::uint8_t* lines, std::size_t height, std::size_t nbytes,
                    std::size_t unit);

}  // namespace rb
