// Handwritten and random Programs for tests of backends: random operands in any layout, compared
// with the reference backend.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/cpu.h"
#include "base/scalar.h"
#include "program/devices.h"

namespace haliax::testing {

using namespace program;

using Bytes = std::vector<std::byte>;
struct AlignedDelete {
  void operator()(void* p) const { ::operator delete(p, std::align_val_t(64)); }
};
using Aligned = std::unique_ptr<void, AlignedDelete>;
inline Aligned aligned_bytes(std::size_t n) {
  return Aligned(::operator new(n, std::align_val_t(64)));
}
inline constexpr DType all_dtypes[] = {
    DType::f32, DType::f64, DType::bf16, DType::f16, DType::i8,  DType::i16,    DType::i32,
    DType::i64, DType::u8,  DType::u16,  DType::u32, DType::u64, DType::boolean};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(n));
  }
  double normal();
  bool coin() { return below(2) == 0; }
  template <class T> const T& pick(const std::vector<T>& from) {
    return from[static_cast<std::size_t>(below(static_cast<std::int64_t>(from.size())))];
  }

 private:
  std::mt19937_64 engine_;
};

inline Box bytes_between(void* to, const void* from, std::size_t n) {
  return {{std::int64_t(n)}, 1, to, {1}, from, {1}};
}

// A Program with arguments and results only, and their contents.
struct Case {
  Program program;
  std::vector<Bytes> arguments, results;
  std::vector<DType> argument_dtypes, result_dtypes;
  Random random;

  explicit Case(unsigned seed) : random(seed) {}
  int slot(bool result, DType dtype, std::int64_t elements) {
    Slot s;
    s.bytes = elements * bytes_of(dtype);
    s.home = result ? Home::result : Home::argument;
    s.index = result ? program.results++ : program.arguments++;
    program.slots.push_back(s);
    (result ? program.result_slots : program.argument_slots)
        .push_back(static_cast<int>(program.slots.size()) - 1);
    Bytes bytes(static_cast<std::size_t>(s.bytes));
    fill(bytes, dtype);
    (result ? results : arguments).push_back(bytes);
    (result ? result_dtypes : argument_dtypes).push_back(dtype);
    return static_cast<int>(program.slots.size()) - 1;
  }
  void fill(Bytes&, DType);  // with values around 0
  // Adds a slot and returns a view of it, with dims in a random layout. Only views that are read
  // may have broadcast dims.
  enum Layout { dense, permuted, gaps, negative, broadcast };
  View view(bool result, DType dtype, const Dims& dims, Layout layout) {
    View v;
    v.dtype = dtype;
    v.strides.assign(dims.size(), 0);
    std::vector<std::size_t> order;
    for (std::size_t d = 0; d < dims.size(); ++d) order.push_back(d);
    if (layout == permuted || layout == gaps)
      std::shuffle(order.begin(), order.end(),
                   std::mt19937(static_cast<unsigned>(random.below(1 << 30))));
    std::int64_t next = 1, low = 0, high = 0;
    for (std::size_t i = order.size(); i-- > 0;) {
      const std::size_t d = order[i];
      if (layout == broadcast && random.coin()) continue;
      v.strides[d] = next;
      next = next * dims[d] + (layout == gaps ? random.below(3) : 0);
      if (layout == negative && random.coin()) v.strides[d] = -v.strides[d];
      (v.strides[d] < 0 ? low : high) += v.strides[d] * std::max<std::int64_t>(0, dims[d] - 1);
    }
    v.offset = -low + random.below(3);
    v.slot = slot(result, dtype, v.offset + high + 1);
    return v;
  }
  View any_view(bool result, DType dtype, const Dims& dims) {
    return view(result, dtype, dims, static_cast<Layout>(random.below(result ? 4 : 5)));
  }
  Step& add(Kind kind) {
    program.steps.emplace_back();
    program.steps.back().kind = kind;
    return program.steps.back();
  }
  std::vector<Bytes> run(Device& device, std::vector<Bytes>* arguments_after = nullptr) const {
    auto executable = device.compile(std::make_shared<const Program>(program));
    std::vector<Bytes> in = arguments, out = results;
    if (!device.is_host())
      return run_there(device, *executable, std::move(in), std::move(out), arguments_after);
    std::vector<Aligned> aligned;  // aligned as the buffers of a device
    auto placed = [&](const std::vector<Bytes>& all) {
      std::vector<void*> pointers;
      for (auto& b : all) {
        aligned.push_back(aligned_bytes(b.size()));
        std::memcpy(aligned.back().get(), b.data(), b.size());
        pointers.push_back(aligned.back().get());
      }
      return pointers;
    };
    const auto in_pointers = placed(in), out_pointers = placed(out);
    const auto arena = aligned_bytes(std::size_t(program.arena_bytes));
    executable->run(in_pointers, out_pointers, arena.get(), nullptr);
    for (std::size_t k = 0; k < out.size(); ++k)
      std::memcpy(out[k].data(), out_pointers[k], out[k].size());
    for (std::size_t k = 0; k < in.size(); ++k)
      std::memcpy(in[k].data(), in_pointers[k], in[k].size());
    if (arguments_after) *arguments_after = in;
    return out;
  }
  std::vector<Bytes> run_there(Device& device, Executable& executable, std::vector<Bytes> in,
                               std::vector<Bytes> out, std::vector<Bytes>* arguments_after) const {
    std::vector<Memory> retained;
    auto there = [&](const std::vector<Bytes>& all) {
      std::vector<void*> pointers;
      for (auto& b : all) {
        retained.push_back(device.allocate(std::int64_t(b.size()), 0));
        pointers.push_back(retained.back().get());
        device.put(bytes_between(pointers.back(), b.data(), b.size()), 0);
      }
      return pointers;
    };
    const auto in_there = there(in), out_there = there(out);
    const auto arena = device.allocate(program.arena_bytes, 0);
    executable.run(in_there, out_there, arena.get(), nullptr);
    for (std::size_t k = 0; k < out.size(); ++k)
      device.get(bytes_between(out[k].data(), out_there[k], out[k].size()), 0);
    for (std::size_t k = 0; k < in.size(); ++k)
      device.get(bytes_between(in[k].data(), in_there[k], in[k].size()), 0);
    if (arguments_after) *arguments_after = std::move(in);
    return out;
  }
};

