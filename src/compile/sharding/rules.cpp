#include "compile/sharding/rules.h"

#include <algorithm>

#include "ops/prim.h"

namespace haliax::rules {
namespace {

bool lists(const Names& names, Name a) { return std::find(names.begin(), names.end(), a) != names.end(); }
bool moves_by_number(const Node& n) {
  return (n.op == &prim::kSlice || n.op == &prim::kPlace) && n.in.size() == 1 && !n.attr.ints[3];
}
// A table's axis that is picked from (or placed into) may come back as an axis of the ids: then the name means the latter.
bool picks(const Node& n) { return n.op == &prim::kGather || n.op == &prim::kScatter; }
const Axes& ids_side(const Node& n) { return n.op == &prim::kGather ? n.axes : n.in[1]->axes; }
bool is_indexed(const Node& n, std::size_t k, Name a) { return picks(n) && k == 0 && lists(n.attr.names, a); }
bool clashes(const Node& n, Name a) { return picks(n) && lists(n.attr.names, a) && has(ids_side(n), a); }

Name seen(const Node& n, Name a) {  // the name under which the op sees an operand's axis
  if (n.op != &prim::kRename) return a;
  auto half = n.attr.names.size() / 2;
  for (std::size_t k = 0; k < half; ++k)
    if (n.attr.names[k] == a) return n.attr.names[half + k];
  return a;
}
// Axes of operand k that must be there at once.
bool whole(const Node& n, std::size_t k, Name a) {
  if (is_indexed(n, k, a)) return clashes(n, a);
  if (n.op == &prim::kArgsort || n.op == &prim::kSort || n.op == &prim::kCumulative) return a == n.attr.names[0];
  if (n.op == &prim::kArgmax || n.op == &prim::kArgmin) return !has(n.axes, a);
  if (n.op == &prim::kSlice || n.op == &prim::kConcat) return a == n.attr.names[0];
  return n.op == &prim::kPlace && a == n.attr.names[0];
}
Axes parts_of(const Node& n) {  // of a flatten or an unflatten
  Axes out;
  auto& side = n.op == &prim::kFlatten ? n.in[0]->axes : n.axes;
  for (std::size_t k = 0; k + 1 < n.attr.names.size(); ++k) out.push_back(*find_axis(side, n.attr.names[k]));
  return out;
}
Cut joined(const Axes& parts, const Sharding& s) {
  Cut c;
  for (auto& p : parts) c = c + s.cut(p.name);
  return c;
}
bool is_part(const Node& n, Name a) {  // the flattened axis, named last, may have the name of a part
  return std::find(n.attr.names.begin(), n.attr.names.end() - 1, a) != n.attr.names.end() - 1;
}

}  // namespace

bool only_waits(const Node& n, std::size_t k) { return n.op == &prim::kBarrier && k == 1; }

Axes points(const Node& n) {
  Axes out = n.axes;
  for (std::size_t k = 0; k < n.in.size(); ++k) {
    if (!n.in[k] || only_waits(n, k)) continue;
    for (auto a : n.in[k]->axes) {
      if (n.op == &prim::kFlatten && is_part(n, a.name)) continue;
      if (n.op == &prim::kUnflatten && a.name == n.attr.names.back()) continue;
      a.name = seen(n, a.name);
      if (!has(out, a.name)) out.push_back(a);
    }
  }
  return out;
}

std::optional<std::vector<Cut>> spread(const Cut& cut, const Axes& parts, const Mesh& mesh) {
  std::vector<Cut> out;
  Cut rest = cut;
  for (auto& p : parts) {
    int n = 0;
    while (n < rest.size() && p.size % ranks(mesh, rest.prefix(n + 1)) == 0) ++n;
    out.push_back(rest.prefix(n));
    rest = rest.from(n);
    if (!rest.empty() && ranks(mesh, out.back()) != p.size) return {};
  }
  if (!rest.empty()) return {};
  return out;
}

bool may_cut(const Node& n, Name a, const Cut& cut, const Sharding& work, const Mesh& mesh) {
  if (n.op == &prim::kFlatten && a == n.attr.names.back()) return spread(cut, parts_of(n), mesh).has_value();
  if (n.op == &prim::kUnflatten && is_part(n, a)) {
    auto more = work;
    more.set(a, cut);
    auto parts = parts_of(n);
    auto even = spread(joined(parts, more), parts, mesh);
    if (!even) return false;
    for (std::size_t k = 0; k < parts.size(); ++k)
      if (!((*even)[k] == more.cut(parts[k].name))) return false;
    return true;
  }
  if (shifts(n) && a == n.attr.names[0]) return true;
  if (n.op == &prim::kScatter && program::Update(n.attr.ints[0]) == program::Update::set && (!has(n.axes, a) || clashes(n, a)))
    return false;
  bool there = has(n.axes, a);
  if ((n.op == &prim::kSlice || n.op == &prim::kPlace) && a == n.attr.names[0]) return false;
  for (std::size_t k = 0; k < n.in.size(); ++k) {
    if (!n.in[k] || only_waits(n, k)) continue;
    for (auto& x : n.in[k]->axes) {
      if (!(seen(n, x.name) == a)) continue;
      there = true;
      if (whole(n, k, x.name) && !clashes(n, x.name)) return false;
    }
  }
  return there;
}

Sharding needed(const Node& n, std::size_t k, const Sharding& work, const Mesh& mesh) {
  Sharding out;
  auto& x = n.in[k];
  if (n.op == &prim::kScatter && k == 0) {
    out = made(n, work);
    out.partial.clear();
    return out;
  }
  for (auto& a : x->axes) {
    if (whole(n, k, a.name)) continue;
    if (n.op == &prim::kFlatten && is_part(n, a.name)) continue;
    if (n.op == &prim::kUnflatten && a.name == n.attr.names.back())
      out.set(a.name, joined(parts_of(n), work));
    else
      out.set(a.name, work.cut(seen(n, a.name)));
  }
  if (n.op == &prim::kFlatten) {
    auto parts = parts_of(n);
    if (auto even = spread(work.cut(n.attr.names.back()), parts, mesh))
      for (std::size_t p = 0; p < parts.size(); ++p) out.set(parts[p].name, (*even)[p]);
  }
  return out;
}

Sharding made(const Node& n, const Sharding& work) {
  Sharding out;
  for (auto& a : n.axes) {
    if (n.op == &prim::kScatter && clashes(n, a.name)) continue;
    out.set(a.name, work.cut(a.name));
  }
  auto monoid = Monoid::sum;
  if (n.op == &prim::kMax) monoid = Monoid::max;
  if (n.op == &prim::kMin) monoid = Monoid::min;
  if (n.op == &prim::kProd) monoid = Monoid::prod;
  if (n.op == &prim::kGather && n.dtype == DType::boolean) monoid = Monoid::max;
  if (n.op == &prim::kScatter) {
    auto update = program::Update(n.attr.ints[0]);
    if (update == program::Update::mul) monoid = Monoid::prod;
    if (update == program::Update::min) monoid = Monoid::min;
    if (update == program::Update::max || n.dtype == DType::boolean) monoid = Monoid::max;
  }
  for (auto& [name, cut] : work.dims) {
    bool kept = has(n.axes, name) && !(n.op == &prim::kScatter && clashes(n, name));
    if (!kept)
      for (int x : cut) out.pend(x, monoid);
  }
  return out;
}

Sharding wanted(const Node& n, std::size_t k, const Sharding& operand, const Mesh& mesh, Sharding* left) {
  Sharding out;
  if (only_waits(n, k)) return out;
  auto leave = [&](Name a, const Cut& c) {
    if (left) left->set(a, c);
  };
  if (n.op == &prim::kFlatten || n.op == &prim::kUnflatten) {
    auto parts = parts_of(n);
    Name flat = n.attr.names.back();
    if (n.op == &prim::kFlatten) {
      auto c = joined(parts, operand);
      if (spread(c, parts, mesh))
        out.set(flat, c);
      else
        for (auto& p : parts)
          if (auto mine = operand.cut(p.name); !mine.empty()) leave(p.name, mine);
    } else if (auto c = operand.cut(flat); !c.empty()) {
      if (auto even = spread(c, parts, mesh))
        for (std::size_t p = 0; p < parts.size(); ++p) out.set(parts[p].name, (*even)[p]);
      else
        leave(flat, c);
    }
    for (auto& [name, cut] : operand.dims)
      if (!(n.op == &prim::kFlatten ? is_part(n, name) : name == flat)) out.set(name, cut);
    return out;
  }
  for (auto& [name, cut] : operand.dims) {
    if (whole(n, k, name) && !(shifts(n) && name == n.attr.names[0]))
      leave(name, cut);
    else
      out.set(seen(n, name), cut);
  }
  return out;
}

bool shifts(const Node& n) {
  return n.op == &prim::kConcat || (moves_by_number(n) && (n.op == &prim::kSlice || n.attr.ints[2] == 1));
}
bool is_view(const Node& n) {
  return n.op == &prim::kRename || n.op == &prim::kFit || n.op == &prim::kFlatten || n.op == &prim::kUnflatten ||
         n.op == &prim::kCast || n.op == &prim::kPin || (n.op == &prim::kSlice && !shifts(n));
}
bool is_pointwise(const Node& n) {
  return n.op->kind == Kind::map || n.op == &prim::kFit || n.op == &prim::kRename || n.op == &prim::kFlatten ||
         n.op == &prim::kUnflatten;
}

}  // namespace haliax::rules
