// rearrange by a string, as in einops, but with names:
// "N C (h ph) (w pw) -> N (P: h w) (C: C ph pw)".
//
//   side:  item* | { item* }          braces, on the left only: axes by name instead of by position
//   item:  label | ... | (label*) | (label: label*)
#include <algorithm>
#include <cctype>

#include "haliax/fmt.h"
#include "haliax/mesh.h"
#include "ops/attr.h"
#include "ops/named.h"

namespace haliax {
namespace {

using namespace ops;
constexpr auto op = "rearrange";

struct Item {
  bool dots = false, group = false;
  std::string label = {};               // label of a single axis, or name of a group (may be empty)
  std::vector<std::string> parts = {};  // labels of a group
};
struct Side {
  bool by_name = false;
  std::vector<Item> items;
};

class Parser {
 public:
  explicit Parser(std::string_view spec) : spec_(spec) {}

  std::pair<Side, Side> run() {
    if (spec_.find("->") == spec_.npos) error("there is no -> between the old and the new axes");
    Side left = side();
    if (!take("->")) error("-> is expected", at_);
    Side right = side();
    if (right.by_name) error("braces are for the left side only");
    skip();
    if (at_ < spec_.size()) error("'" + std::string(1, spec_[at_]) + "' is not expected", at_);
    auto dots = std::count_if(left.items.begin(), left.items.end(), [](auto& i) { return i.dots; });
    if (dots > 1) error("only one ... can be on the left side");
    return {left, right};
  }
  [[noreturn]] void error(const std::string& what, std::size_t at = std::string_view::npos) const {
    fail(op, fmt::format("{}{} in \"{}\"", what,
                         at == spec_.npos ? "" : fmt::format(" at character {}", at + 1), spec_));
  }

