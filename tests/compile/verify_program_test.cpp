// Planted faults of Programs, one for each rule of the verifier: legal Programs pass, and each
// fault is found and named.
#include <doctest/doctest.h>

#include "base/verify_error.h"
#include "compile/memory/memory.h"
#include "haliax/error.h"
#include "support/raises.h"
#include "support/verified.h"

using namespace haliax;

namespace {

using program::Program;

// Copies `elements` elements from the argument to the result.
Program copies(std::int64_t elements, std::int64_t offset = 0) {
  Program p;
  p.slots = {{16, program::Home::argument, 0}, {16, program::Home::result, 0}};
  p.arguments = p.results = 1;
  p.argument_slots = {0};
  p.result_slots = {1};
  program::Step s;
  s.kind = program::Kind::copy;
  s.op = "copy";
  s.copy = {{elements}, {0, DType::f32, 0, {1}, {}}, {1, DType::f32, offset, {1}, {}}};
  p.steps = {s};
  return p;
}
std::string in_program(const Program& p, bool placed = false) {
  return message_of([&] { verify(p, "a pass", placed); });
}
program::Step all_reduce(std::vector<int> over) {
  program::Step s;
  s.kind = program::Kind::collective;
  s.collective.over = std::move(over);
  return s;
}

// The same Program with two more slots, adjacent in the arena.
Program with_arena(std::int64_t bytes) {
  auto p = copies(4);
  p.slots.push_back({16});
  p.slots.push_back({16});
  p.slots[2].offset = 0;
  p.slots[3].offset = 64;
  p.arena_bytes = bytes;
  return p;
}
program::Step copy(int from, int to) {
  auto s = copies(4).steps[0];
  s.copy.x.slot = from;
  s.copy.out.slot = to;
  return s;
}

}  // namespace

TEST_CASE("verify finds a program's faults") {
  CHECK(in_program(copies(4)) == "");
  CHECK(reports(in_program(copies(5)),
                "a view reaches elements 0 to 4 of slot 0, which has 16 bytes"));
  CHECK(reports(in_program(copies(2, 3)),
                "a view reaches elements 3 to 4 of slot 1, which has 16 bytes"));
  CHECK(reports(in_program(copies(2, -1)), "a view reaches elements -1 to 0 of slot 1"));
  auto written_to = [](const program::View& out) {
    auto p = copies(4);
    p.steps[0].copy.out = out;
    return in_program(p);
  };
  CHECK(reports(written_to({7, DType::f32, 0, {1}, {}}), "slot 7 does not exist"));
  CHECK(reports(written_to({1, DType::f32, 0, {1, 1}, {}}), "a view has 2 strides for 1 dims"));
  auto p = copies(4);
  std::swap(p.steps[0].copy.x, p.steps[0].copy.out);
  CHECK(reports(in_program(p), "slot 1 is read before it is written"));
  p = copies(1);
  p.steps[0].copy.x.terms = {{.loop = 0, .stride = 1}};
  CHECK(reports(in_program(p), "a view uses the index of a loop that does not contain it"));
  program::Step loop;
  loop.kind = program::Kind::loop;
  loop.loop.trips = 5;
  loop.body = p.steps;
  p.steps = {loop};
  p.loops = 1;
  CHECK(reports(in_program(p), "a view reaches elements 0 to 4 of slot 0"));
  p.steps[0].loop.trips = 4;
  p.slots[1].bytes = 4;
  CHECK(in_program(p) == "");
  p.slots[1].bytes = 16;
  p.steps[0].loop.parallel_slots = 2;
  p.steps[0].body[0].copy.out.terms = {{.loop = 0, .stride = 1}};
  CHECK(in_program(p) == "");
  p.slots[1].bytes = 4;
  p.steps[0].body[0].copy.out.terms = {};
  CHECK(in_program(p).find("its iterations run in parallel, but access memory of each other") !=
        std::string::npos);
  p = copies(4);
  p.steps.clear();
  CHECK(message_of([&] { verify(p, "a pass", false); }).find("a result is never written") !=
        std::string::npos);
  p = copies(4);
  p.steps[0].scratch_bytes = 64;
  p.steps[0].scratch = 0;
  CHECK(in_program(p) == "");
  CHECK(reports(in_program(p, true), "its scratch memory is outside of the arena"));
  p.steps[0].scratch = 32;
  p.arena_bytes = 128;
  CHECK(reports(in_program(p, true), "its scratch memory is at offset 32, which is not aligned"));
}

