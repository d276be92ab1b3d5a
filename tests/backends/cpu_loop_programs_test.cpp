// Random loops of steps with any views, on the cpu backend and the reference backend. All memory is
// compared, so that a write past the end of a view fails.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "program/devices.h"
#include "program/fused.h"

using namespace haliax;

namespace {

constexpr std::int64_t elements = 4096;  // per slot
constexpr int float_slots = 5, integer_slots = 2, all_slots = float_slots + integer_slots;

class RandomProgram {
 public:
  explicit RandomProgram(std::uint64_t seed) : draw_(seed) {
    for (int s = 0; s < all_slots; ++s) {
      program::Slot slot;
      slot.bytes = elements * 4;
      slot.home = program::Home::argument;
      slot.index = program_.arguments++;
      program_.slots.push_back(slot);
      memory_.push_back(s < float_slots ? random_floats() : random_integers());
    }
    program_.loops = 2;
    program_.steps = {loop(0, steps(0))};
  }

  // Returns the memory of all slots after a run.
  std::vector<std::vector<std::uint32_t>> run(program::Device& device) const {
    auto program = program_;
    for (auto& step : program.steps) add_scratch(step, device, program.arena_bytes);
    auto memory = memory_;
    std::vector<void*> arguments;
    for (auto& slot : memory) arguments.push_back(slot.data());
    std::vector<std::byte> arena(std::size_t(program.arena_bytes) + 64);
    void* start = arena.data();
    std::size_t space = arena.size();
    std::align(64, std::size_t(program.arena_bytes), start, space);
    device.compile(std::make_shared<program::Program>(program))->run(arguments, {}, start, nullptr);
    return memory;
  }

 private:
  std::int64_t below(std::int64_t n) { return std::int64_t(draw_() % std::uint64_t(n)); }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  // Multiples of 0.25, whose sums and matmuls are exact.
  std::vector<std::uint32_t> random_floats() {
    std::vector<std::uint32_t> out;
    for (std::int64_t k = 0; k < elements; ++k)
      out.push_back(bits(one_in(500)  ? std::numeric_limits<float>::quiet_NaN()
                         : one_in(50) ? -0.f
                                      : float(below(33) - 16) * 0.25f));
    return out;
  }
  std::vector<std::uint32_t> random_integers() {
    std::vector<std::uint32_t> out;
    for (std::int64_t k = 0; k < elements; ++k) out.push_back(std::uint32_t(below(20) - 4));
    return out;
  }
  static std::uint32_t bits(float x) {
    std::uint32_t out;
    std::memcpy(&out, &x, 4);
    return out;
  }
  static void add_scratch(program::Step& step, const program::Device& device, std::int64_t& arena) {
    step.scratch_bytes = device.scratch_bytes(step, 0);
    step.scratch = program::aligned(arena);
    arena = step.scratch + program::aligned(step.scratch_bytes);
    for (auto& inner : step.body) add_scratch(inner, device, arena);
  }

