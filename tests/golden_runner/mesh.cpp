// Draws meshes, mappings of arguments and results, constraints and partial sums. Runs a case inside
// named_jit with them, and draws again if a documented refusal is raised.
#include "mesh.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "haliax/error.h"
#include "haliax/jit.h"
#include "haliax/ops.h"
#include "haliax/shard.h"

namespace golden {

using namespace haliax;

namespace {

using Dice = std::mt19937_64;
using Maybe = std::optional<Mapping>;
using NameSet = std::set<std::string>;

// Documented refusals, by words of their messages.
const char* const documented[] = {"are both mapped to mesh axis"};

// ---- drawing ----

std::size_t below(Dice& dice, std::size_t n) { return std::size_t(dice() % n); }
bool chance(Dice& dice, int percent) { return int(below(dice, 100)) < percent; }
template <class T>
void shuffle(Dice& dice,
             std::vector<T>& v) {  // unlike std::shuffle, equal with every standard library
  for (std::size_t i = v.size(); i > 1; --i) std::swap(v[i - 1], v[below(dice, i)]);
}

// Draws a mesh of 1 to 3 axes, some of size 1, with 2 to 12 devices.
Mesh drawn_mesh(Dice& dice) {
  for (;;) {
    std::vector<std::pair<std::string, int>> axes;
    int devices = 1;
    for (const char* name : {"data", "model", "replica"}) {
      axes.emplace_back(name, 1 + int(below(dice, axes.empty() ? 12 : 4)));
      devices *= axes.back().second;
      if (chance(dice, 35)) break;
    }
    if (devices >= 2 && devices <= 12) return Mesh(axes);
  }
}

void add_names(NameSet& names, const Axes& axes) {
  for (const Axis& a : axes) names.insert(std::string(a.name.text()));
}
// Adds every word of the args, since it may be the name of an axis that exists only inside the op.
void add_names(NameSet& names, const Value& args) {
  if (args.is(Value::Kind::text) && !args.text.empty() && args.text.find(' ') == args.text.npos)
    names.insert(args.text);
  for (const Value& v : args.items) add_names(names, v);
}
NameSet names_of(const std::vector<Axes>& arrays) {
  NameSet names;
  for (const Axes& axes : arrays) add_names(names, axes);
  return names;
}

// Returns true if no array has two axes along one mesh axis.
bool is_legal(const std::vector<Mapping::Entry>& entries, const std::vector<Axes>& arrays) {
  for (const Axes& axes : arrays) {
    NameSet taken;
    for (const auto& e : entries)
      for (const std::string& m : e.mesh_axes)
        if (find_axis(axes, e.axis) && !taken.insert(m).second) return false;
  }
  return true;
}

// Draws one mesh axis, two, or (with `unsharded` percent) none for each name, such that the mapping
// is legal for the arrays.
Mapping drawn_mapping(Dice& dice, const Mesh& mesh, const NameSet& names,
                      const std::vector<Axes>& arrays, int unsharded) {
  std::vector<Mapping::Entry> entries;
  std::vector<std::string> order(names.begin(), names.end());
  shuffle(dice, order);
  for (const std::string& name : order) {
    if (chance(dice, unsharded)) continue;
    std::vector<std::string> along;
    for (const auto& [axis, size] : mesh.axes()) along.push_back(axis);
    shuffle(dice, along);
    along.resize(std::min(along.size(), std::size_t(chance(dice, 40) ? 2 : 1)));
    entries.emplace_back(Name(name), along);
    if (!is_legal(entries, arrays)) entries.pop_back();
  }
  return Mapping::of(entries);
}

// ---- arguments and results with their own mappings ----

constexpr std::size_t kSlots = 8;
using Slots = std::array<Arrays, kSlots>;
using OfSlots = std::vector<Maybe>;

Slots dealt(const Arrays& all) {
  Slots slots;
  for (std::size_t i = 0; i < all.size(); ++i) slots[i % kSlots].push_back(all[i]);
  return slots;
}
Arrays gathered(const Slots& slots) {
  Arrays all;
  for (std::size_t i = 0; i / kSlots < slots[i % kSlots].size(); ++i)
    all.push_back(slots[i % kSlots][i / kSlots]);
  return all;
}

// The path of an array between an argument and the op, or between the op and a result.
const Axis kParts("parts", 3);
struct Way {
  Maybe summed;      // sums over kParts under this mapping; if it shards kParts, the sum is partial
  Maybe constraint;  // applied by `shard`
  NamedArray operator()(NamedArray x) const {
    if (summed)
      x = sum(shard(where(arange(kParts) == 0, broadcast_axis(x, kParts), 0), *summed), kParts);
    return constraint ? shard(x, *constraint) : x;
  }
};

// ---- a case, and one trial of it ----

struct Recorded {
  Arrays in;                // the inputs that the case reads
  std::vector<Part> parts;  // unevaluated
  NameSet names;
};

Recorded recorded(const Group& g, const Value& c, const Op& op) {
  Recorded r;
  r.parts = parts_of(c, op, [&](const std::string& tensor, const Axes& axes) {
    r.in.push_back(array_of(g, tensor, axes));
    return r.in.back();
  });
  for (const NamedArray& x : r.in) add_names(r.names, x.axes());
  for (const Part& p : r.parts)
    if (!p.got.empty()) add_names(r.names, p.got.axes());
  add_names(r.names, c["args"]);
  return r;
}

std::vector<Axes> axes_of_each(const Arrays& arrays) {
  std::vector<Axes> out;
  for (const NamedArray& x : arrays)
    if (!x.empty()) out.push_back(x.axes());
  return out;
}

struct Trial {
  Mesh mesh;
  Maybe compute;
  bool scoped = false;  // mesh and mapping come from scopes, not from the options
  OfSlots in = OfSlots(kSlots), placed = in, out = in;
  std::vector<Way> entering, leaving;  // one for each array
  JitOptions options;
};

// Draws a mapping of these arrays, the compute mapping, an empty one, or none.
Maybe drawn_side(Dice& dice, const Trial& t, const Arrays& arrays, int unsharded) {
  const auto way = below(dice, 100);
  const std::vector<Axes> all = axes_of_each(arrays);
  if (way < 60) return drawn_mapping(dice, t.mesh, names_of(all), all, unsharded);
  if (way < 75) return t.compute;
  if (way < 85) return Mapping();
  return std::nullopt;
}

// Returns true if adding zeros does not change x. Zeros change -0 to 0, and widen small integers.
bool outlives_sums(const NamedArray& x) {
  const std::vector<double> values = x.doubles();
  return is_float(x.dtype()) && std::none_of(values.begin(), values.end(),
                                             [](double v) { return v == 0 && std::signbit(v); });
}
Way drawn_way(Dice& dice, const Mesh& mesh, const NamedArray& x, bool enters, int unsharded) {
  Way way;
  if (x.empty()) return way;
  auto mapping = [&](Axes axes) {
    return drawn_mapping(dice, mesh, names_of({axes}), {axes}, unsharded);
  };
  if (enters && chance(dice, 20) && outlives_sums(x)) {
    Axes axes = x.axes();
    axes.push_back(kParts);
    way.summed = mapping(axes);
  }
  if (chance(dice, 20)) way.constraint = mapping(x.axes());
  return way;
}

Trial drawn_trial(Dice& dice, const Recorded& r, int unsharded) {
  Trial t;
  t.mesh = drawn_mesh(dice);
  Arrays results;
  for (const Part& p : r.parts) results.push_back(p.got);
  std::vector<Axes> all = axes_of_each(r.in);
  for (const Axes& axes : axes_of_each(results)) all.push_back(axes);

  if (!chance(dice, 5)) t.compute = drawn_mapping(dice, t.mesh, r.names, all, unsharded);
  const Slots in = dealt(r.in), out = dealt(results);
  for (std::size_t k = 0; k < kSlots; ++k) {
    t.in[k] = drawn_side(dice, t, in[k], unsharded);
    t.out[k] = drawn_side(dice, t, out[k], unsharded);
    if (chance(dice, 20))
      t.placed[k] = drawn_mapping(dice, t.mesh, names_of(axes_of_each(in[k])), axes_of_each(in[k]),
                                  unsharded);
  }
  for (const NamedArray& x : r.in)
    t.entering.push_back(drawn_way(dice, t.mesh, x, true, unsharded));
  for (const NamedArray& y : results)
    t.leaving.push_back(drawn_way(dice, t.mesh, y, false, unsharded));

  t.scoped = chance(dice, 15);
  if (!t.scoped) {
    t.options.mesh = t.mesh;
    t.options.axis_resources = t.compute;
  }

  t.options.in = Mappings::of_each(t.in);
  t.options.out = Mappings::of_each(t.out);
  t.options.ring = chance(dice, 25);
  t.options.regather = chance(dice, 75);
  const bool donates = chance(dice, 15);
  for (std::size_t k = 0; k < kSlots; ++k)
    if (donates && chance(dice, 40) && !in[k].empty()) t.options.donate.push_back(int(k));
  t.options.overlap = chance(dice, 30);
  return t;
}

std::string shown(const Maybe& m) { return m ? to_string(*m) : "-"; }
std::string shown(const Trial& t, const Recorded& r) {
  std::string text =
      "mesh " + to_string(t.mesh) + ", inside " + shown(t.compute) + (t.scoped ? " by scopes" : "");
  text += ", arguments";
  for (std::size_t k = 0; k < std::min(kSlots, r.in.size()); ++k)
    text += " " + shown(t.in[k]) + (t.placed[k] ? " placed " + shown(t.placed[k]) : "");
  text += ", results";
  for (std::size_t k = 0; k < std::min(kSlots, r.parts.size()); ++k) text += " " + shown(t.out[k]);
  auto ways = [&](const char* what, const std::vector<Way>& all) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].summed)
        text += ", " + (what + std::to_string(i)) + " summed from " + shown(all[i].summed);
      if (all[i].constraint)
        text += ", " + (what + std::to_string(i)) + " constrained " + shown(all[i].constraint);
    }
  };
  ways("argument ", t.entering);
  ways("result ", t.leaving);
  if (t.options.ring) text += ", ring";
  if (!t.options.regather) text += ", no regather";
  if (t.options.overlap) text += ", overlap";
  for (int d : t.options.donate) text += ", donates " + std::to_string(d);
  return text;
}