TEST_CASE("verify finds memory that is overwritten before it is read") {
  auto p = with_arena(128);
  p.steps = {copy(0, 2), copy(0, 3), copy(2, 1)};
  CHECK(in_program(p, true) == "");
  p.slots[3].offset = 0;
  CHECK(in_program(p, false) == "");
  CHECK(reports(in_program(p, true), "slot 2 is read after slot 3 overwrote it"));
  p.slots[3].offset = 72;
  CHECK(reports(in_program(p, true), "slot 3 is at offset 72, which is not aligned"));
  p.steps = {copy(0, 2), copy(2, 3), copy(3, 1)};
  p.slots[3].offset = 0;
  CHECK(reports(in_program(p, true), "it writes slot 3, which shares bytes with slot 2"));
  p.steps = {copy(0, 2), copy(0, 3), copy(2, 1)};
  p.slots[3].offset = 64;
  p.steps[1].scratch_bytes = 64;
  p.steps[1].scratch = 0;
  CHECK(reports(in_program(p, true), "slot 2 is read after scratch memory overwrote it"));
  p.steps[1].scratch = 64;
  CHECK(reports(in_program(p, true), "its scratch memory overlaps slot 3, which it uses"));
}

TEST_CASE("verify finds a value that another value in the same memory overwrote") {
  auto p = with_arena(128);
  p.slots[3].offset = -1;
  p.slots[3].alias = 2;  // 3 shares the memory of 2
  p.steps = {copy(0, 2), copy(2, 1), copy(0, 3)};
  CHECK(in_program(p, true) == "");
  p.steps = {copy(0, 2), copy(0, 3), copy(3, 1)};
  CHECK(in_program(p, true) == "");
  p.steps = {copy(0, 2), copy(0, 3), copy(2, 1)};
  CHECK(reports(in_program(p, true), "slot 2 is read after slot 3 of the same memory was written"));
  p.slots[1].alias = 0;  // the result has the memory of an argument that is read later
  p.slots[3].alias = -1;
  p.slots[3].offset = 64;
  p.steps = {copy(0, 2), copy(2, 1), copy(0, 3)};
  CHECK(reports(message_of([&] { verify(p, "a pass", true, {true}); }),
                "slot 0 is read after slot 1 of the same memory was written"));
}

TEST_CASE("verify finds two elements of a step that write to one address") {
  auto p = copies(4);
  p.steps[0].copy.dims = {2, 2};
  // another order, each once
  for (auto* v : {&p.steps[0].copy.x, &p.steps[0].copy.out}) v->strides = {1, 2};
  CHECK(in_program(p) == "");
  p.steps[0].copy.x.strides = {1, 1};  // reading one address twice is legal
  CHECK(in_program(p) == "");
  p.steps[0].copy.out.strides = {1, 1};
  CHECK(reports(in_program(p), "two of its elements write one element of slot 1"));
}

TEST_CASE("verify finds a result that is written in part") {
  auto p = copies(3);
  CHECK(in_program(copies(4)) == "");
  CHECK(message_of([&] {
          verify(p, "a pass", false);
        }).find("12 bytes from 0 to 12 of result 0 are written, but it has 16") !=
        std::string::npos);
}