  // ---- steps ----
  program::Step loop(int variable, std::vector<program::Step> body) {
    program::Step step;
    step.kind = program::Kind::loop;
    step.loop = {.variable = variable, .trips = 1 + below(4), .reverse = one_in(2)};
    step.body = std::move(body);
    return step;
  }
  std::vector<program::Step> steps(int depth) {
    std::vector<program::Step> out;
    for (std::int64_t k = 1 + below(3); k > 0; --k) {
      loops_around_ = depth + 1;
      const auto kind = below(10);
      if (kind == 0 && depth == 0)
        out.push_back(loop(1, steps(1)));
      else if (kind <= 2)
        add_product(out);
      else if (kind == 3)
        add_copy(out);
      else
        add_fused(out);
    }
    return out;
  }
  program::Dims random_dims(std::int64_t most_dims) {
    program::Dims dims;
    for (std::int64_t d = below(most_dims + 1); d > 0; --d)
      dims.push_back(1 + below(one_in(3) ? 40 : 9));
    return dims;
  }
  // Returns a view with distinct elements, except along dims that are broadcast.
  program::View view(int slot, const program::Dims& dims, bool broadcasts) {
    program::View out{
        slot, slot < float_slots ? DType::f32 : DType::i32, 0, program::Dims(dims.size(), 0), {}};
    std::vector<std::size_t> order(dims.size());
    for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
    if (one_in(2)) std::shuffle(order.begin(), order.end(), draw_);
    std::int64_t stride = one_in(5) ? 2 : 1, last = 0;
    for (auto d = order.rbegin(); d != order.rend(); ++d) {
      if (broadcasts && one_in(3)) continue;
      out.strides[*d] = stride;
      last += (dims[*d] - 1) * stride;
      stride *= dims[*d] + (one_in(4) ? below(3) : 0);
      if (!one_in(6)) continue;
      out.offset += (dims[*d] - 1) * out.strides[*d];
      out.strides[*d] = -out.strides[*d];
    }
    if (last >= elements) return view(slot, dims, broadcasts);
    std::int64_t room = elements - 1 - last;
    for (int l = 0; l < loops_around_; ++l) {
      const std::int64_t step = below(8);
      if (!one_in(3) || 4 * step > room) continue;
      out.terms.push_back({.loop = l, .stride = step});
      room -= 4 * step;
    }
    if (one_in(6) && room >= 30) {
      // the last element of the slots of integers, which no step writes
      out.terms.push_back(
          {.slot = all_slots - 1, .slot_offset = below(elements), .limit = 10, .stride = 3});
      room -= 30;
    }
    out.offset += below(room + 1);
    return out;
  }
  bool fits(const program::Dims& dims) const { return program::points(dims) <= 1200; }

  void add_copy(std::vector<program::Step>& out) {
    const auto dims = random_dims(3);
    if (!fits(dims)) return;
    program::Step step;
    step.kind = program::Kind::copy;
    const int to = int(below(float_slots)),
              from = (to + 1 + int(below(float_slots - 1))) % float_slots;
    step.copy.dims = dims;
    step.copy.x = view(from, dims, true);
    step.copy.out = view(to, dims, false);
    out.push_back(step);
  }
  void add_product(std::vector<program::Step>& out) {
    program::Contract c;
    c.batch = one_in(3) ? random_dims(1) : program::Dims();
    c.m = random_dims(1);
    c.n = random_dims(one_in(5) ? 2 : 1);
    c.k = random_dims(one_in(5) ? 2 : 1);
    const auto join = [](std::initializer_list<program::Dims> parts) {
      program::Dims all;
      for (auto& p : parts) all.insert(all.end(), p.begin(), p.end());
      return all;
    };
    const auto a = join({c.batch, c.m, c.k}), b = join({c.batch, c.n, c.k}),
               o = join({c.batch, c.m, c.n});
    if (!fits(a) || !fits(b) || !fits(o)) return;
    const int to = int(below(float_slots)), from = (to + 1) % float_slots;
    c.a = view(from, a, false);
    c.b = view((from + 1 + int(below(2))) % float_slots, b, false);
    c.out = view(to, o, false);
    const auto zeros = [](program::View& v, std::size_t at, std::size_t n) {
      v.strides.insert(v.strides.begin() + std::ptrdiff_t(at), n, 0);
    };
    zeros(c.a, c.batch.size() + c.m.size(), c.n.size());
    zeros(c.b, c.batch.size(), c.m.size());
    zeros(c.out, o.size(), c.k.size());
    c.accumulate = one_in(3);
    program::Step step;
    step.kind = program::Kind::contract;
    step.contract = c;
    out.push_back(step);
    add_clamp(out, o, c.out);
  }
  // Rounds the results of a matmul to small integers.
  void add_clamp(std::vector<program::Step>& out, const program::Dims& dims, program::View v) {
    v.strides.resize(dims.size());
    code_.clear();
    push({.code = program::Code::load, .view = v});
    clamp(0);
    push({.code = program::Code::store, .args = {int(code_.size()) - 1, -1, -1, -1}, .view = v});
    out.push_back(fused(dims, int(dims.size())));
  }