// Copies the arguments and places them, since donation and placement must not affect other trials.
Slots arguments(const Trial& t, const Arrays& all) {
  use_mesh here(t.mesh);
  Slots slots = dealt(all);
  for (std::size_t k = 0; k < kSlots; ++k)
    for (NamedArray& x : slots[k]) {
      x = from_bytes(x.bytes(), x.dtype(), x.axes());
      if (t.placed[k]) x = shard(x, *t.placed[k]);
    }
  return slots;
}

// Returns a tolerance relative to the largest element, since sums over blocks round in proportion
// to their terms.
Tolerance in_any_order(const Part& p, const Group& g) {
  Tolerance t(*p.tolerance);
  if (p.got.empty() || t.exact) return t;
  const Tensor& expected = g.tensors.at((*p.spec)["tensor"].as_text());
  for (double x : decode(expected.dtype, expected.data))
    if (std::isfinite(x)) t.atol = std::max(t.atol, t.rtol * std::abs(x));
  return t;
}

Problems run(const Trial& t, const Recorded& r, const Group& g, const Value& c, const Op& op) {
  auto traced = [&](const auto&... slots) {
    Arrays in = gathered({slots...}), out;
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = t.entering[i](in[i]);
    std::size_t next = 0;
    for (const Part& p :
         parts_of(c, op, [&](const std::string&, const Axes&) { return in.at(next++); }))
      out.push_back(t.leaving[out.size()](p.got));
    return std::tuple_cat(dealt(out));
  };
  const auto step = named_jit(traced, t.options);
  std::optional<use_mesh> mesh;
  std::optional<axis_mapping> mapping;
  const Slots in = arguments(t, r.in);
  if (t.scoped) {
    mesh.emplace(t.mesh);
    if (t.compute) mapping.emplace(*t.compute);
  }
  auto problems = [&] {
    const Arrays got = gathered(
        std::apply([](const auto&... out) { return Slots{out...}; }, std::apply(step, in)));
    Problems found;
    for (std::size_t i = 0; i < r.parts.size(); ++i)
      compare(r.parts[i].name, got.at(i), g, *r.parts[i].spec, in_any_order(r.parts[i], g), found);
    return found;
  };
  Problems found = problems();
  if (!found.empty() || !t.options.donate.empty()) return found;
  for (const std::string& p : problems())
    found.push_back("called again, with the arguments as they now lie, " + p);
  return found;
}

}  // namespace

