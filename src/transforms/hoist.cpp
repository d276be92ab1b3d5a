#include "transforms/hoist.h"

#include "ops/attr.h"
#include "ops/prim.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

// limits of the values that are materialized, in bytes: per iteration and in total
constexpr std::int64_t most_in_iteration = 128 << 10, most = 64 << 20;

}  // namespace

Nodes with_hoisted_contractions(const Nodes& created, NodeRef index, const Axis& axis) {
  auto in_body = [&](const Node& n) { return n.varies_with(index.get()); };
  Rewrite to;
  traverse(created, in_body, [&](NodeRef n, PendingNodes& todo) {
    add_reads(n, todo);
    if (n->op->kind != Kind::contract || n->bytes() > most_in_iteration ||
        n->bytes() * axis.size > most)
      return;
    for (std::size_t k : {0, 1}) {
      auto &slice = n->in[k], &other = n->in[1 - k];
      const bool scanned = is_slice_at(*slice, index.get()) && !in_body(*slice->in[0]);
      if (!scanned || in_body(*other) || find(*other, axis.name)) continue;
      OriginScope due(n->origin);
      Nodes in{other, other};
      in[k] = slice->in[0];
      auto all = prim::rebuilt(*n, in, joined({axis}, n->axes));
      to[n.get()] = prim::fit(prim::slice_at(all, index, true), n->axes);
      return;
    }
  });
  return to.empty() ? created : substitute(created, to);
}

}  // namespace haliax