  // ---- fused steps ----
  int push(program::Instr i) {
    code_.push_back(std::move(i));
    return int(code_.size()) - 1;
  }
  int op(program::Code code, DType dtype, std::vector<int> args) {
    program::Instr i{.code = code, .dtype = dtype};
    std::copy(args.begin(), args.end(), i.args);
    for (int a : args) i.inner |= code_[std::size_t(a)].inner;
    return push(i);
  }
  int number(double x) { return push({.code = program::Code::constant, .number = x}); }
  int clamp(int value) {
    const int low = number(-6), high = number(6.5);
    const int above = op(program::Code::max, DType::f32, {value, low});
    const int within = op(program::Code::min, DType::f32, {above, high});
    const int integer = op(program::Code::cast, DType::i32, {within});
    return op(program::Code::cast, DType::f32, {integer});
  }
  program::Step fused(const program::Dims& dims, int outer) const {
    program::Step step;
    step.kind = program::Kind::fused;
    step.fused = {dims, outer, code_};
    return step;
  }
  int value_with(DType dtype) {
    std::vector<int> all;
    for (std::size_t i = 0; i < code_.size(); ++i)
      if (code_[i].dtype == dtype && !program::is_store(code_[i].code)) all.push_back(int(i));
    return all.empty() ? -1 : all[std::size_t(below(std::int64_t(all.size())))];
  }
  void add_fused(std::vector<program::Step>& out) {
    const auto outer_dims = random_dims(2), inner_dims = random_dims(2);
    auto dims = outer_dims;
    dims.insert(dims.end(), inner_dims.begin(), inner_dims.end());
    if (!fits(dims)) return;
    const bool has_inner = !inner_dims.empty();
    code_.clear();
    const int target = int(below(float_slots));
    // in place: loads and stores of the same views
    const auto outer_view = view(target, outer_dims, false);
    const auto inner_view = view(target, dims, false);
    const auto integer_view = view(float_slots, outer_dims, false);
    const bool stores_inner = has_inner && one_in(2);
    if (one_in(2))
      push({.code = program::Code::load,
            .inner = stores_inner,
            .view = stores_inner ? inner_view : outer_view});
    for (std::int64_t k = 1 + below(3); k > 0; --k) {
      const bool inner = has_inner && !one_in(3);
      const int slot = (target + 1 + int(below(float_slots - 1))) % float_slots;
      push({.code = program::Code::load,
            .inner = inner,
            .view = view(slot, inner ? dims : outer_dims, true)});
    }
    push({.code = program::Code::load,
          .dtype = DType::i32,
          .view = one_in(2) ? integer_view : view(all_slots - 1, outer_dims, true)});
    if (!dims.empty() && one_in(2)) {
      const int dim = int(below(std::int64_t(dims.size())));
      program::Instr iota{.code = program::Code::iota, .dtype = DType::i32};
      iota.inner = dim >= int(outer_dims.size());
      iota.dim = dim;
      iota.integer = below(5) - 2;
      iota.stride = 1 + below(3);
      if (one_in(2)) iota.view.terms = {{.loop = 0, .stride = 2}};
      push(iota);
    }
    for (std::int64_t k = 1 + below(10); k > 0; --k) add_op(has_inner);
    add_stores(dims, outer_dims, stores_inner, stores_inner ? inner_view : outer_view,
               integer_view);
    out.push_back(fused(dims, int(outer_dims.size())));
  }
  void add_stores(const program::Dims& dims, const program::Dims& outer_dims, bool stores_inner,
                  const program::View& target, const program::View& integer_view) {
    using program::Code;
    int value = value_with(DType::f32);
    for (int tries = 0; !stores_inner && code_[std::size_t(value)].inner; ++tries)
      value = tries < 20 ? value_with(DType::f32) : number(1.5);
    value = clamp(value);
    const Code codes[] = {Code::store, Code::store, Code::store_add, Code::store_max,
                          Code::store_min};
    const auto store = [&](int stored, bool inner, const program::View& v, Code code) {
      push({.code = code,
            .dtype = v.dtype,
            .args = {stored, -1, -1, -1},
            .inner = inner,
            .view = v});
    };
    store(value, stores_inner, target, codes[below(5)]);
    if (one_in(3)) {
      const int integer = value_with(DType::i32);
      if (!code_[std::size_t(integer)].inner) {
        const int mask = push({.code = Code::constant, .dtype = DType::i32, .integer = 63});
        store(op(Code::bit_and, DType::i32, {integer, mask}), false, integer_view, Code::store);
      }
    }
    if (!one_in(3)) return;
    int slot = (target.slot + 1) % float_slots;  // one that no load reads
    for (auto& i : code_)
      if (i.code == Code::load && i.view.slot == slot) return;
    value = value_with(DType::f32);
    const bool inner = code_[std::size_t(value)].inner;
    store(clamp(value), inner, view(slot, inner ? dims : outer_dims, false), Code::store);
  }
  void add_op(bool has_inner) {
    using program::Code;
    const auto f32 = [&] { return value_with(DType::f32); };
    const auto i32 = [&] { return value_with(DType::i32); };
    const int test = value_with(DType::boolean);
    switch (below(14)) {
      case 0:
        op(Code::add, DType::f32, {f32(), f32()});
        return;
      case 1:
        op(Code::sub, DType::f32, {f32(), f32()});
        return;
      case 2:
        op(Code::mul, DType::f32, {f32(), f32()});
        return;
      case 3:
        op(one_in(2) ? Code::max : Code::min, DType::f32, {f32(), f32()});
        return;
      case 4:
        op(one_in(2) ? Code::less : Code::equal, DType::boolean, {f32(), f32()});
        return;
      case 5:
        op(one_in(2) ? Code::less_equal : Code::not_equal, DType::boolean, {i32(), i32()});
        return;
      case 6:
        if (test >= 0) op(Code::select, DType::f32, {test, f32(), f32()});
        return;
      case 7:
        if (test >= 0)
          op(one_in(2) ? Code::bit_and : Code::bit_xor, DType::boolean,
             {test, value_with(DType::boolean)});
        return;
      case 8:
        if (test >= 0) op(Code::cast, one_in(2) ? DType::f32 : DType::i32, {test});
        return;
      case 9:
        op(Code::cast, DType::f32, {i32()});
        return;
      case 10: {
        const Code codes[] = {Code::add, Code::sub, Code::mul, Code::max, Code::min};
        op(codes[below(5)], DType::i32, {i32(), i32()});
        return;
      }
      case 11: {
        const Code codes[] = {Code::neg, Code::abs, Code::floor, Code::sqrt};
        op(codes[below(4)], DType::f32, {f32()});
        return;
      }
      default: {
        const int x = f32();
        if (!has_inner || !code_[std::size_t(x)].inner) return;
        const Code codes[] = {Code::reduce_sum, Code::reduce_max, Code::reduce_min};
        const int reduced = op(codes[below(3)], DType::f32, {x});
        code_[std::size_t(reduced)].inner = false;
      }
    }
  }