TEST_CASE("verify finds reads of memory that is written in part") {
  auto p = with_arena(128);
  auto part = [](std::int64_t size, std::int64_t at) {  // a part of the argument, into slot 2
    auto s = copies(size).steps[0];
    s.copy.out = {2, DType::f32, at, {1}, {}};
    return s;
  };
  p.steps = {part(2, 0), part(2, 2), copy(2, 1)};
  CHECK(in_program(p) == "");
  p.steps = {part(3, 0), copy(2, 1)};
  CHECK(reports(
      in_program(p),
      "4 elements from 0 to 3 of slot 2 are read, but only 12 bytes from 0 to 12 were written"));
  p.steps = {part(1, 0), part(1, 3), copy(2, 1)};
  CHECK(reports(
      in_program(p),
      "4 elements from 0 to 3 of slot 2 are read, but only 8 bytes from 0 to 16 were written"));
  program::Step loop;
  loop.kind = program::Kind::loop;
  loop.loop.trips = 4;
  loop.body = {part(1, 0)};
  loop.body[0].copy.out.terms = {{.loop = 0, .stride = 1}};
  p.steps = {loop, copy(2, 1)};
  p.loops = 1;
  for (bool placed : {false, true}) CHECK(in_program(p, placed) == "");
  p.steps[0].loop.trips = 3;
  CHECK(reports(
      in_program(p, true),
      "4 elements from 0 to 3 of slot 2 are read, but only 12 bytes from 0 to 12 were written"));
}

TEST_CASE("verify finds reads from memory that another slot occupies") {
  auto shared = [](std::vector<program::Step> steps) {
    auto p = with_arena(128);
    p.slots[3].alias = 2;
    p.steps = std::move(steps);
    return message_of([&] { verify_shared(p); });
  };
  const std::string fault =
      "[verify] copy after plan_memory: slot 2 is read after slot 3 overwrote it";
  CHECK(shared({copy(0, 2), copy(2, 1), copy(0, 3), copy(3, 1)}) == "");
  auto bad = with_arena(128);
  bad.slots[3].alias = 2;
  bad.steps = {copy(0, 2), copy(0, 3), copy(2, 1)};
  // a `VerifyError`, which no search catches
  CHECK_THROWS_AS(verify_shared(bad), VerifyError);
  CHECK(shared({copy(0, 2), copy(0, 3), copy(2, 1)}) == fault);
  auto loop_of = [](std::vector<program::Step> body) {
    program::Step s;
    s.kind = program::Kind::loop;
    s.loop.trips = 4;
    s.body = std::move(body);
    return s;
  };
  // A carry and its next value: the copy shows that both are equal.
  CHECK(shared({copy(0, 2), loop_of({copy(2, 1), copy(0, 3), copy(3, 2)}), copy(2, 1)}) == "");
  CHECK(shared({copy(0, 2), loop_of({copy(2, 1), copy(0, 3)})}) == fault);
  // Stripe by stripe: each iteration reads its own stripe before it writes there.
  auto stripe = [](int from, int to, std::int64_t step = 1) {
    auto s = copies(1).steps[0];
    s.copy.x = {from, DType::f32, step < 0 ? 3 : 0, {1}, {{.loop = 0, .stride = step}}};
    s.copy.out = {to, DType::f32, 0, {1}, {{.loop = 0, .stride = 1}}};
    return s;
  };
  CHECK(shared({copy(0, 2), loop_of({stripe(2, 1), stripe(0, 3)}), copy(3, 1)}) == "");
  CHECK(shared({copy(0, 2), loop_of({stripe(2, 3)}), copy(3, 1)}) == "");
  CHECK(shared({copy(0, 2), loop_of({stripe(0, 3), stripe(2, 1)})}) == fault);
  CHECK(shared({copy(0, 2), loop_of({stripe(2, 1, -1), stripe(0, 3)})}) == fault);
  CHECK(shared({copy(0, 2), loop_of({stripe(2, 1), stripe(0, 3)}), copy(2, 1)}) == fault);
  // Later iterations must not overwrite a result that iterations compute part by part.
  CHECK(shared({loop_of({copy(0, 2), stripe(2, 1), stripe(0, 3)}), copy(3, 1)}) ==
        "[verify] copy after plan_memory: slot 2 overwrites values of other iterations in slot 3");
}

