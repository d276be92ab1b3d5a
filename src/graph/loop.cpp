// Loop nodes and custom-gradient nodes: construction, operands and results.
#include "graph/loop.h"

#include <unordered_set>

#include "graph/traversal.h"

namespace haliax {

const Op kLoop{.name = "loop", .kind = Kind::loop};
const Op kResult{.name = "result", .kind = Kind::result};
const Op kCustomVjp{.name = "custom_vjp", .kind = Kind::wrap};

namespace {

bool is_index(const Node& n) { return n.in.empty() && n.varies_with(&n); }
bool is_cheap(const Op& op) { return op.kind == Kind::map ? !is_expensive(op.code) : op.cheap; }

}  // namespace

std::vector<const Node*> Loop::held() const {
  std::vector<const Node*> out;
  auto add = [&](NodeRef n) {
    if (n) out.push_back(n.get());
  };
  for (auto& n : index) add(n);
  for (auto& r : results) {
    for (auto& v : r.value) add(v);
    add(r.start);
    add(r.carry);
  }
  return out;
}

const Loop& loop_of(const Node& n) {
  return static_cast<const Loop&>(*(n.op == &kResult ? *n.in[0] : n).attr.payload);
}

LoopOrigin origin_of(const Loop& l) { return IndexAttr::of(*l.index[0]).origin; }
const LoopResult* condition_of(const Loop& l) {
  auto found = std::find_if(l.results.begin(), l.results.end(),
                            [](const LoopResult& r) { return r.is_condition; });
  return found == l.results.end() ? nullptr : &*found;
}
std::int64_t trips(const Loop& l, std::size_t body) {
  auto index = IndexAttr::of(*l.index[body]);
  return body == 0 ? index.axis.size / index.chunk : 1;
}

Nodes values_of(const Loop& l, std::size_t body) {
  Nodes out;
  for (auto& r : l.results) out.push_back(r.value[body]);
  return out;
}

bool varies_in(const Node& n, const Loop& l, std::size_t body) {
  return n.varies_with(l.index[0].get()) || n.varies_with(l.index[body].get());
}

bool is_generated(NodeRef root) {
  int budget = 12;
  Nodes todo{root};
  while (!todo.empty()) {
    auto n = todo.back();
    todo.pop_back();
    if (--budget < 0 || !is_cheap(*n->op)) return false;
    append(todo, n->in);
  }
  return true;
}

bool is_iteration_slice(const Node& n, const Node& index) {
  if (n.op->kind != Kind::view || n.in.size() < 2 || n.in[1].get() != &index) return false;
  const Axis own = IndexAttr::of(index).axis;
  const Axis* axis = find(*n.in[0], own.name);
  return axis && axis->size == own.size &&
         n.attr == SliceAttr{.axis = own.name, .drop = true}.attr();
}

LoopInputs inputs_of(const Loop& l) {
  struct Listed {
    Nodes& nodes;
    std::unordered_set<const Node*> known = {};
    void add(NodeRef n) {
      if (known.insert(n.get()).second) nodes.push_back(n);
    }
  };
  LoopInputs out;
  Listed slices{out.slices}, invariants{out.invariants};  // a node may be in both lists
  for (std::size_t b = 0; b < l.index.size(); ++b) {
    traverse(values_of(l, b), [&](NodeRef n, PendingNodes& todo) {
      auto& in = n->in;
      if (!varies_in(*n, l, b)) {
        // the index of an outer loop, which is equal in all iterations of this one
        if (is_index(*n)) return invariants.add(n);
        if (n->op->kind == Kind::leaf && n->op->cheap) return;
        if (is_generated(n))
          append(todo, in);
        else
          invariants.add(n);
      } else if (n->op->kind == Kind::view && in.size() > 1 && in[1] == l.index[b] &&
                 !varies_in(*in[0], l, b) && (!l.drop || is_iteration_slice(*n, *l.index[b]))) {
        slices.add(in[0]);
      } else if (n->op->kind != Kind::leaf) {
        append(todo, in);
      }
    });
  }
  sort_by_age(out.slices);
  sort_by_age(out.invariants);
  return out;
}

std::size_t add_result(Loop& l, const LoopResult& r) {
  auto same = std::find(l.results.begin(), l.results.end(), r);
  auto k = std::size_t(same - l.results.begin());
  if (k == l.results.size()) l.results.push_back(r);
  return k;
}
NodePtr make_loop(Loop l) {
  auto found = inputs_of(l);
  Nodes in = found.slices;
  auto add = [&](NodeRef n) {
    if (std::find(in.begin(), in.end(), n) == in.end()) in.push_back(n);
  };
  for (auto& n : found.invariants) add(n);
  for (auto& r : l.results)
    if (r.start) add(r.start);
  return make(kLoop, in, {}, DType::f32,
              {.names = {l.axis.name}, .payload = std::make_shared<Loop>(std::move(l))});
}

NodePtr loop_result(NodeRef loop, std::size_t k) {
  auto& l = loop_of(*loop);
  auto& r = l.results[k];
  Axes axes = r.value[0]->axes;
  if (r.kind == ResultKind::stack) {
    if (l.drop)
      axes.insert(axes.begin(), l.axis);
    else
      for (auto& a : axes)
        if (a.name == l.axis.name) a.size = l.axis.size;
  } else if (r.carry) {
    axes = r.carry->axes;
  }
  return make(kResult, {loop}, axes, r.value[0]->dtype, {.ints = {std::int64_t(k)}});
}

NodePtr make_custom_vjp(Nodes operands, std::shared_ptr<const CustomVjp> c) {
  return make(kCustomVjp, std::move(operands), {}, DType::f32, {.payload = std::move(c)});
}
NodePtr custom_vjp_result(NodeRef custom, std::size_t k) {
  auto& of = custom->in[k];
  return make(kResult, {custom}, of->axes, of->dtype, {.ints = {std::int64_t(k)}});
}

}  // namespace haliax
