// Facts about fused steps that backends share: program/fused.h.
#include <doctest/doctest.h>

#include "program/fused.h"

using namespace haliax;
using namespace haliax::program;

namespace {

Instr op(Code c, std::initializer_list<int> args, bool inner = true) {
  Instr i{.code = c, .inner = inner};
  std::copy(args.begin(), args.end(), i.args);
  return i;
}
Instr access(Code c, Dims strides, std::initializer_list<int> args = {}, bool inner = true) {
  auto i = op(c, args, inner);
  i.view.strides = std::move(strides);
  return i;
}
// exp(x - max x) over rows of `columns`, its sum, and an instruction that nothing reads.
Fused softmax(std::int64_t columns) {
  return {{4, columns},
          1,
          {access(Code::load, {columns, 1}),          // 0
           op(Code::reduce_max, {0}, false),          // 1
           op(Code::sub, {0, 1}),                     // 2
           op(Code::exp, {2}),                        // 3
           op(Code::neg, {3}),                        // 4
           op(Code::reduce_sum, {3}, false),          // 5
           access(Code::store, {1}, {5}, false),      // 6
           access(Code::store, {columns, 1}, {3})}};  // 7
}
using Flags = std::vector<bool>;

}  // namespace

TEST_CASE("fused facts: needed instructions are those that stores depend on") {
  CHECK(needed_instructions(softmax(8)) == Flags{1, 1, 1, 1, 0, 1, 1, 1});
  // without columns, only the sum of nothing is stored
  CHECK(needed_instructions(softmax(0)) == Flags{0, 0, 0, 0, 0, 1, 1, 0});
  CHECK(with_operands(softmax(8), {0, 0, 0, 0, 1, 0, 0, 0}) == Flags{1, 1, 1, 1, 1, 0, 0, 0});
}
TEST_CASE("fused facts: levels count reductions that run one after another") {
  CHECK(reduction_levels(softmax(8)) == std::vector{0, 1, 1, 1, 1, 2, 2, 1});
}
TEST_CASE("fused facts: operands and monoids of instructions") {
  const auto f = softmax(8);
  CHECK(operands(f.code[0]).empty());
  CHECK(operands(f.code[2]).size() == 2);
  CHECK(operands(f.code[2])[1] == 1);
  CHECK(operands(op(Code::threefry0, {3, 2, 1, 0})).size() == 4);
  const std::pair<Code, Monoid> monoids[] = {
      {Code::reduce_sum, Monoid::sum},    {Code::store_add, Monoid::sum},
      {Code::reduce_prod, Monoid::prod},  {Code::reduce_max, Monoid::max},
      {Code::reduce_argmax, Monoid::max}, {Code::store_max, Monoid::max},
      {Code::reduce_min, Monoid::min},    {Code::reduce_argmin, Monoid::min},
      {Code::store_min, Monoid::min}};
  for (auto [code, monoid] : monoids) CHECK(monoid_of(code) == monoid);
}
TEST_CASE("fused facts: strides are along all dims of the step") {
  Fused f{{2, 3, 5}, 1, {}};
  CHECK(access_strides(f, access(Code::load, {15, 5, 1})) == Dims{15, 5, 1});
  CHECK(access_strides(f, access(Code::load, {7, 9, 9}, {}, false)) == Dims{7, 0, 0});
  CHECK(access_strides(f, access(Code::store, {7}, {0}, false)) == Dims{7, 0, 0});
  auto count = op(Code::iota, {});
  count.stride = 4;
  CHECK(access_strides(f, count) == Dims{0, 0, 0});
  count.dim = 1;
  CHECK(access_strides(f, count) == Dims{0, 4, 0});
  CHECK(access_strides(f, op(Code::constant, {})).empty());
  CHECK(access_strides(f, op(Code::exp, {0})).empty());
}
TEST_CASE("fused facts: a store that lacks a dim writes repeatedly") {
  auto repeats = [](Dims dims, Dims strides, bool inner) {
    return writes_repeatedly({dims, 1, {access(Code::store_add, strides, {0}, inner)}});
  };
  CHECK(!repeats({4, 8}, {8, 1}, true));
  CHECK(repeats({4, 8}, {0, 1}, true));
  CHECK(repeats({4, 8}, {1, 0}, true));
  CHECK(!repeats({4, 8}, {1, 0}, false));  // once per outer element
  CHECK(repeats({4, 8}, {0, 0}, false));
  CHECK(!repeats({1, 8}, {0, 1}, true));
  CHECK(!writes_repeatedly(softmax(8)));
}
TEST_CASE("fused facts: adjacent dims merge where all strides allow it") {
  Dims dims{2, 1, 3, 4, 5};
  std::vector<Dims> strides{{60, 9, 20, 5, 1}, {}, {0, 9, 0, 5, 1}};
  std::size_t outer = 3;
  merge_dims(dims, outer, strides);
  CHECK(dims == Dims{6, 20});
  CHECK(outer == 1);
  CHECK(strides == std::vector<Dims>{{20, 1}, {}, {0, 1}});

  dims = {2, 3, 4};
  strides = {{12, 4, 1}, {1, 2, 6}};  // the second one is transposed
  outer = 0;
  merge_dims(dims, outer, strides);
  CHECK(dims == Dims{2, 3, 4});
  strides.pop_back();
  merge_dims(dims, outer, strides);
  CHECK(dims == Dims{24});
  CHECK(strides[0] == Dims{1});

  dims = {2, 3, 4};
  strides = {{12, 4, 1}};
  outer = 1;
  merge_dims(dims, outer, strides);
  CHECK(dims == Dims{2, 12});
  CHECK(outer == 1);

  dims = {1, 1};
  strides = {{3, 3}};
  outer = 1;
  merge_dims(dims, outer, strides);
  CHECK(dims.empty());
  CHECK(outer == 0);
}

TEST_CASE("fused facts: elements are independent if no store overlaps another access") {
  std::byte memory[64];
  Program p;
  p.slots = {{.bytes = 32}, {.bytes = 32}};
  auto load = access(Code::load, {1}, {}, false), store = access(Code::store, {1}, {0}, false);
  load.view.slot = 0;
  store.view.slot = 1;
  const Fused f{{8}, 1, {load, store}};
  CHECK(points_are_independent(f, p, {memory, memory + 32}));
  CHECK(!points_are_independent(f, p, {memory, memory + 28}));
  CHECK(!points_are_independent(f, p, {memory, nullptr}));  // an unknown address
}
