// Planted faults of single steps, one for each rule of the verifier: legal steps pass, and each
// fault is found and named.
#include <doctest/doctest.h>

#include "compile/memory/memory.h"
#include "program/legality.h"
#include "support/raises.h"
#include "support/verified.h"

using namespace haliax;

namespace {

using program::Code;
using program::Instr;
using program::Operand;
using program::Program;
using program::Step;
using program::View;
using program::CollectiveKind;

const Program on_mesh = [] {
  Program p;
  p.mesh = {2, 3};
  return p;
}();
std::string fault(const Step& s) { return fault_of(s, on_mesh); }
View view(DType d) { return {0, d, 0, {1}, {}}; }
Instr load(DType d, bool inner = false) {
  return {.code = Code::load, .dtype = d, .inner = inner, .view = view(d)};
}
Instr op(Code c, DType d, int a = -1, int b = -1, int e = -1, bool inner = false) {
  return {.code = c, .dtype = d, .args = {a, b, e, -1}, .inner = inner};
}
std::string in_fused(std::vector<Instr> code) {
  Step s;
  s.fused = {.dims = {4, 4}, .outer = 1, .code = std::move(code)};
  return fault(s);
}
Operand operand(program::Dims dims, DType d = DType::f32) { return {std::move(dims), view(d)}; }
// A collective over the first mesh axis, which has two devices.
Step sends(CollectiveKind wire, Operand x, Operand out, std::int64_t size = 0) {
  Step s;
  s.kind = program::Kind::collective;
  auto& c = s.collective;
  c.kind = wire;
  c.over = {0};
  c.ranks = 2;
  c.x = {std::move(x)};
  c.out = {std::move(out)};
  c.dim = {0};
  c.size = {size};
  return s;
}

}  // namespace

TEST_CASE("verify finds a step's faults: instructions") {
  const auto f = DType::f32;
  const auto b = DType::boolean;
  CHECK(in_fused({load(f, true), op(Code::reduce_sum, f, 0), op(Code::neg, f, 1)}) == "");
  CHECK(in_fused({load(f), op(Code::less, b, 0, 0), op(Code::select, f, 1, 0, 0),
                  op(Code::is_nan, b, 0)}) == "");
  CHECK(in_fused({load(f), op(Code::cast, DType::i32, 0), load(f, true),
                  op(Code::reduce_argmax, DType::i32, 2)}) == "");
  CHECK(in_fused({load(f), op(Code::neg, f, 2), load(f)}) == "instruction 1 reads instruction 2");
  CHECK(in_fused({load(f), op(Code::neg, f, 9)}) == "instruction 1 reads instruction 9");
  CHECK(in_fused({load(f), op(Code::add, f, 0)}) == "instruction 1 reads instruction -1");
  CHECK(in_fused({load(f, true), op(Code::neg, f, 0)}) ==
        "instruction 1 is outer, but reads inner instruction 0");
  CHECK(in_fused({load(f), load(DType::i32), op(Code::add, f, 0, 1)}) ==
        "operand 1 of instruction 2 is i32, expected f32");
  CHECK(in_fused({load(f), load(DType::i32), op(Code::less, b, 0, 1)}) ==
        "operand 1 of instruction 2 is i32, expected f32");
  CHECK(in_fused({load(f), op(Code::less, f, 0, 0)}) == "instruction 1 is f32, expected bool");
  CHECK(in_fused({load(f), op(Code::select, f, 0, 0, 0)}) ==
        "operand 0 of instruction 1 is f32, expected bool");
  CHECK(in_fused({load(f), op(Code::threefry0, f, 0, 0, 0)}) ==
        "instruction 1 reads instruction -1");
  auto store = op(Code::store, f, 0);
  store.view = view(DType::bf16);
  CHECK(in_fused({load(f), store}) == "instruction 1 is bf16, expected f32");
}

TEST_CASE("verify finds a step's faults: dtypes of copies, indices, and flags") {
  Step s;
  s.kind = program::Kind::copy;
  s.copy = {{4}, view(DType::f32), view(DType::f32)};
  CHECK(fault(s) == "");
  s.copy.out.dtype = DType::bf16;
  CHECK(fault(s) == "it produces bf16 from f32");
  s = {.kind = program::Kind::gather};
  s.gather.indexed = {{view(DType::i32), 1, 4}};
  CHECK(fault(s) == "");
  s.gather.indexed[0].ids.dtype = DType::f32;
  CHECK(fault(s) == "its ids are f32");
  s = {.kind = program::Kind::scatter};
  s.scatter.indexed = {{view(DType::bf16), 1, 4}};
  CHECK(fault(s) == "its ids are bf16");
  s = {.kind = program::Kind::cumulative};
  s.cumulative.x = view(DType::f32);
  s.cumulative.out = view(DType::f64);
  CHECK(fault(s) == "it produces f64 from f32");
  s = {.kind = program::Kind::sort};
  s.sort.x = view(DType::f32);
  CHECK(fault(s) == "");
  s.sort.out = view(DType::f64);
  CHECK(fault(s) == "it produces f64 from f32");
  s = {.kind = program::Kind::conditional};
  s.conditional.flag = view(DType::boolean);
  CHECK(fault(s) == "");
  s.conditional.flag = view(DType::f32);
  CHECK(fault(s) == "its flag is f32");
}

