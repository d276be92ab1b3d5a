// einsum, with three forms of specification:
// - by position: "b d, d m -> b m"
// - by name: "{embed} -> ..."
// - by the result alone: "-> batch mlp"
#include <algorithm>

#include "haliax/fmt.h"
#include "haliax/mesh.h"
#include "ops/named.h"

namespace haliax {
namespace {

using namespace ops;

struct Token {
  std::string text;  // a label, "...", or punctuation
  std::size_t at = 0, length = 0;
  bool label = false;
};
bool is_dots(const Token& t) { return !t.label && t.text == "..."; }
struct OperandSpec {
  std::vector<Token> items;  // labels and "..."
  bool braces = false;
  Token where;  // position for errors about the operand
  bool has_dots() const { return std::any_of(items.begin(), items.end(), is_dots); }
};

class Spec {
 public:
  explicit Spec(std::string_view s) : spec_(s) { parse(); }
  std::vector<OperandSpec> left;
  OperandSpec right;

  [[noreturn]] void wrong(const Token& t, const std::string& why) const {
    auto carets = std::string(t.at, ' ') + std::string(std::max<std::size_t>(1, t.length), '^');
    fail("einsum", "cannot parse this string:\n    " + spec_ + "\n    " + carets + "\n" + why);
  }

 private:
  std::string spec_;
  std::size_t at_ = 0;

  static bool starts_label(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  }
  static bool in_label(char c) { return starts_label(c) || (c >= '0' && c <= '9'); }

  // Returns the next token. At the end of the string, the token is empty.
  Token next() {
    while (at_ < spec_.size() && (spec_[at_] == ' ' || spec_[at_] == '\t' || spec_[at_] == '\n'))
      ++at_;
    Token t{"", at_, 0, false};
    if (at_ == spec_.size()) return t;
    char c = spec_[at_];
    auto rest = std::string_view(spec_).substr(at_);
    if (starts_label(c)) {
      while (t.length < rest.size() && in_label(rest[t.length])) ++t.length;
      t.text = rest.substr(0, t.length);
      t.label = true;
    } else if (c == '"' || c == '\'') {
      auto end = rest.find(c, 1);
      t.length = end == rest.npos ? rest.size() : end + 1;
      if (end == rest.npos || end == 1)
        wrong(t, end == 1 ? "a label has no name" : "the quote is not closed");
      t.text = rest.substr(1, end - 1);
      t.label = true;
    } else {
      t.length = rest.starts_with("...") ? 3 : rest.starts_with("->") ? 2 : 1;
      t.text = rest.substr(0, t.length);
      if (c == '(' || c == ')')
        wrong(t, "einsum has no parentheses; split or merge axes with rearrange");
      if (t.length == 1 && c != ',' && c != '{' && c != '}')
        wrong(t, "'" + t.text + "' has no meaning here");
    }
    at_ += t.length;
    return t;
  }

  // Parses labels and dots up to a comma, an arrow or the end. Returns this terminator.
  Token operand(OperandSpec& o) {
    bool open = false, closed = false;
    for (Token t = next();; t = next()) {
      if (t.text == "{" && !t.label) {
        if (open || closed || !o.items.empty()) wrong(t, "braces must enclose a full operand");
        open = o.braces = true;
      } else if (t.text == "}" && !t.label) {
        if (!open) wrong(t, "this brace has no opening brace");
        open = false;
        closed = true;
      } else if (t.label || is_dots(t)) {
        if (closed) wrong(t, "only a comma or -> may follow the brace");
        if (is_dots(t) && o.has_dots()) wrong(t, "only one ... is allowed in an operand");
        o.items.push_back(t);
      } else if (t.text == "," && open) {
        continue;  // equivalent to a space
      } else {
        if (open) wrong(o.where, "the brace is not closed");
        return t;
      }
      if (o.where.length == 0) o.where = t;
      o.where.length = t.at + t.length - o.where.at;
    }
  }

