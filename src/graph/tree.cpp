// The traversal of a tree, the names of fields, and filters of leaves. The templates that find the
// fields are in haliax/detail/tree_fields.h.
#include "haliax/tree.h"

#include <algorithm>
#include <utility>

#include "base/name.h"
#include "graph/fail.h"

namespace haliax {
namespace reflect {

static bool in_identifier(char c) {
  return c == '_' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
         static_cast<unsigned char>(c) >= 128;
}

// Reduces each name to the last identifier that the compiler spelled:
//   g++    "... {(& haliax::reflect::fake<Linear>.value.Linear::bias)}]"
//   clang  "... {&fake.value.bias}]"
void trim_spelled(std::string_view* names, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::string_view s = names[i];
    std::size_t end = s.rfind(")}");
    if (end == s.npos) end = s.rfind("}]");
    if (end == s.npos) end = s.size();
    std::size_t begin = end;
    while (begin > 0 && in_identifier(s[begin - 1])) --begin;
    names[i] = s.substr(begin, end - begin);
  }
}

void split_listed(std::string_view* names, std::size_t count, std::string_view text) {
  for (std::size_t i = 0; i < count; ++i) {
    while (!text.empty() && !in_identifier(text.front())) text.remove_prefix(1);
    std::size_t end = 0;
    while (end < text.size() && in_identifier(text[end])) ++end;
    names[i] = text.substr(0, end);
    text.remove_prefix(end);
    if (end > 1 && names[i].back() == '_') names[i].remove_suffix(1);
  }
}

}  // namespace reflect

struct WalkModules::Found {
  std::vector<Walk::Module> modules;   // those whose types are in `collected`
  std::vector<Walk::Matrix> matrices;  // `weight` of modules with `In` and `Out`
  std::vector<bool*> inference;        // each field `bool inference`
  std::vector<Axes> layers;            // for each array, the enclosing layer axes
  std::vector<void (*)(Walk&, void*)> collected;
  bool stop = false;  // the contents of a collected module are not traversed
  Axes layers_here;   // around the current part
};
WalkModules::WalkModules(WalkModules&& other) noexcept
    : found(std::exchange(other.found, nullptr)) {}
WalkModules::~WalkModules() { delete found; }
static WalkModules::Found& found_in(Walk& w) {
  auto& found = w.in_modules.found;
  if (!found) found = new WalkModules::Found();
  return *found;
}

Walk::Walk() = default;
Walk::Walk(Walk&&) noexcept = default;
Walk::~Walk() = default;

void Walk::collect(std::initializer_list<void (*)(Walk&, void*)> types, bool stop) {
  auto& all = found_in(*this);
  all.collected = types;
  all.stop = stop;
}
Walk::Modules Walk::modules() const {
  if (!in_modules.found) return {nullptr, nullptr};
  auto& all = in_modules.found->modules;
  return {all.data(), all.data() + all.size()};
}
const Walk::Matrix* Walk::matrix_of(const NamedArray* weight) const {
  if (!in_modules.found) return nullptr;
  for (auto& m : in_modules.found->matrices)
    if (m.weight == weight) return &m;
  return nullptr;
}
const std::vector<Axis>& Walk::layers_of(std::size_t array) const {
  return in_modules.found->layers.at(array);
}
void Walk::set_inference(bool value) const {
  if (!in_modules.found) return;
  for (bool* flag : in_modules.found->inference) *flag = value;
}

bool Walk::same_statics(const Walk& other) const {
  return statics == other.statics && values == other.values;
}

std::vector<NamedArray> Walk::leaves() const {
  std::vector<NamedArray> all;
  all.reserve(arrays.size());
  for (const NamedArray* a : arrays) all.push_back(*a);
  return all;
}

