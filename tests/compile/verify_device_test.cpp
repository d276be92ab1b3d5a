// Calls of a device, and what it has of a pending sum, against what the plan says.
#include "support/planned.h"

#include "ops/collective.h"

using namespace haliax;
using namespace haliax::partitioning;

namespace {

const Axis A{"a", 4};
const Mesh mesh{{{"data", 2}, {"model", 2}}};

// Of x, which the devices have as `has`, device 1 makes `made` from its own `mine`; the plan says that hop.
std::string on_device(const NodePtr& x, const Sharding& has, const Sharding& is, const Hop& hop, const NodePtr& mine,
                      const NodePtr& made) {
  Whole whole({x}, {{}}, mesh);
  Plan p;
  p.bodies.emplace_back();
  Version v{.kind = Version::Kind::hop, .node = whole.find(x.get()), .at = is, .in = {0}, .live = true};
  v.hop = hop;
  p.versions = {{.kind = Version::Kind::given, .node = v.node, .at = has, .live = true}, v};
  p.roots = {1};
  return message_of([&] { verify_device(p, whole, 1, {mine, made}, "a pass"); });
}
bool found(const std::string& text, const char* part) { return text.find(part) != text.npos; }

}  // namespace

TEST_CASE("verify finds calls that are not those of the plan") {
  using program::Wire;
  auto x = array({A}), mine = array({A});
  Sharding pending;
  pending.pend(1, Monoid::max);
  const Hop hop{Hop::Kind::all_reduce, {}, {1}, {}, 8};
  auto with = [&](auto change) {
    Wiring w;
    w.number = 1, w.how.over = {1}, w.how.ranks = 2, w.how.monoid = Monoid::max, w.how.size = {0};   // an all_reduce
    w.out = {{A}}, w.along = {{}};
    Nodes sent{mine};
    change(w, sent);
    return on_device(x, pending, {}, hop, mine, collective_result(make_collective(sent, w), 0));
  };
  CHECK(with([](Wiring&, Nodes&) {}) == "");
  CHECK(with([](Wiring&, Nodes& sent) { sent[0] = prim::barrier(sent[0], prim::number(0, DType::f32)); }) == "");
  CHECK(found(with([](Wiring& w, Nodes&) { w.how.monoid = Monoid::sum; }), "on device 1: its call folds by another monoid"));
  CHECK(found(with([](Wiring& w, Nodes&) { w.how.over = {0}; }), "its call is of other devices"));
  CHECK(found(with([](Wiring& w, Nodes&) { w.how.over = {0, 1}, w.how.ranks = 4; }), "its call is of other devices"));
  CHECK(found(with([](Wiring& w, Nodes&) { w.how.ranks = 4; }), "its call is of other devices"));
  CHECK(found(with([](Wiring& w, Nodes&) { w.how.wire = Wire::all_gather; }), "its call is another collective"));
  CHECK(found(with([](Wiring& w, Nodes&) { w.along = {Name("a")}; }), "its call goes along another axis"));
  CHECK(found(with([](Wiring&, Nodes& sent) { sent[0] = array({A}); }), "its call is of another array"));
  CHECK(found(on_device(x, pending, {}, hop, mine, mine), "it is sent in no call"));
}

TEST_CASE("verify finds a pending value that not the first device has") {
  auto x = array({A}), mine = array({A});
  auto nothing = prim::barrier(prim::filled(0, DType::f32, {A}), mine);
  auto pended = [&](int over, const NodePtr& made) {   // device 1 is the first along axis 0, and the second along axis 1
    Sharding at;
    at.pend(over, Monoid::sum);
    return on_device(x, {}, at, {Hop::Kind::pend, at, {over}, {}, 0}, mine, made);
  };
  CHECK(pended(0, mine) == "");
  CHECK(pended(1, nothing) == "");
  CHECK(found(pended(0, nothing), "it is the first, and has nothing"));
  CHECK(found(pended(1, mine), "it is not the first, and has a value"));
}
