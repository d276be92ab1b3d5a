// Parses JSON into Values with the SAX parser of nlohmann::json, and reads Values as C++ types.
#include "value.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace golden {
namespace {

// Builds Values from the parser's events, with a stack instead of recursion and a limit of the
// depth.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Value root;
  std::string problem;

  bool null() override { return add({}); }
  bool boolean(bool b) override { return add({.kind = Value::Kind::boolean, .flag = b}); }
  bool number_integer(std::int64_t i) override {
    return add({.kind = Value::Kind::integer, .integer = i, .real = double(i)});
  }
  bool number_unsigned(std::uint64_t i) override { return number_integer(std::int64_t(i)); }
  bool number_float(double x, const std::string&) override {
    return add({.kind = Value::Kind::real, .real = x});
  }
  bool string(std::string& s) override { return add({.kind = Value::Kind::text, .text = s}); }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Value::Kind::object); }
  bool key(std::string& k) override {
    open_.back()->keys.push_back(k);
    return true;
  }
  bool end_object() override {
    open_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override { return open(Value::Kind::list); }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::json::exception&) override {
    problem = "is not JSON at byte " + std::to_string(at);
    return false;
  }

 private:
  // The lists and objects that are still open. Only the last one grows, so the addresses stay
  // valid.
  std::vector<Value*> open_;

  bool add(Value v) {
    if (open_.empty())
      root = std::move(v);
    else
      open_.back()->items.push_back(std::move(v));
    return true;
  }
  bool open(Value::Kind kind) {
    if (open_.size() == 100) {
      problem = "is nested more than 100 deep";
      return false;
    }

    add({.kind = kind});
    open_.push_back(open_.empty() ? &root : &open_.back()->items.back());
    return true;
  }
};

[[noreturn]] void wrong(const Value& v, const char* wanted) {
  static const char* const names[] = {"null",   "a boolean", "an integer", "a number",
                                      "a text", "a list",    "an object"};
  throw BadData(std::string("the data has ") + names[int(v.kind)] + " where " + wanted +
                " is needed");
}

}  // namespace

const Value* Value::find(std::string_view key) const {
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (keys[i] == key) return &items[i];
  return nullptr;
}
const Value& Value::operator[](std::string_view key) const {
  static const Value none;
  const Value* v = find(key);
  return v ? *v : none;
}
const Value& Value::at(std::size_t i) const {
  if (i >= items.size()) wrong(*this, "a longer list");
  return items[i];
}
const std::string& Value::as_text() const {
  return is(Kind::text) ? text : (wrong(*this, "a text"), text);
}
double Value::as_real() const {
  return is(Kind::real) || is(Kind::integer) ? real : (wrong(*this, "a number"), real);
}
std::int64_t Value::as_integer() const {
  return is(Kind::integer) ? integer : (wrong(*this, "an integer"), integer);
}
bool Value::as_flag(bool otherwise) const {
  if (is(Kind::null)) return otherwise;
  return is(Kind::boolean) ? flag : (wrong(*this, "a boolean"), flag);
}

Value read_json(const std::string& path) try {
  std::ifstream file(path);
  if (!file) throw BadData("cannot read " + path);
  Builder b;
  if (!nlohmann::json::sax_parse(file, &b))
    throw BadData(path + " " + (b.problem.empty() ? "is not JSON" : b.problem));
  return std::move(b.root);
} catch (const std::ios_base::failure&) {
  throw BadData("cannot read " + path);
}

}  // namespace golden