TEST_CASE("verify finds slots that do not fit, and overwritten arguments") {
  auto p = copies(4);
  p.slots.push_back({.bytes = 16});
  p.slots[2].alias = 1;
  p.steps[0].copy.out.slot = 2;
  CHECK(in_program(p, true) == "");
  p.slots[2].bytes = 20;
  CHECK(reports(in_program(p, true), "slot 2 of 20 bytes aliases slot 1, which has 16"));
  p.slots[2].bytes = 16;
  for (int alias : {7, 2}) {
    p.slots[2].alias = alias;
    CHECK(reports(in_program(p, true), "slot 2 has no memory"));
  }
  p = copies(4);
  p.slots.push_back({.bytes = 16, .offset = 64});
  p.arena_bytes = 128;
  CHECK(in_program(p, true) == "");
  p.arena_bytes = 64;
  CHECK(reports(in_program(p, true), "a slot of 16 bytes at offset 64 is outside of the arena"));
  // The result may have the memory of a donated argument.
  p = copies(4);
  p.slots[1].alias = 0;
  CHECK(message_of([&] { verify(p, "a pass", true, {true}); }) == "");
  CHECK(reports(message_of([&] { verify(p, "a pass", true, {false}); }),
                "it overwrites argument 0, which is not donated"));
  CHECK(reports(in_program(p, true), "it overwrites argument 0, which is not donated"));
}

TEST_CASE("verify finds ids that exceed their table, and elements that no iteration writes") {
  using program::Kind;
  // out (2) of a table (4) at ids (2)
  auto picks = [](std::int64_t size, std::int64_t offset) {
    Program p;
    p.slots = {{16, program::Home::argument, 0},
               {8, program::Home::argument, 1},
               {8, program::Home::result, 0}};
    p.arguments = 2;
    p.results = 1;
    p.argument_slots = {0, 1};
    p.result_slots = {2};
    program::Step s;
    s.kind = Kind::gather;
    s.op = "take";
    s.gather = {{2},
                {0, DType::f32, offset, {0}, {}},
                {2, DType::f32, 0, {1}, {}},
                {{{1, DType::i32, 0, {1}, {}}, 1, size}}};
    p.steps = {s};
    return p;
  };
  CHECK(in_program(picks(4, 0)) == "");
  CHECK(in_program(picks(0, 0)) == "");
  CHECK(reports(in_program(picks(5, 0)),
                "a view reaches elements 0 to 4 of slot 0, which has 16 bytes"));
  CHECK(reports(in_program(picks(4, 1)),
                "a view reaches elements 1 to 4 of slot 0, which has 16 bytes"));
  auto p = picks(4, 0);
  p.slots[2].bytes = 16;  // the result is the target of the updates
  auto& s = p.steps[0];
  s.kind = Kind::scatter;
  s.scatter = {{2},
               {1, DType::f32, 0, {1}, {}},
               {2, DType::f32, 0, {0}, {}},
               {{{1, DType::i32, 0, {1}, {}}, 1, 4}}};
  auto start = copies(4).steps[0];
  start.copy.out.slot = 2;
  p.steps.insert(p.steps.begin(), start);
  CHECK(in_program(p) == "");
  p.steps[1].scatter.indexed[0].stride = 2;
  CHECK(reports(in_program(p), "a view reaches elements 0 to 6 of slot 2, which has 16 bytes"));
  p = copies(4);
  program::Step loop;
  loop.kind = Kind::loop;
  loop.loop.trips = 1;
  loop.body = p.steps;
  p.steps = {loop};
  p.loops = 1;
  CHECK(in_program(p) == "");
  p.steps[0].loop.trips = 0;
  CHECK(reports(in_program(p), "a result is never written"));
}

