// Fuzz target for JSON records (libFuzzer): any bytes, in a buffer of exactly their size. What is read is written down again,
// and that must be read to the same.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "text/json_record.h"

using rebar::text::JsonRecord;
using rebar::text::kJsonDepth;

namespace {

[[noreturn]] void wrong() { __builtin_trap(); }

// Values as JSON without a space, and how deep they are.
struct Writer {
  struct Value {
    std::string json;
    int depth = 0;
    explicit operator bool() const { return !json.empty(); }
  };

  Value null() { return {"null"}; }
  Value boolean(bool value) { return {value ? "true" : "false"}; }
  Value integer(int64_t value) { return {std::to_string(value)}; }
  Value real(double value) {
    if (!std::isfinite(value)) wrong();
    char digits[40];
    std::snprintf(digits, sizeof digits, "%.17e", value);
    return {digits};
  }
  Value array() { return {"[]"}; }
  Value object() { return {"{}"}; }
  Value key(const char* utf8, size_t nbytes) { return text(utf8, nbytes, false); }

  Value text(const char* utf8, size_t nbytes, bool high) {
    std::string json = "\"";
    bool wide = false;
    for (size_t i = 0; i < nbytes; ++i) {
      const auto byte = static_cast<unsigned char>(utf8[i]);
      wide |= byte > 127;
      if (byte == '"' || byte == '\\') json += '\\';
      if (byte > 31) {
        json += static_cast<char>(byte);
      } else {
        char escaped[8];
        std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
        json += escaped;
      }
    }
    if (wide != high) wrong();
    return {json + '"'};
  }

  bool append(Value& array, const Value& item) { return add(array, item.json, item.depth); }
  bool put(Value& object, const Value& key, const Value& item) {
    return add(object, key.json + ':' + item.json, item.depth);
  }

  static bool add(Value& whole, const std::string& part, int depth) {
    const char end = whole.json.back();
    whole.json.pop_back();
    if (whole.json.size() > 1) whole.json += ',';
    whole.json += part + end;
    whole.depth = std::max(whole.depth, depth + 1);
    return true;
  }
};

Writer::Value read(const char* bytes, size_t size) {
  const std::unique_ptr<char[]> exact(new char[size]);  // a sanitizer sees one byte too many
  if (size != 0) std::memcpy(exact.get(), bytes, size);
  std::vector<char> scratch;
  Writer write;
  return JsonRecord({exact.get(), size}, scratch, write).read();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Writer::Value first = read(reinterpret_cast<const char*>(data), size);
  if (!first) return 0;
  if (first.depth > kJsonDepth + 1) wrong();
  const Writer::Value again = read(first.json.data(), first.json.size());
  if (again.json != first.json) wrong();
  return 0;
}