// ---- cases ----

MeshCase::MeshCase(std::uint64_t seed, const std::string& id, MeshTally& tally) : tally_(tally) {
  const std::string text = std::to_string(seed) + "/" + id;
  std::seed_seq words(text.begin(), text.end());
  dice_.seed(words);
  backend_ = chance(dice_, 25) ? "reference" : "cpu";
}

// Calls attempt(whole) with a growing percentage of unsharded names until no documented refusal is
// raised. Without sharded names there is none.
template <class F> auto MeshCase::trial(F attempt) {
  for (int unsharded = 20;; unsharded += 10) {
    ++tally_.trials;
    try {
      return attempt(unsharded);
    } catch (const Error& e) {
      const std::string text = e.what();
      const auto words = std::find_if(std::begin(documented), std::end(documented),
                                      [&](const char* d) { return text.find(d) != text.npos; });
      if (words == std::end(documented) || unsharded > 100) throw;
      ++tally_.refused[*words];
    }
  }
}

Problems MeshCase::check(const Group& g, const Value& c, const Op& op) {
  const Recorded r = recorded(g, c, op);
  return trial([&](int unsharded) {
    const Trial t = drawn_trial(dice_, r, unsharded);
    how_ = shown(t, r);
    return run(t, r, g, c, op);
  });
}