inline double tolerance(DType dtype) {
  return dtype == DType::f64    ? 1e-12
         : dtype == DType::f32  ? 2e-5
         : dtype == DType::bf16 ? 2e-2
         : dtype == DType::f16  ? 3e-3
                                : 0;
}
// Returns an empty string if the results are close enough.
std::string difference(DType, const Bytes& got, const Bytes& expected, double tol);
// Returns true if HALIAX_BACKEND selects the simulated CUDA device.
inline bool tests_cuda() {
  const char* name = std::getenv("HALIAX_BACKEND");
  return name && std::string(name) == "cuda-sim";
}
inline std::unique_ptr<Device> tested_device() {
  return tests_cuda() ? cuda::make_simulated_device() : cpu::make_cpu_device();
}
inline void compare(const Case& c, double scale = 1) {
  auto reference_device = reference::make_reference_device();
  const auto got = c.run(*tested_device()), expected = c.run(*reference_device);
  if (tests_cuda()) scale *= 2;  // sums are rounded in another order
  for (std::size_t r = 0; r < expected.size(); ++r) {
    const std::string text =
        difference(c.result_dtypes[r], got[r], expected[r], scale * tolerance(c.result_dtypes[r]));
    INFO("result ", r);
    CHECK(text == "");
  }
}
// Checks that results are bitwise identical with 1, 2 and 4 threads.
inline void same_bits(const Case& c) {
  std::vector<Bytes> first;
  for (int count : {1, 2, 4}) {
    cpu::set_threads(count);
    const auto got = c.run(*cpu::make_cpu_device());
    if (first.empty()) first = got;
    CHECK(got == first);
  }
  cpu::set_threads(0);
}