 private:
  void skip() {
    while (at_ < spec_.size() &&
           (std::isspace(static_cast<unsigned char>(spec_[at_])) || spec_[at_] == ','))
      ++at_;
  }
  bool take(std::string_view token) {
    skip();
    if (spec_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }
  // Returns an identifier, or the string between quotes. Empty if there is neither.
  std::string label() {
    skip();
    auto from = at_;
    if (at_ < spec_.size() && (spec_[at_] == '"' || spec_[at_] == '\'')) {
      auto end = spec_.find(spec_[at_], at_ + 1);
      if (end == spec_.npos) error("a quote is not closed", at_);
      at_ = end + 1;
      return std::string(spec_.substr(from + 1, end - from - 1));
    }
    auto letter = [&](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
    while (at_ < spec_.size() && letter(spec_[at_])) ++at_;
    return std::string(spec_.substr(from, at_ - from));
  }
  Item item() {
    auto from = at_;
    if (take("...")) return {.dots = true};
    if (!take("(")) {
      auto name = label();
      if (name.empty())
        error(at_ < spec_.size() ? "'" + std::string(1, spec_[at_]) + "' is not expected"
                                 : "the end is not expected",
              at_);
      return {.label = name};
    }
    Item group{.group = true};
    while (!take(")")) {
      auto name = label();
      if (name.empty()) error("the ( is not closed, or holds more than labels", from);
      if (take(":")) {
        if (!group.label.empty() || !group.parts.empty())
          error("a group has one name, before its labels", from);
        group.label = name;
      } else {
        group.parts.push_back(name);
      }
    }
    if (group.parts.empty()) error("a group has no labels", from);
    return group;
  }
  Side side() {
    Side s;
    s.by_name = take("{");
    while (!(s.by_name && take("}"))) {
      skip();
      bool end = at_ >= spec_.size() || spec_.substr(at_, 2) == "->";
      if (end && s.by_name) error("the { is not closed");
      if (end) break;
      s.items.push_back(item());
    }
    return s;
  }

  std::string_view spec_;
  std::size_t at_ = 0;
};

// The array between the steps of the rearrangement. After the splits, `captured` maps each label of
// the left side to its axis.
class Rearrangement {
 public:
  Rearrangement(NodePtr x, std::string_view spec, const Bindings::List& bindings)
      : parser_(spec), x_(std::move(x)), bindings_(bindings) {}

  NodePtr run() {
    auto [left, right] = parser_.run();
    match(left);
    check_right(right);
    x_ = prim::fit(x_, with_hidden({x_}, rearrange_for_partial_order(order_, visible(*x_),
                                                                     context().origin.at)));
    merge();
    if (auto* label = bindings_.unused())
      parser_.error("the binding of " + *label + " is not used");
    Axes result = visible(*x_);
    for (auto& a : result) a.name = requested_.renamed(a.name);
    check_unique(op, result);
    return prim::rename(x_, requested_.from, requested_.to);
  }

 private:
  struct Capture {
    std::string label;
    Name axis;
    bool used = false;
  };

  // Returns a name for an axis that replaces the axes `old`: the name of the label, or a temporary
  // name while another axis has this name, which `run` renames at the end. For example,
  // "a b -> (b: a) (a: b)" first calls the new axis "(b)", since b still exists.
  Name fresh(const std::string& label, const Names& old) {
    auto* b = bindings_.find(label);
    Name requested = b ? b->name : Name(label), name = requested;
    while (has(x_->axes, name) && !has(old, name)) name = Name("(" + text(name) + ")");
    if (name != requested) {
      requested_.from.push_back(name);
      requested_.to.push_back(requested);
    }

    return name;
  }
  void capture(const std::string& label, Name axis) {
    for (auto& c : captured_)
      if (c.label == label) parser_.error("label " + label + " is on the left side twice");
    captured_.push_back({label, axis});
  }
  // Returns the axis of the array that an item of the left side refers to.
  Axis source(const Item& item, const Axes& axes, std::size_t position, bool by_name) {
    if (!by_name) return axes[position];
    if (item.label.empty())
      parser_.error("a group in braces needs the name of the axis that it splits: (axis: labels)");
    if (auto* a = find_axis(axes, Name(item.label))) return *a;
    auto* b = bindings_.find(item.label);
    auto* a = b ? find_axis(axes, b->name) : nullptr;
    if (!a)
      fail(op, fmt::format("axis {} is not in {}{}", item.label, to_string(axes),
                           did_you_mean(Name(item.label), axes)));
    return *a;
  }
  void match(const Side& left) {
    auto axes = visible(*x_);
    auto dots = std::find_if(left.items.begin(), left.items.end(), [](auto& i) { return i.dots; });
    auto named = left.items.size() - (dots != left.items.end());
    if (!left.by_name && named > axes.size())
      parser_.error(
          fmt::format("{} labels on the left side are too many for {}", named, to_string(axes)));
    if (!left.by_name && named < axes.size() && dots == left.items.end())
      parser_.error(
          fmt::format("{} labels on the left side are too few for {}; use ... for the rest", named,
                      to_string(axes)));
    Names seen;
    std::size_t position = 0;
    for (auto& item : left.items) {
      if (item.dots) {
        position += axes.size() - named;
        continue;
      }
      auto a = source(item, axes, position++, left.by_name);
      if (has(seen, a.name)) parser_.error("axis " + text(a.name) + " is on the left side twice");
      seen.push_back(a.name);
      if (item.group)
        split(item, a);
      else
        single_axis(item, a, left.by_name);
    }
  }
  void single_axis(const Item& item, const Axis& a, bool by_name) {
    if (auto* b = bindings_.find(item.label)) {
      if (b->size >= 0 && b->size != a.size)
        parser_.error(fmt::format("label {} is bound to size {}, but the axis there is {}",
                                  item.label, b->size, a));
      // A binding to an axis with the name of the label binds only a size.
      if (!by_name && b->name != a.name && b->name != Name(item.label))
        parser_.error(fmt::format("label {} is bound to {}, but the axis there is {}", item.label,
                                  b->name, a));
    }
    capture(item.label, a.name);
  }
  void split(const Item& item, const Axis& a) {
    std::vector<std::int64_t> sizes;
    std::int64_t known = 1;
    std::string unknown;
    for (auto& p : item.parts) {
      auto* b = bindings_.find(p);
      sizes.push_back(b ? b->size : -1);
      if (sizes.back() >= 0)
        known *= sizes.back();
      else if (unknown.empty())
        unknown = p;
      else
        parser_.error("the sizes of " + unknown + " and " + p +
                      " are both unknown; bind one of them to a size");
    }
    bool divides = unknown.empty() ? known == a.size : known > 0 && a.size % known == 0;
    if (!divides)
      parser_.error(fmt::format("axis {} does not divide into parts of {} elements", a, known));
    Axes parts;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      Name name = fresh(item.parts[i], {a.name});
      if (has(parts, name)) parser_.error("axis " + text(name) + " would occur twice");
      parts.push_back({name, sizes[i] >= 0 ? sizes[i] : a.size / known});
      capture(item.parts[i], name);
    }
    x_ = prim::unflatten(x_, a.name, parts);
  }

  Name captured(const std::string& label) {
    for (auto& c : captured_) {
      if (c.label != label) continue;
      if (c.used) parser_.error("label " + label + " is on the right side twice");
      c.used = true;
      return c.axis;
    }
    parser_.error("label " + label + " on the right side is not on the left side" +
                  did_you_mean(label, captured_, &Capture::label));
  }
  void check_right(const Side& right) {
    bool dots = false;
    for (auto& item : right.items) {
      if (item.dots) {
        dots = true;
        order_.push_back(ellipsis);
      }

      if (!item.dots && !item.group) order_.push_back(captured(item.label));
      if (!item.group) continue;
      auto& merged = merges_.emplace_back(item.label, Names()).second;
      for (auto& p : item.parts) {
        merged.push_back(captured(p));
        order_.push_back(merged.back());
      }

      if (item.label.empty())
        parser_.error(fmt::format("the merged axis ({0}) needs a name: (name: {0})",
                                  fmt::join(item.parts, " ")));
    }
    for (auto& c : captured_)
      if (!c.used) parser_.error("label " + c.label + " of the left side is not on the right side");
    for (auto& a : visible(*x_))
      if (!dots && !has(order_, a.name))
        parser_.error("axis " + to_string(a) + " is not on the right side; add ... there");
  }
  void merge() {
    for (auto& [label, old] : merges_) {
      std::int64_t size = 1;
      for (auto n : old) size *= find(*x_, n)->size;
      if (auto* b = bindings_.find(label); b && b->size >= 0 && b->size != size)
        parser_.error(fmt::format("axis {} is bound to size {} but has {}", label, b->size, size));
      x_ = prim::flatten(x_, old, {fresh(label, old), size});
    }
  }

  Parser parser_;
  NodePtr x_;
  Bindings bindings_;
  std::vector<Capture> captured_;
  Names order_;  // order of the split axes, possibly with "..."
  std::vector<std::pair<std::string, Names>> merges_;
  RenameAttr requested_;  // final names of axes that have a temporary name
};

}  // namespace

NamedArray rearrange(Arr x, std::string_view spec, const Bindings::List& bindings) {
  auto [here, n] = Call(op, x);
  return constrained(op, NamedArray(Rearrangement(n, spec, bindings).run()));
}
NamedArray rearrange(Arr x, std::string_view spec, std::initializer_list<LabelBinding> bindings) {
  Bindings::List list;
  for (auto& b : bindings) list.emplace_back(b.label, b.axis);
  return rearrange(x, spec, list);
}

}  // namespace haliax
