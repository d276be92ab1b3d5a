// JSON as a plain tree. The parser is included in value.cpp only, so that the tables compile
// quickly.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace golden {

// An error in the data itself. It ends the program with this message.
struct BadData : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Value {
  enum class Kind : std::uint8_t { null, boolean, integer, real, text, list, object };
  Kind kind = Kind::null;
  bool flag = false;
  std::int64_t integer = 0;
  double real = 0;
  std::string text = {};
  // The items of a list, or the values of an object, in the order of the file.
  std::vector<Value> items = {};
  std::vector<std::string> keys = {};

  explicit operator bool() const { return kind != Kind::null; }
  bool is(Kind k) const { return kind == k; }
  bool has(std::string_view key) const { return find(key) != nullptr; }
  const Value* find(std::string_view key) const;        // nullptr if there is none
  const Value& operator[](std::string_view key) const;  // a null value if there is none
  const Value& at(std::size_t i) const;  // raise BadData for another kind, or out of range
  const std::string& as_text() const;
  double as_real() const;
  std::int64_t as_integer() const;
  bool as_flag(bool otherwise) const;  // `otherwise` for null
};

Value read_json(const std::string& path);

}  // namespace golden