void Walk::assign(const std::vector<NamedArray>& leaves, SourceLocation at) const {
  if (leaves.size() != arrays.size()) {
    CallSite here(at);
    fail("unflatten",
         "the tree has {} arrays, but {} were given; the trees must have the same structure",
         arrays.size(), leaves.size());
  }
  for (std::size_t i = 0; i < leaves.size(); ++i) *arrays[i] = leaves[i];
}

void Walk::leaf(NamedArray& a) {
  arrays.push_back(&a);
  frozen.push_back(frozen_depth > 0);
  if (with_paths) paths.push_back(path);
  if (with_modules) found_in(*this).layers.push_back(found_in(*this).layers_here);
}

void Walk::inference_flag(bool& flag) { found_in(*this).inference.push_back(&flag); }
void Walk::matrix(const NamedArray& weight, const AxisSpec& In, const AxisSpec& Out) {
  found_in(*this).matrices.push_back({&weight, In, Out});
}
void Walk::begin_layers(const Axis& axis) { found_in(*this).layers_here.push_back(axis); }
void Walk::end_layers() { found_in(*this).layers_here.pop_back(); }

bool Walk::module(void* node, void (*type)(Walk&, void*)) {
  auto& all = found_in(*this);
  if (std::find(all.collected.begin(), all.collected.end(), type) == all.collected.end())
    return false;
  all.modules.push_back({path, node, type});
  return all.stop;
}

// Names are only created if they are needed, since every call of a jitted function traverses its
// arguments.
void Walk::parts(const Part* parts, std::size_t count, WriteNames write_names) {
  std::vector<std::string_view> names;
  if (with_paths && write_names) {
    names.resize(count);
    write_names(names.data(), count);
  }

  for (std::size_t i = 0; i < count; ++i) {
    if (!with_paths)
      parts[i].visit(*this, parts[i].node);
    else
      named(names.empty() ? std::string_view(std::to_string(i)) : names[i], parts[i]);
  }
}

void Walk::items(void* first, std::size_t size_of_item, std::size_t count,
                 void (*visit)(Walk&, void*)) {
  for (std::size_t i = 0; i < count; ++i) {
    Part item{static_cast<char*>(first) + i * size_of_item, visit};
    if (!with_paths)
      visit(*this, item.node);
    else
      named(std::to_string(i), item);
  }
}

void Walk::named(std::string_view name, const Part& part) {
  const std::size_t mark = path.size();
  if (mark && !name.empty()) path += '.';
  path += name;
  part.visit(*this, part.node);
  path.resize(mark);
}

// ---- static values ----
// Descriptions are only created if they are needed, since every call of a jitted function traverses
// its arguments.
void Walk::note(const char* text) {
  if (with_paths) described.push_back({path, text, statics.size()});
}
void Walk::note(double v) {
  if (with_paths) note(fmt::format("{}", v).c_str());
}
void Walk::note(std::int64_t v) {
  if (with_paths) note(fmt::format("{}", v).c_str());
}
void Walk::add_bytes(const void* p, std::size_t size) {
  statics.append(static_cast<const char*>(p), size);
}
void Walk::add_unequal() { unequal.push_back(path); }
void Walk::add_length(std::size_t n) {
  add_bytes(&n, sizeof n);
  if (with_paths) note(fmt::format("of {} items", n).c_str());
}
void Walk::add(std::string_view s) {
  const auto n = s.size();
  add_bytes(&n, sizeof n);
  add_bytes(s.data(), n);
  if (with_paths) note(fmt::format("\"{}\"", s).c_str());
}
void Walk::add(const std::string& s) { add(std::string_view(s)); }
void Walk::add(Name n) {
  add_bytes(&n, sizeof n);
  if (with_paths) note(std::string(n.text()).c_str());
}
void Walk::add(const Axis& a) { add(AxisSelector(a)); }
void Walk::add(const AxisSelector& a) {
  add_bytes(&a.name, sizeof a.name);
  add_bytes(&a.size, sizeof a.size);
  if (with_paths)
    note((a.size < 0 ? std::string(a.name.text()) : to_string(Axis(a.name, a.size))).c_str());
}
void Walk::add(StaticValue v) {
  if (v.holds_array()) holding.push_back(path);
  values.push_back(std::move(v));
  note("");
  if (!described.empty()) described.back().value = int(values.size()) - 1;
}
void Walk::add(const AxisSpec& s) {
  add_length(s.axes().size());
  for (const Axis& a : s) add(a);
}
void Walk::add(const AxisSelection& s) {
  add(s.all());
  add_length(s.items().size());
  for (const AxisSelector& a : s.items()) add(a);
}

