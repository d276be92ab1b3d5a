// Builds the sequence of a Program; see sequence.h.
#include "sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "../kernels/nest.h"

namespace haliax::cuda {
namespace {

using namespace program;

// Returns a launch that computes the flag of a conditional: true if its condition and the flag of
// the enclosing conditional are true.
Launch compute_flag(const View& condition, int around, int flag) {
  SourceWriter w;
  auto base = w.base(condition), at = w.at(condition, {}),
       to = w.argument(KernelArgument{kFlagSlot, flag, {}, true});
  auto value = "load<bool>(" + base + ", " + at + ")";
  if (around >= 0)
    value += " && load<bool>(" + w.argument(KernelArgument{kFlagSlot, around}) + ", 0)";
  w.line("store<bool>(" + to + ", 0, " + value + ");");
  auto out = w.launch(1);
  out.threads = 1;
  return out;
}

// Returns a launch that sets the condition of a conditional node instead.
Launch set_condition(const View& condition) {
  SourceWriter w;
  auto base = w.base(condition), at = w.at(condition, {}), handle = w.argument(0);
  w.line(fmt::format("{}({}, load<bool>({}, {}));", kSetCondition, handle, base, at));
  auto out = w.launch(1);
  out.threads = 1;
  out.source = fmt::format("extern \"C\" __device__ void {}(unsigned long long, unsigned);\n",
                           kSetCondition) +
               out.source;
  return out;
}

class SequenceMaker {
 public:
  SequenceMaker(const Program& p, std::int64_t shared_limit, SequenceOptions o)
      : program_(p), shared_limit_(shared_limit), options_(o) {
    // Repeated until no further matmul needs the shadow. An unguarded matmul may write to its
    // result only if all accesses to the result are in its conditional.
    for (bool changed = true; changed;) {
      out = {};
      around_.clear();
      unguarded_.clear();
      touched_.assign(p.slots.size(), {});
      out.items = items_of(p.steps, -1);
      record_accesses(out.items);
      changed = false;
      for (auto& [step, flag] : unguarded_)
        if (!stays_inside(step->contract.out.slot, flag)) changed |= shadowed_.insert(step).second;
    }
  }
  Sequence out;

 private:
  // ---- accesses in conditionals: slot -> flags of these conditionals ----
  void touch(int slot, int flag) {
    if (slot < 0) return;
    touched_[std::size_t(program_.memory(slot))].insert(flag);
  }
  void touch(const View& v, int flag) {
    touch(v.slot, flag);
    for (auto& t : v.terms) touch(t.slot, flag);
  }
  void record_accesses(const std::vector<Item>& items) {
    for (auto& i : items) {
      for (auto& w : i.launch.arguments) touch(w.slot, i.flag);
      for (auto& m : i.messages) touch(m.at.slot, i.flag);
      if (i.kind == Item::Kind::host)
        for (auto& a : i.step->host.arrays) touch(a.view, i.flag);
      record_accesses(i.body);
    }
  }
  bool stays_inside(int slot, int flag) const {
    slot = program_.memory(slot);
    if (program_.slot(slot).home != Home::arena) return false;
    auto inside = [&](int f) {
      while (f >= 0 && f != flag) f = around_[std::size_t(f)];
      return f == flag;
    };
    auto& all = touched_[std::size_t(slot)];
    return std::all_of(all.begin(), all.end(), inside);
  }