Arrays MeshCase::call(const Op& op, const Arrays& inputs, const Value& args) {
  return trial([&](int unsharded) {
    const Mesh mesh = drawn_mesh(dice_);
    const std::vector<Axes> all = axes_of_each(inputs);
    NameSet names = names_of(all);
    add_names(names, args);
    const Mapping mapping = drawn_mapping(dice_, mesh, names, all, unsharded);
    how_ = "mesh " + to_string(mesh) + ", everywhere " + to_string(mapping);
    return named_jit([&](const Arrays& in) { return op(in, args); },
                     {.mesh = mesh, .axis_resources = mapping})(inputs);
  });
}

Problems MeshCase::train(const Group& g, const Value& c, const std::string& backend) {
  const auto of = [](std::initializer_list<const char*> names) {
    Axes axes;
    for (const char* n : names) axes.emplace_back(n, 1);
    return axes;
  };
  const std::vector<Axes> parameters{of({"vocab", "embed"}), of({"position", "embed"}),
                                     of({"layers", "embed", "mlp"}),
                                     of({"layers", "embed", "qkv", "heads", "head_size"})};
  const std::vector<Axes> inside{
      of({"batch", "position", "embed"}), of({"batch", "position", "qkv", "heads", "head_size"}),
      of({"batch", "heads", "position", "key_position"}), of({"batch", "position", "mlp"}),
      of({"batch", "position", "vocab"})};
  return trial([&](int unsharded) {
    Variant v{.most_steps = 2};
    v.vmap = chance(dice_, 50);
    v.chunked = chance(dice_, 50);
    const Mesh mesh = drawn_mesh(dice_);
    auto mapping = [&](const std::vector<Axes>& arrays) {
      return drawn_mapping(dice_, mesh, names_of(arrays), arrays, std::max(unsharded, 50));
    };
    v.layout = Layout{mesh, mapping(parameters), mapping(inside)};
    how_ = "mesh " + to_string(mesh) + ", parameters " + to_string(v.layout->parameters) +
           ", inside " + to_string(v.layout->inside) + (v.vmap ? ", vmap" : "") +
           (v.chunked ? ", chunked" : "");
    return run_gpt2(g, c, v, backend).problems;
  });
}

}  // namespace golden