void detail::note_fields(const Walk& w) {
  for (std::size_t k = 0; k < w.arrays.size(); ++k)
    if (auto& n = w.arrays[k]->node()) n->field.note(module_path(w.paths[k]));
}

// ---- parts of trees ----
namespace detail {

void check_same_structure(const char* op, const Walk& a, const Walk& b, SourceLocation at) {
  CallSite here(at);
  auto lacks = [](const Walk& from, const Walk& in) {
    auto missing = std::find_if(from.paths.begin(), from.paths.end(), [&](auto& p) {
      return std::find(in.paths.begin(), in.paths.end(), p) == in.paths.end();
    });
    return missing == from.paths.end() || missing->empty() ? std::string()
                                                           : "; only one of them has " + *missing;
  };
  auto missing = lacks(a, b);
  if (missing.empty()) missing = lacks(b, a);
  fail(op, "the first tree has {} arrays and another {}{}; the trees must have the same structure",
       a.arrays.size(), b.arrays.size(), missing);
}
Leaves only_leaves(Leaves leaves, const std::vector<bool>& keep) {
  for (std::size_t i = 0; i < leaves.size(); ++i)
    if (!keep[i]) leaves[i] = {};
  return leaves;
}
Leaves merged_leaves(Leaves leaves, const Leaves& others) {
  for (std::size_t i = 0; i < leaves.size(); ++i)
    if (leaves[i].empty()) leaves[i] = others[i];
  return leaves;
}
std::vector<bool> trainable_of(const Walk& w, std::vector<bool> chosen) {
  for (std::size_t i = 0; i < chosen.size(); ++i)
    chosen[i] = chosen[i] && !w.frozen[i] && is_float(w.arrays[i]->node()->dtype);
  return chosen;
}

}  // namespace detail

// Returns a path for messages, without the levels that Stacked adds.
static std::string without_stacked(const std::string& path) {
  return std::string(module_path(path).text());
}

LeafFilter LeafFilter::operator!() const {
  auto others = *this;
  others.inverted_ = !inverted_;
  return others;
}
bool LeafFilter::operator()(const std::string& path, const NamedArray& leaf) const {
  bool is = f_ ? call_(f_.get(), path, leaf)
               : path.find(part_) != path.npos || without_stacked(path).find(part_) != path.npos;
  return is != inverted_;
}
std::vector<bool> LeafFilter::chosen(const char* op, const Walk& w, SourceLocation at) const {
  detail::note_fields(w);
  std::vector<bool> out(w.arrays.size());
  bool found = false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (w.arrays[i]->empty()) continue;
    out[i] = (*this)(w.paths[i], *w.arrays[i]);
    found = found || out[i] != inverted_;
  }
  if (found || f_ || part_.empty() || out.empty()) return out;
  CallSite here(at);
  std::vector<std::string> levels;  // the names that paths consist of
  for (auto& p : w.paths)
    for (std::size_t from = 0, to = 0; to != p.npos; from = to + 1) {
      to = p.find('.', from);
      levels.push_back(p.substr(from, to == p.npos ? to : to - from));
    }
  fail(op, "there is no array with {} in its path{}; paths are like {}", part_,
       did_you_mean(part_, levels), w.paths.front());
}

void detail::refuse_empty(const char* op, const char* what, SourceLocation at) {
  CallSite here(at);
  fail(op, std::string(what));
}

}  // namespace haliax