inline Instr leaf(Code code, DType dtype, bool inner = false) {
  Instr i;
  i.code = code;
  i.dtype = dtype;
  i.inner = inner;
  return i;
}
inline Instr load(const View& v, bool inner = false) {
  Instr i = leaf(Code::load, v.dtype, inner);
  i.view = v;
  return i;
}
inline Instr op(Code code, DType dtype, std::initializer_list<int> args, bool inner = false) {
  Instr i = leaf(code, dtype, inner);
  int k = 0;
  for (int a : args) i.args[k++] = a;
  return i;
}
inline Instr store(const View& v, int value, bool inner = false, Code code = Code::store) {
  Instr i = op(code, v.dtype, {value}, inner);
  i.view = v;
  return i;
}
inline Instr constant(DType dtype, double number, bool inner = false) {
  Instr i = leaf(Code::constant, dtype, inner);
  i.number = number;
  i.integer = static_cast<std::int64_t>(number);
  return i;
}
inline Dims random_dims(Random& random, int most, std::int64_t largest) {
  Dims dims;
  for (std::int64_t d = 1 + random.below(most); d > 0; --d)
    dims.push_back(1 + random.below(largest));
  auto points = [&] {
    return std::accumulate(dims.begin(), dims.end(), std::int64_t(1), std::multiplies<>());
  };
  // limits the size, because the reference backend is slow
  while (points() > 1 << 16) *std::max_element(dims.begin(), dims.end()) /= 2;
  return dims;
}

inline const std::vector<double> special = {0.0,
                                            -0.0,
                                            1,
                                            -1,
                                            0.5,
                                            -0.5,
                                            2,
                                            -2.5,
                                            3.5,
                                            1e-3,
                                            -1e-3,
                                            1e-7,
                                            1e-30,
                                            -1e-30,
                                            1e-40,
                                            20,
                                            -20,
                                            80,
                                            -80,
                                            88.7,
                                            89.5,
                                            -87.5,
                                            -103.9,
                                            -105,
                                            1e4,
                                            -1e4,
                                            1e30,
                                            -1e30,
                                            3e38,
                                            127.9,
                                            255,
                                            256,
                                            -129,
                                            65504,
                                            70000,
                                            2147483647,
                                            -2147483648.,
                                            4294967295.,
                                            1e19,
                                            -1e19,
                                            std::numeric_limits<double>::infinity(),
                                            -std::numeric_limits<double>::infinity(),
                                            std::numeric_limits<double>::quiet_NaN(),
                                            0.999999,
                                            -0.999999,
                                            0.7,
                                            0.35,
                                            -0.35,
                                            0.3465,
                                            5.9,
                                            9.1,
                                            -9.1,
                                            1.5,
                                            -1.5,
                                            2.5};

inline void put_special(Case& c, std::size_t argument, std::size_t repeats) {
  const DType dtype = c.argument_dtypes[argument];
  Bytes& bytes = c.arguments[argument];
  const std::size_t n = bytes.size() / static_cast<std::size_t>(bytes_of(dtype));
  for (std::size_t i = 0; i < n; ++i) {
    const double x = special[(i / repeats) % special.size()];
    scalar::store(dtype, &bytes[i * static_cast<std::size_t>(bytes_of(dtype))],
                  scalar::cast({x, 0}, DType::f64, dtype));
  }
}

// Returns a random smooth code: errors stay small through a chain.
inline Code random_code(Random& random, DType dtype) {
  static const std::vector<Code> both = {Code::add, Code::sub, Code::mul, Code::max,   Code::min,
                                         Code::neg, Code::abs, Code::fma, Code::select};
  static const std::vector<Code> floats = {Code::tanh, Code::sin, Code::erf};
  return is_float(dtype) && random.below(4) == 0 ? random.pick(floats) : random.pick(both);
}

