// Tests the CPU backend against the reference: bools, several of which are computed at once. In
// memory, any byte but 0 is true.
#include <doctest/doctest.h>

#include "backends/cpu/fused/fused.h"
#include "backends/cpu/fused/packed_bools.h"
#include "support/programs.h"

namespace {

using namespace haliax;
using namespace haliax::program;
using namespace haliax::testing;

void randomize_bytes(Case& c) {
  for (auto& argument : c.arguments)
    for (auto& byte : argument) byte = std::byte(c.random.below(8) ? c.random.below(256) : 0);
}

TEST_CASE("cpu: functions of bools run on words of four bools, and any other byte is true") {
  for (const std::int64_t columns : {4, 7, 64, 100})
    for (const bool broadcasts : {false, true}) {
      Case c(static_cast<unsigned>(columns));
      const Dims dims = {6, columns};
      View x = c.view(false, DType::boolean, dims, Case::dense);
      View y = c.view(false, DType::boolean, broadcasts ? Dims{columns} : dims, Case::dense);
      if (broadcasts) y.strides = {0, 1};
      View out = c.view(true, DType::boolean, dims, Case::dense);
      for (View* v : {&x, &y, &out}) v->offset -= v->offset % 4;
      randomize_bytes(c);
      auto& f = c.add(Kind::fused).fused;
      f.dims = dims;
      f.outer = 2;
      f.code = {load(x), load(y)};
      auto add = [&](const Instr& instr) {
        f.code.push_back(instr);
        return int(f.code.size()) - 1;
      };
      const DType d = DType::boolean;
      int value = add(op(Code::bit_and, d, {0, 1}));
      for (Code code : {Code::bit_or, Code::bit_xor, Code::equal, Code::max, Code::not_equal}) {
        value = add(op(Code::logical_not, d, {value}));
        value = add(op(code, d, {value, value % 2}));
      }
      const int other = add(op(Code::min, d, {0, add(op(Code::bit_not, d, {1}))}));
      value = add(op(Code::select, d, {value, 1, other}));
      f.code.push_back(store(out, value));
      const auto words = cpu::packed_bools(f);
      CHECK(words.has_value() == (columns % 4 == 0));
      INFO("columns ", columns);
      compare(c);
    }
}

// Reductions of bools over the last dim of x. `pitched`: the dims before it are contiguous instead.
// `negates`: an op reads the bools, too.
Case reductions_of_bools(std::int64_t rows, std::int64_t columns, bool pitched, bool negates) {
  Case c(static_cast<unsigned>(rows * 31 + columns));
  const DType d = DType::boolean;
  View x = c.view(false, d, {rows, columns}, Case::dense);
  if (pitched) x.strides = {1, rows};
  View any = c.view(true, d, {rows, 1}, Case::dense), all = c.view(true, d, {rows, 1}, Case::dense);
  randomize_bytes(c);
  auto& f = c.add(Kind::fused).fused;
  f.dims = {rows, columns};
  f.outer = 1;
  f.code = {load(x, true)};
  if (negates) f.code.push_back(op(Code::logical_not, d, {0}, true));
  f.code.push_back(op(Code::reduce_max, d, {0}));
  f.code.push_back(op(Code::reduce_min, d, {negates ? 1 : 0}));
  f.code.push_back(store(any, negates ? 2 : 1));
  f.code.push_back(store(all, negates ? 3 : 2));
  return c;
}

TEST_CASE("cpu: reductions of bools read bytes, and any byte but 0 is true") {
  for (const std::int64_t rows : {1, 3, 65, 700, 3000})
    for (const std::int64_t columns : {0, 1, 2, 7, 64, 100, 5000})
      for (const bool pitched : {false, true})
        for (const bool negates : {false, true}) {
          INFO("rows ", rows, " columns ", columns, " pitched ", pitched, " negates ", negates);
          Case c = reductions_of_bools(rows, columns, pitched, negates);
          compare(c);
        }
}

TEST_CASE("cpu: bools in memory are reduced in place, unless another op reads them") {
  const auto loads_bytes = [](std::int64_t rows, std::int64_t columns, bool pitched, bool negates) {
    Case c = reductions_of_bools(rows, columns, pitched, negates);
    const auto plan = cpu::plan_fused(c.program.steps.back().fused, nullptr);
    bool found = false;
    for (auto& tape : plan.inner)
      for (auto& op : tape)
        found |= op.kind == cpu::Op::load &&
                 plan.values[std::size_t(op.out)].stored == cpu::Stored::boolean;
    return found;
  };
  CHECK(loads_bytes(700, 100, false, false));
  CHECK(loads_bytes(700, 100, true, false));
  CHECK(!loads_bytes(700, 100, true, true));
  CHECK(!loads_bytes(700, 7, false, false));  // short rows
}

}  // namespace