  std::vector<Item> items_of(const std::vector<Step>& steps, int flag) {
    std::vector<Item> items;
    for (auto& s : steps) {
      Item i{.step = &s, .flag = flag};
      switch (s.kind) {
        case Kind::loop:
          if (s.loop.parallel_slots > 0) {
            i.launch = nest_launch(s, program_, shared_limit_, options_.marks);
            if (flag >= 0) i.launch = guarded(std::move(i.launch), {kFlagSlot, flag});
          } else {
            i.kind = Item::Kind::loop;
            i.body = items_of(s.body, flag);
          }
          items.push_back(std::move(i));
          break;
        case Kind::conditional:
          conditional(items, s, flag);
          break;
        case Kind::host:
          if (s.host.once && program_.device > 0) break;
          i.kind = Item::Kind::host;
          out.needs_host = true;
          items.push_back(std::move(i));
          break;
        case Kind::finish:
          break;  // steps that access the collective's arrays wait for it
        case Kind::collective:
          i.kind = Item::Kind::collective;
          i.body = parts(s, flag);
          out.communicates = true;
          out.needs_host |= flag >= 0;
          items.push_back(std::move(i));
          break;
        default:
          add(items, s, s, flag);
      }
    }
    return items;
  }
  void conditional(std::vector<Item>& items, const Step& s, int flag) {
    Item i{.step = &s, .flag = flag};
    if (options_.conditional_nodes) {
      i.kind = Item::Kind::conditional;
      i.launch = set_condition(s.conditional.flag);
      i.body = items_of(s.body, flag);
      return items.push_back(std::move(i));
    }
    const int mine = out.flags++;
    i.launch = compute_flag(s.conditional.flag, flag, mine);
    items.push_back(std::move(i));
    around_.push_back(flag);
    for (auto& inner : items_of(s.body, mine)) items.push_back(std::move(inner));
  }
  void add(std::vector<Item>& items, const Step& what, const Step& of, int flag) {
    if (shadowed_.count(&what) > 0) return add_shadow(items, what, flag);
    for (auto& l : launches_of(what, nullptr, shared_limit_)) {
      Item i{
          .kind = l.product ? Item::Kind::product : Item::Kind::launch, .step = &of, .flag = flag};
      if (l.product && flag >= 0 && &what == &of) unguarded_.insert({&what, flag});
      i.launch = flag < 0 || l.product ? std::move(l) : guarded(std::move(l), {kFlagSlot, flag});
      out.multiplies |= i.launch.product.has_value();
      items.push_back(std::move(i));
    }
  }
  // Computes the matmul in the shadow memory, and copies it from there: out = (accumulate ? out :
  // 0) + shadow, rounded once.
  void add_shadow(std::vector<Item>& items, const Step& s, int flag) {
    auto& c = s.contract;
    Dims dims = c.batch;
    for (auto* part : {&c.m, &c.n}) dims.insert(dims.end(), part->begin(), part->end());
    const auto d = is_float(c.out.dtype) && c.out.dtype != DType::f64 ? DType::f32 : c.out.dtype;
    Step product = s;
    product.contract.accumulate = false;
    product.contract.out = {kShadowSlot, d, 0, row_major(dims), {}};
    const View from = product.contract.out;
    product.contract.out.strides.resize(dims.size() + c.k.size());
    View to = c.out;
    to.strides.resize(dims.size());
    out.shadow_bytes = std::max(out.shadow_bytes, points(dims) * bytes_of(d));
    Step rest{.kind = Kind::fused};
    rest.fused.dims = dims;
    rest.fused.outer = int(dims.size());
    rest.fused.code.push_back({.code = Code::load, .dtype = d, .view = from});
    if (c.accumulate) {
      rest.fused.code.push_back({.code = Code::load, .dtype = d, .view = to});
      rest.fused.code.push_back({.code = Code::add, .dtype = d, .args = {1, 0, -1, -1}});
    }
    const int value = int(rest.fused.code.size()) - 1;
    rest.fused.code.push_back(
        {.code = Code::store, .dtype = to.dtype, .args = {value, -1, -1, -1}, .view = to});
    add(items, product, s, flag);
    add(items, rest, s, flag);
  }
  std::vector<Item> parts(const Step& s, int flag) {
    std::vector<Item> items;
    for (auto& part : parts_of(s, program_)) {
      if (part.messages.empty())
        add(items, part.step, s, -1);  // the host checks the flag
      else
        items.push_back(
            {.kind = Item::Kind::exchange, .step = &s, .messages = std::move(part.messages)});
    }
    for (auto& i : items) i.flag = flag;
    return items;
  }
  const Program& program_;
  const std::int64_t shared_limit_;
  const SequenceOptions options_;
  std::vector<int> around_;             // per flag, the flag of the enclosing conditional; -1: none
  std::vector<std::set<int>> touched_;  // by slot
  // Library matmuls in a conditional, with its flag. They run even if the flag is false.
  std::set<std::pair<const Step*, int>> unguarded_;
  std::set<const Step*> shadowed_;  // those that write to the shadow
};

}  // namespace

Sequence sequence_of(const Program& p, std::int64_t shared_limit, SequenceOptions o) {
  return SequenceMaker(p, shared_limit, o).out;
}

std::int64_t steps_in_graph(const std::vector<Item>& items) {
  std::int64_t sum = 0;
  for (auto& i : items) {
    if (i.kind == Item::Kind::loop)
      sum += i.step->loop.trips * steps_in_graph(i.body);
    else if (i.kind == Item::Kind::conditional)
      sum += 2 + steps_in_graph(i.body);  // 2: the kernel that sets the condition, and the node
    else
      sum += i.kind == Item::Kind::collective ? steps_in_graph(i.body) : 1;
  }
  return sum;
}

}  // namespace haliax::cuda