TEST_CASE("verify finds scratch over the arrays of an in-flight collective") {
  auto p = with_arena(192);
  p.mesh = {2};
  auto start = all_reduce({0});
  start.collective.ranks = 2;
  start.collective.x = {{{4}, {2, DType::f32, 0, {1}, {}}}};
  start.collective.out = {{{4}, {3, DType::f32, 0, {1}, {}}}};
  start.collective.call = 0;
  program::Step finish;
  finish.kind = program::Kind::finish;
  finish.finish.call = 0;
  p.steps = {copy(0, 2), start, copy(0, 1), finish, copy(3, 1)};
  auto with_scratch = [&](std::size_t step, std::int64_t at) {
    auto q = p;
    q.steps[step].scratch = at;
    q.steps[step].scratch_bytes = 64;
    return in_program(q, true);
  };
  CHECK(with_scratch(2, 128) == "");
  CHECK(with_scratch(4, 0) == "");
  CHECK(reports(with_scratch(2, 0),
                "its scratch memory overlaps slot 2, which unfinished collective 0 uses"));
  CHECK(reports(with_scratch(2, 64),
                "its scratch memory overlaps slot 3, which unfinished collective 0 uses"));
  auto without = [&](std::vector<program::Step> steps) {
    auto q = p;
    q.steps = std::move(steps);
    return in_program(q, true);
  };
  CHECK(without(p.steps) == "");
  CHECK(reports(without({copy(0, 2), start, copy(0, 1)}), "collective 0 is never finished"));
  CHECK(reports(without({copy(0, 2), start, start, finish, copy(3, 1)}),
                "slot 3 is written before collective 0 is finished"));
}

TEST_CASE("verify finds devices that issue different collectives") {
  Program a, b, c;
  a.steps = b.steps = {all_reduce({0}), all_reduce({1})};
  c.steps = {all_reduce({1}), all_reduce({0})};
  CHECK(message_of([&] { verify_collectives({&a, &b}); }) == "");
  CHECK(message_of([&] {
          verify_collectives({&a, &c});
        }).find("collective 0 of device 1 is all-reduce 1") != std::string::npos);
  b.steps[1].collective.monoid = program::Monoid::max;
  CHECK(message_of([&] {
          verify_collectives({&a, &b});
        }).find("collective 1 of device 1 is all-reduce") != std::string::npos);
  b.steps.pop_back();
  CHECK(message_of([&] {
          verify_collectives({&a, &b});
        }).find("collective 1 of device 1 is nothing") != std::string::npos);
  // In the iterations of a loop, or after them.
  auto loop_of = [](std::vector<program::Step> body) {
    program::Step s;
    s.kind = program::Kind::loop;
    s.loop.trips = 2;
    s.body = std::move(body);
    return s;
  };
  a.steps = {loop_of({all_reduce({0}), all_reduce({1})})};
  b.steps = {loop_of({all_reduce({0})}), all_reduce({1})};
  CHECK(message_of([&] {
          verify_collectives({&a, &b});
        }).find("collective 2 of device 1 is the end of the iterations") != std::string::npos);
  b.steps = {loop_of({all_reduce({1}), all_reduce({0})})};
  CHECK(message_of([&] {
          verify_collectives({&a, &b});
        }).find("collective 1 of device 1 is all-reduce 1") != std::string::npos);
}

