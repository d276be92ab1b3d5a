// Wraps: the value of in[0], and a word to a transform or a pass. kCustomVjp is in graph/loop.cpp,
// kLogsumexp in named_reduce.cpp.
#include "ops/attr.h"

namespace haliax::prim {

const Op kBarrier{
    .name = "barrier", .kind = Kind::wrap, .linear = Linear::moves, .grad = [](G, G g) {
      return Nodes{g, nullptr};
    }};
const Op kPin{.name = "shard", .kind = Kind::wrap, .grad = [](G, G g) { return Nodes{g}; }};
const Op kTracer{.name = "tracer", .kind = Kind::wrap, .linear = Linear::moves, .grad = [](G, G g) {
                   return Nodes{g};
                 }};

// A cotangent enters where a value leaves.
const Op kEnter{.name = "enter", .kind = Kind::wrap, .linear = Linear::moves, .grad = [](G o, G g) {
                  return Nodes{leave(g, o->attr)};
                }};
const Op kLeave{.name = "leave", .kind = Kind::wrap, .linear = Linear::moves, .grad = [](G o, G g) {
                  return Nodes{enter(g, o->attr)};
                }};

namespace {
NodePtr border(const Op& op, G x, const Attr& region) {
  auto walked = walked_axis(region);
  auto* axis = find(*x, walked.name);
  return axis && *axis == walked ? make(op, {x}, x->axes, x->dtype, region) : x;
}
}  // namespace
const Op kAwaited{
    .name = "awaited", .kind = Kind::wrap, .linear = Linear::moves, .grad = [](G o, G g) {
      return Nodes{barrier(g, o)};
    }};

NodePtr enter(G x, const Attr& region) { return border(kEnter, x, region); }
NodePtr leave(G x, const Attr& region) { return border(kLeave, x, region); }
NodePtr tracer(G x, Name path) {
  At here;
  if (path) context().origin.module = path;
  // like no other node
  return make(kTracer, {x}, x->axes, x->dtype, {.payload = std::make_shared<Payload>()});
}
NodePtr barrier(G x, G after) { return make(kBarrier, {x, after}, x->axes, x->dtype); }
NodePtr awaited(G x) { return make(kAwaited, {x}, x->axes, x->dtype); }
NodePtr pin(G x, std::shared_ptr<const Mapping> mapping, const char* by) {
  auto p = std::make_shared<Pin>();
  p->mapping = std::move(mapping);
  p->by = by;
  return make(kPin, {x}, x->axes, x->dtype, {.payload = p});
}

namespace {
const bool wraps_registered =
    register_ops({&kBarrier, &kPin, &kTracer, &kEnter, &kLeave, &kAwaited});
}  // namespace
}  // namespace haliax::prim