  void parse() {
    OperandSpec o;
    Token end = operand(o);
    while (end.text == ",") {
      left.push_back(std::move(o));
      o = {};
      end = operand(o);
    }
    if (end.text != "->") wrong(end, "there is no ->, so the result is missing");
    // `-> batch mlp` has no operands
    if (!left.empty() || o.where.length) left.push_back(std::move(o));
    end = operand(right);
    if (end.length) wrong(end, end.text == "->" ? "there are two ->" : "there is only one result");
    if (right.braces) wrong(right.where, "the result is ordered, so braces are not allowed");
  }
};

class Einsum {
 public:
  Einsum(std::string_view text, Nodes nodes, const Bindings::List& aliases)
      : spec_(text), nodes_(std::move(nodes)), aliases_(aliases) {
    for (auto& n : nodes_) all_ = joined(all_, visible(*n));
  }

  // Returns the axes of the result.
  Axes result() {
    bool braces =
        std::any_of(spec_.left.begin(), spec_.left.end(), [](auto& o) { return o.braces; });
    if (braces && spec_.left.size() > 1)
      spec_.wrong(spec_.left[1].where,
                  "braces select axes of all arrays by name; use one pair of braces");
    auto out = spec_.left.empty() || braces ? by_name() : by_position();
    if (auto* label = aliases_.unused())
      fail("einsum", "the alias " + *label + " is not used in the string");
    check_unique("einsum", out);
    return out;
  }

 private:
  Spec spec_;
  Nodes nodes_;
  Bindings aliases_;
  Axes all_;  // axes of all arrays, by first appearance
  // by position: the axes of labels, and the axes that "..." covers
  std::vector<std::pair<std::string, Axis>> bound_;
  Axes covered_;

  Axis named_axis(const Token& t) {
    auto* other = aliases_.find(t.text);
    Name name = other ? other->name : Name(t.text);
    auto* a = find_axis(all_, name);
    if (!a)
      spec_.wrong(t, fmt::format("axis {} is in none of the arrays: {}{}", name, to_string(all_),
                                 did_you_mean(name, all_)));
    check_alias(t, *a);
    return *a;
  }
  void check_alias(const Token& t, const Axis& a) {
    auto* s = aliases_.find(t.text);
    if (!s) return;
    if (s->name != a.name)
      spec_.wrong(t, fmt::format("stands for axis {}, but the alias is {}", a.name, s->name));
    if (s->size >= 0 && s->size != a.size)
      spec_.wrong(t, fmt::format("axis {} has size {}, but the alias has size {}", a.name, a.size,
                                 s->size));
  }

  // Returns the result as specified: one axis per label, and `rest` in the place of "...".
  template <class AxisOf> Axes written(AxisOf axis_of_label, const Axes& rest) {
    Axes out;
    for (auto& t : spec_.right.items) {
      if (is_dots(t)) {
        out.insert(out.end(), rest.begin(), rest.end());
      } else {
        Axis a = axis_of_label(t);
        if (has(out, a.name)) spec_.wrong(t, "axis " + text(a.name) + " is in the result twice");
        out.push_back(a);
      }
    }
    return out;
  }

  Axes by_name() {
    for (auto& a : nodes_)
      for (auto& b : nodes_) check_sizes("einsum", visible(*a), visible(*b));
    auto label = [&](const Token& t) { return named_axis(t); };
    Axes mentioned = written(label, {}), summed;
    bool right_dots = spec_.right.has_dots(),
         left_dots = spec_.left.empty() || spec_.left[0].has_dots();
    for (auto& o : spec_.left)
      for (auto& t : o.items)
        if (!is_dots(t)) summed.push_back(named_axis(t));
    // Dots on the right keep all axes that are not named there. Dots on the left sum over them.
    // Without dots, the result begins with the remaining axes. For example, of arrays with the axes
    // b, d and m, "{d} -> m" is (b, m), "{d ...} -> m" is (m), and "-> m ..." is (m, b, d).
    if (right_dots) return written(label, without(all_, mentioned));
    return left_dots ? mentioned : joined(without(without(all_, mentioned), summed), mentioned);
  }