// Two devices of data=2, and the messages that they send to each other.
TEST_CASE("verify finds collectives of devices that do not match") {
  using program::CollectiveKind;
  auto call = [](CollectiveKind wire, program::Dims x, program::Dims out, std::int64_t size,
                 DType dtype = DType::f32) {
    auto s = all_reduce({0});
    s.collective.kind = wire;
    s.collective.ranks = 2;
    s.collective.size = {size};
    s.collective.dim = {0};
    s.collective.x = {{std::move(x), {0, dtype, 0, {}, {}}}};
    s.collective.out = {{std::move(out), {1, dtype, 0, {}, {}}}};
    return s;
  };
  auto mismatch = [](const program::Step& first, const program::Step& second,
                     program::Dims mesh = {2}) {
    Program a, b;
    a.mesh = b.mesh = std::move(mesh);
    b.device = 1;
    a.steps = {first};
    b.steps = {second};
    return message_of([&] { verify_collectives({&a, &b}); });
  };
  auto sum = [&](program::Dims dims, DType d = DType::f32) {
    return call(CollectiveKind::all_reduce, dims, dims, 0, d);
  };
  CHECK(mismatch(sum({4, 3}), sum({4, 3})) == "");
  CHECK(has(mismatch(sum({4, 3}), sum({4, 2})),
            "collective 0 of device 1 is all-reduce of f32 (4, "
            "2), that of device 0 is all-reduce of f32 (4, 3)"));
  CHECK(has(mismatch(sum({4, 3}), sum({3, 4})), "collective 0 of device 1 is"));
  CHECK(has(mismatch(sum({4, 3}), sum({4, 3}, DType::bf16)),
            "collective 0 of device 1 is all-reduce of bf16 (4, 3)"));
  // On a mesh of 2 by 2, devices 0 and 1 differ along the second axis. They are in different groups
  // of a collective over the first axis.
  CHECK(mismatch(sum({4, 3}), sum({4, 2}), {2, 2}) == "");
  // Blocks of five are three and two.
  CHECK(mismatch(call(CollectiveKind::all_gather, {3, 2}, {5, 2}, 5),
                 call(CollectiveKind::all_gather, {2, 2}, {5, 2}, 5)) == "");
  CHECK(has(mismatch(call(CollectiveKind::all_gather, {3, 2}, {5, 2}, 5),
                     call(CollectiveKind::all_gather, {3, 2}, {6, 2}, 6)),
            "collective 0 of device 1 is"));
  CHECK(mismatch(call(CollectiveKind::reduce_scatter, {5, 2}, {3, 2}, 5),
                 call(CollectiveKind::reduce_scatter, {5, 2}, {2, 2}, 5)) == "");
  CHECK(has(mismatch(call(CollectiveKind::reduce_scatter, {5, 2}, {3, 2}, 5),
                     call(CollectiveKind::reduce_scatter, {6, 2}, {3, 2}, 6)),
            "collective 0 of device 1 is"));
  auto exchange = [&](int other, program::Dims send, program::Dims receive) {
    auto s = call(CollectiveKind::exchange, {4, 3}, {4, 3}, 0);
    s.collective.sends = {{other, 0, {0, 0}, std::move(send), {1, 1}}};
    s.collective.receives = {{other, 0, {0, 0}, std::move(receive), {1, 1}}};
    return s;
  };
  CHECK(mismatch(exchange(1, {2, 3}, {1, 3}), exchange(0, {1, 3}, {2, 3})) == "");
  CHECK(has(mismatch(exchange(1, {2, 3}, {1, 3}), exchange(0, {1, 3}, {1, 3})),
            "collective 0: device 0 sends f32 (2, 3) to device 1, which expects f32 (1, 3)"));
  auto twice = exchange(0, {1, 3}, {2, 3});
  twice.collective.sends.push_back(twice.collective.sends[0]);
  CHECK(has(mismatch(exchange(1, {2, 3}, {1, 3}), twice),
            "collective 0: device 1 sends f32 (1, 3) to device 0, which expects nothing"));
  auto skip_flag = exchange(1, {2, 3}, {1, 3});
  skip_flag.collective.skip_flag = program::SkipFlag::zeros;
  // a device without the flag would wait for it
  CHECK(has(mismatch(skip_flag, exchange(0, {1, 3}, {2, 3})), "collective 0 of device 1 is"));
}
