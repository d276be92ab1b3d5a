#include "ops/collective.h"

#include <algorithm>

namespace haliax {

const Op kCollective{.name = "collective", .kind = Kind::step, .lower = [](const Node& n, Emit&) {
  fail_at(n.origin, "lower", "a collective has results of its own");
}};

NodePtr make_collective(Nodes x, Wiring w) {
  return make(kCollective, std::move(x), {}, DType::f32, {.payload = std::make_shared<Wiring>(std::move(w))});
}
NodePtr collective_result(const NodePtr& c, std::size_t k) {
  auto& w = wiring_of(*c);
  auto dtype = w.ranks > 0 ? w.dtype : c->in[std::min(k, c->in.size() - 1)]->dtype;
  return make(kResult, {c}, w.out[k], dtype, {.ints = {std::int64_t(k)}});
}

}  // namespace haliax