TEST_CASE("verify finds a step's faults: loops") {
  Step s;
  s.kind = program::Kind::loop;
  Program p;
  CHECK(fault_of(s, p) == "its loop variable is 0, but the Program has 0");
  p.loops = 1;
  CHECK(fault_of(s, p) == "");
  s.loop.variable = -1;
  CHECK(fault_of(s, p) == "its loop variable is -1, but the Program has 1");
}

TEST_CASE("verify finds a step's faults: collectives") {
  CHECK(fault(sends(CollectiveKind::all_reduce, operand({4}), operand({4}))) == "");
  CHECK(fault(sends(CollectiveKind::all_gather, operand({3}), operand({5}), 5)) == "");
  CHECK(fault(sends(CollectiveKind::reduce_scatter, operand({5}), operand({2}), 5)) == "");
  CHECK(fault(sends(CollectiveKind::all_reduce, operand({4}), operand({2}))) ==
        "array 0 is (4), but is received as (2)");
  CHECK(fault(sends(CollectiveKind::all_gather, operand({4}), operand({5}), 5)) ==
        "array 0 is (4), but is received as (5)");
  CHECK(fault(sends(CollectiveKind::reduce_scatter, operand({5, 2}), operand({2, 1}), 5)) ==
        "array 0 is (5, 2), but is received as (2, 1)");
  CHECK(fault(sends(CollectiveKind::all_reduce, operand({4}), operand({4}, DType::bf16))) ==
        "it produces bf16 from f32");
  auto s = sends(CollectiveKind::all_reduce, operand({4}), operand({4}));
  s.collective.over = {2};
  CHECK(fault(s) == "the mesh has no axis with index 2");
  s.collective.over = {0, 0};
  CHECK(fault(s) == "mesh axis 0 is used twice");
  s.collective.over = {0, 1};
  CHECK(fault(s) == "it has 2 devices, but its mesh axes have 6");
  s.collective.ranks = 6;
  s.collective.out.clear();
  CHECK(fault(s) == "it produces 0 arrays from 1");
  auto exchange = sends(CollectiveKind::exchange, operand({4, 4}), operand({2, 2}));
  exchange.collective.sends = {{1, 0, {3, 2}, {2, 2}, {-1, 1}}};
  exchange.collective.receives = {{1, 0, {0, 0}, {2, 2}, {}}};
  CHECK(fault(exchange) == "");
  auto other = exchange;
  other.collective.sends[0].start[1] = 3;
  CHECK(fault(other) ==
        "a box at (3, 3) of (2, 2) reaches outside of the sent arrays of shape (4, 4)");
  other.collective.sends[0].dims = {2, 0};
  CHECK(fault(other) == "");
  other = exchange;
  other.collective.receives[0].start = {1, 0};
  CHECK(fault(other) ==
        "a box at (1, 0) of (2, 2) reaches outside of the received arrays of shape (2, 2)");
  other = exchange;
  other.collective.skip_flag = program::SkipFlag::unread;
  CHECK(fault(other) == "no flag follows its arrays");
  other.collective.x.push_back(operand({}));
  CHECK(fault(other) == "its flag is f32");
  other.collective.x.back().view.dtype = DType::boolean;
  CHECK(fault(other) == "");
  other.collective.sends[0].array = 1;
  other.collective.sends[0].start = other.collective.sends[0].dims = {};
  CHECK(fault(other) == "its flag is sent");
  other.collective.kind = CollectiveKind::all_gather;
  CHECK(fault(other) == "it may skip transfers, but is no all-to-all");
  other = exchange;
  other.collective.skip_flag = program::SkipFlag::rows;
  CHECK(fault(other) == "no counts of its rows follow its array");
  other.collective.x.push_back(operand({4}));
  CHECK(fault(other) == "no counts of its rows follow its array");
  other.collective.x.back().view.dtype = DType::i64;
  CHECK(fault(other) == "");
  other.collective.x.back() = operand({3});
  other.collective.x.back().view.dtype = DType::i64;
  CHECK(fault(other) == "no counts of its rows follow its array");
  other = exchange;
  other.collective.receives[0].array = 1;
  CHECK(fault(other) == "it has no array 1 of the received arrays");
  other = exchange;
  other.collective.receives = {{1, 0, {0, 0}, {2, 1}, {}}, {2, 0, {0, 1}, {2, 1}, {}}};
  CHECK(fault(other) == "");
  other.collective.receives[1].start = {1, 0};
  other.collective.receives[1].dims = {1, 2};
  CHECK(fault(other) == "received boxes at (0, 0) and (1, 0) overlap");
}