// Adds a fused step: a chain over random operands, with reductions if there are inner dims.
inline void random_fused(Case& c, const Dims& dims, int outer, DType dtype, int length) {
  auto& random = c.random;
  const Dims outer_dims(dims.begin(), dims.begin() + outer);
  std::vector<Instr> code;
  std::vector<int> values;  // indices of values with dtype `dtype`
  auto inner = [&](int v) { return code[static_cast<std::size_t>(v)].inner; };
  auto push = [&](Instr i) {
    code.push_back(i);
    return static_cast<int>(code.size()) - 1;
  };
  const bool has_inner = outer < static_cast<int>(dims.size());
  auto outer_view = [&](bool result) {
    View v = c.any_view(result, dtype, outer_dims);
    v.strides.resize(dims.size(), 0);
    return v;
  };
  for (int k = 0; k < 3; ++k) {
    const bool in = has_inner && (k == 0 || random.coin());
    values.push_back(
        push(in ? load(c.any_view(false, dtype, dims), true) : load(outer_view(false))));
  }
  values.push_back(push(constant(dtype, 0.5 + static_cast<double>(random.below(3)))));
  for (int k = 0; k < length; ++k) {
    if (has_inner && random.below(4) == 0) {
      const int v = random.pick(values);
      if (inner(v)) {
        const std::vector<Code> reductions = {Code::reduce_sum, Code::reduce_max, Code::reduce_min};
        int r = push(op(random.pick(reductions), dtype, {v}));
        if (is_float(dtype)) r = push(op(Code::tanh, dtype, {r}));  // bounds the value again
        values.push_back(r);
        continue;
      }
    }
    const Code what = random_code(random, dtype);
    const int a = random.pick(values), b = random.pick(values), d = random.pick(values);
    const bool in = inner(a) || inner(b) || inner(d);
    if (what == Code::select) {
      const int test = push(op(Code::less, DType::boolean, {values[0], values[1]},
                               inner(values[0]) || inner(values[1])));
      values.push_back(push(op(what, dtype, {test, a, b}, in || inner(test))));
    } else if (what == Code::fma) {
      values.push_back(push(op(what, dtype, {a, b, d}, in)));
    } else if (what == Code::neg || what == Code::abs || what == Code::tanh || what == Code::sin ||
               what == Code::erf) {
      values.push_back(push(op(what, dtype, {a}, inner(a))));
    } else {
      values.push_back(push(op(what, dtype, {a, b}, inner(a) || inner(b))));
    }
    if (is_float(dtype) && what == Code::mul)
      values.back() = push(op(Code::tanh, dtype, {values.back()}, inner(values.back())));
  }
  if (has_inner) {
    values.push_back(push(op(Code::add, dtype, {values.back(), values[0]}, true)));
    push(store(c.any_view(true, dtype, dims), values.back(), true));
    const int sum = push(op(Code::reduce_max, dtype, {values.back()}));
    push(store(outer_view(true), sum, false, random.coin() ? Code::store : Code::store_max));
  } else {
    push(store(outer_view(true), values.back(), false,
               random.coin() ? Code::store : Code::store_add));
  }
  auto& f = c.add(Kind::fused).fused;
  f.dims = dims;
  f.outer = outer;
  f.code = code;
}

// Adds a contraction of random operands with a dense or a random layout.
inline void random_contract(Case& c, Dims batch, Dims m, Dims n, Dims k, DType in, DType out,
                            bool accumulate, bool dense, std::optional<DType> in_b = {}) {
  auto& k_step = c.add(Kind::contract).contract;
  k_step.batch = batch;
  k_step.m = m;
  k_step.n = n;
  k_step.k = k;
  k_step.accumulate = accumulate;
  auto view = [&](bool result, DType dtype, bool has_m, bool has_n, bool has_k) {
    Dims dims = batch;
    auto add = [&](const Dims& d, bool has) {
      if (has) dims.insert(dims.end(), d.begin(), d.end());
    };
    add(m, has_m);
    add(n, has_n);
    add(k, has_k);
    View v = c.view(result, dtype, dims,
                    dense ? Case::dense : static_cast<Case::Layout>(c.random.below(3)));
    Dims strides(v.strides.begin(), v.strides.begin() + static_cast<std::ptrdiff_t>(batch.size()));
    std::size_t at = batch.size();
    auto spread = [&](const Dims& d, bool has) {
      for (std::size_t i = 0; i < d.size(); ++i) strides.push_back(has ? v.strides[at++] : 0);
    };
    spread(m, has_m);
    spread(n, has_n);
    spread(k, has_k);
    v.strides = strides;
    return v;
  };
  k_step.a = view(false, in, true, false, true);
  k_step.b = view(false, in_b.value_or(in), false, true, true);
  k_step.out = view(true, out, true, true, false);
}

}  // namespace haliax::testing