  std::mt19937_64 draw_;
  program::Program program_;
  std::vector<std::vector<std::uint32_t>> memory_;
  std::vector<program::Instr> code_;
  int loops_around_ = 1;
};

bool is_close(std::uint32_t a, std::uint32_t b) {
  float x, y;
  std::memcpy(&x, &a, 4);
  std::memcpy(&y, &b, 4);
  if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && std::isnan(y);
  return a == b || std::abs(x - y) <= 1e-5f * (1 + std::abs(y));
}

}  // namespace

TEST_CASE("random programs of loops write the memory that the reference writes") {
  const auto cpu = cpu::make_cpu_device(1);
  const auto reference = reference::make_reference_device();
  for (int seed = 0; seed < 1000; ++seed) {
    const RandomProgram program{std::uint64_t(seed)};
    INFO("seed ", seed);
    const auto expected = program.run(*reference), got = program.run(*cpu);
    for (std::size_t s = 0; s < got.size(); ++s) {
      std::size_t different = 0, at = 0;
      for (std::size_t k = 0; k < got[s].size(); ++k) {
        const bool same = s < std::size_t(float_slots) ? is_close(got[s][k], expected[s][k])
                                                       : got[s][k] == expected[s][k];
        if (same) continue;
        if (different++ == 0) at = k;
      }
      INFO("slot ", s, " first different element ", at);
      CHECK(different == 0);
    }
  }
}