  void bind(const Token& t, const Axis& a) {
    check_alias(t, a);
    for (auto& [label, axis] : bound_) {
      if (label == t.text && axis == a) return;
      if (label == t.text)
        spec_.wrong(t, fmt::format("label {} stands for {} and for {}", label, axis, a));
      if (axis.name == a.name)
        spec_.wrong(t, fmt::format("labels {} and {} both stand for axis {}; give it one label",
                                   label, t.text, a.name));
    }
    bound_.emplace_back(t.text, a);
  }
  // Binds the labels of an operand to its axes, in order. The axes that are left are covered by
  // "...". For example, "b ... d" of an array (x, y, z, w) binds b to x and d to w, and covers y
  // and z.
  void bind_operand(std::size_t k) {
    auto& operand = spec_.left[k];
    auto& items = operand.items;
    auto axes = visible(*nodes_[k]);
    auto dots = std::size_t(std::find_if(items.begin(), items.end(), is_dots) - items.begin());
    bool has_dots = operand.has_dots();
    auto labels = items.size() - has_dots;
    if (labels > axes.size() || (!has_dots && labels < axes.size()))
      spec_.wrong(operand.where,
                  fmt::format("array {} has {} axes, {}, but {} labels{}", k + 1, axes.size(),
                              to_string(axes), labels,
                              labels < axes.size() ? "; add ... for the others" : ""));
    auto after = has_dots ? items.size() - dots - 1 : 0;
    for (std::size_t i = 0; i < dots; ++i) bind(items[i], axes[i]);
    for (std::size_t i = 0; i < after; ++i)
      bind(items[dots + 1 + i], axes[axes.size() - after + i]);
    for (std::size_t i = dots; has_dots && i < axes.size() - after; ++i)
      if (!has(covered_, axes[i].name)) covered_.push_back(axes[i]);
  }
  Axes by_position() {
    auto& left = spec_.left;
    if (left.size() != nodes_.size())
      fail("einsum",
           fmt::format("operands in the string: {}, arrays given: {}", left.size(), nodes_.size()));
    for (std::size_t k = 0; k < left.size(); ++k) bind_operand(k);
    for (auto& [label, axis] : bound_)
      if (has(covered_, axis.name))
        fail("einsum",
             fmt::format("axis {} has the label {} in one array, but is among the ... of another",
                         axis.name, label));
    bool any_dots = std::any_of(left.begin(), left.end(), [](auto& o) { return o.has_dots(); });
    for (auto& t : spec_.right.items)
      if (is_dots(t) && !any_dots) spec_.wrong(t, "the result has a ..., but no array has one");
    return written(
        [&](const Token& t) -> Axis {
          for (auto& [label, axis] : bound_)
            if (label == t.text) return axis;
          spec_.wrong(t, "label " + t.text + " is in the result, but in none of the arrays");
        },
        covered_);
  }
};

}  // namespace

namespace {
NamedArray einsum_of(std::string_view spec, const std::vector<Arr>& arrays,
                     const Bindings::List& aliases, const DotOptions& options) {
  CallSite here(arrays.empty() ? SourceLocation() : arrays[0].at());
  if (!options.out_axes.all())
    fail("einsum", "out_axes: the expression states the order of the result; use dot otherwise");
  auto nodes = operands_of("einsum", arrays);
  auto out = Einsum(spec, nodes, aliases).result();
  return contracted("einsum", nodes, out, options.preferred_element_type);
}
}  // namespace

NamedArray einsum(std::string_view spec, std::initializer_list<Arr> arrays,
                  const Bindings::List& aliases, DotOptions options) {
  return einsum_of(spec, arrays, aliases, options);
}
NamedArray einsum(std::string_view spec, const std::vector<NamedArray>& arrays,
                  const Bindings::List& aliases, DotOptions options, SourceLocation at) {
  CallSite here(at);
  std::vector<Arr> all;
  for (auto& a : arrays) all.emplace_back(a, at);
  return einsum_of(spec, all, aliases, options);
}

}  // namespace haliax
