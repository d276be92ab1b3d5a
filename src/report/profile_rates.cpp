// Memory traffic of steps, and the measured memory and matmul rates of the machine. A rate is
// measured with single steps on the profiled device.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "base/thread_pool.h"
#include "program/views.h"
#include "runtime/profile.h"

namespace haliax {
namespace {

using program::Code;
using program::Dims;
using program::Home;
using program::Program;
using program::Step;
using program::View;

// Returns the number of different elements that a view accesses: broadcast elements count once. The
// view of an outer instruction has strides over the outer dims only.
double accessed_elements(const View& v, const Dims& dims) {
  double n = 1;
  for (std::size_t d = 0; d < std::min(dims.size(), v.strides.size()); ++d)
    if (v.strides[d] != 0) n *= double(dims[d]);
  return n;
}
// Returns the dims over which the step accesses one of its views.
Dims accessed_dims(const Step& s, const View& v) {
  auto of = [&](auto& operands) -> const Dims* {
    for (auto& o : operands)
      if (&o.view == &v) return &o.dims;
    return nullptr;
  };
  const Dims* found = s.kind == program::Kind::host ? of(s.host.arrays) : nullptr;
  if (s.kind == program::Kind::collective)
    found = of(s.collective.x) ? of(s.collective.x) : of(s.collective.out);
  if (found) return *found;
  auto dims = program::dims_of(s);
  if (s.kind == program::Kind::fused)
    for (auto& i : s.fused.code)
      if (&i.view == &v && !i.inner) dims.resize(std::size_t(s.fused.outer));
  return dims;
}

// ---- single steps ----
constexpr double kLongEnough = 5e-3;  // seconds; faster steps are repeated with larger arrays
View row_major_view(int slot, DType dtype, Dims strides) {
  return {slot, dtype, 0, std::move(strides), {}};
}

Step copy_step(std::int64_t n) {
  return {.kind = program::Kind::copy,
          .copy = {{n}, row_major_view(0, DType::f32, {1}), row_major_view(1, DType::f32, {1})}};
}
Step sum_step(std::int64_t n) {  // x (rows, columns) -> out (rows)
  const std::int64_t rows = 256, columns = n / rows;
  Step s;
  s.fused = {{rows, columns}, 1, {}};
  s.fused.code.push_back(
      {.code = Code::load, .inner = true, .view = row_major_view(0, DType::f32, {columns, 1})});
  s.fused.code.push_back({.code = Code::reduce_sum, .args = {0, -1, -1, -1}});
  s.fused.code.push_back(
      {.code = Code::store, .args = {1, -1, -1, -1}, .view = row_major_view(1, DType::f32, {1})});
  return s;
}
Step vector_step(std::int64_t n) {  // x (k), w (rows, k) -> out (rows)
  const std::int64_t k = 1024, rows = n / k;
  return {.kind = program::Kind::contract,
          .contract = {{},
                       {},
                       {rows},
                       {k},
                       row_major_view(0, DType::f32, {0, 1}),
                       row_major_view(1, DType::f32, {k, 1}),
                       row_major_view(2, DType::f32, {1, 0})}};
}
Step product_step(std::int64_t n, DType dtype) {  // a (m, k), b (k, n) -> out (m, n)
  return {.kind = program::Kind::contract,
          .contract = {{},
                       {n},
                       {n},
                       {n},
                       row_major_view(0, dtype, {n, 0, 1}),
                       row_major_view(1, dtype, {0, 1, n}),
                       row_major_view(2, dtype, {n, 1, 0})}};
}
// Returns the shortest time of several runs, in seconds. bytes: sizes of the arguments and, last,
// of the result. The first run touches the memory.
double seconds_of_step(program::Device& device, Step step, const std::vector<std::int64_t>& bytes) {
  auto p = std::make_shared<Program>();
  step.scratch_bytes = device.scratch_bytes(step, 0);
  step.scratch = 0;
  p->arena_bytes = program::aligned(step.scratch_bytes);
  p->steps.push_back(std::move(step));
  std::vector<Buffer> memory;
  memory.reserve(bytes.size() + 1);
  // Fills the arguments with small numbers.
  for (auto n : bytes) {
    memory.emplace_back(n);
    std::memset(memory.back().data(), 0x3c, std::size_t(n));
  }

  memory.emplace_back(p->arena_bytes);
  std::vector<void*> arguments, results;
  for (std::size_t k = 0; k < bytes.size(); ++k) {
    bool is_result = k + 1 == bytes.size();
    auto& list = is_result ? results : arguments;
    (is_result ? p->result_slots : p->argument_slots).push_back(int(k));
    p->slots.push_back({.bytes = bytes[k],
                        .home = is_result ? Home::result : Home::argument,
                        .index = int(list.size())});
    list.push_back(memory[k].data());
  }
  p->arguments = int(arguments.size());
  p->results = 1;
  p->donated.assign(arguments.size(), -1);
  auto executable = device.compile(p);
  double best = INFINITY;
  for (int k = 0; k < 4; ++k) {
    auto began = seconds_now();
    executable->run(arguments, results, memory.back().data(), nullptr);
    best = std::min(best, seconds_now() - began);
    if (k > 0 && best > 100 * kLongEnough) break;  // slow enough for an exact result
  }
  return best;
}
void measure_memory(MachineRates& rates, program::Device& device) {
  // Up to 128 MiB, which exceeds caches.
  for (std::int64_t n = 1 << 16; n <= (1 << 25); n *= 8) {
    auto bytes = n * bytes_of(DType::f32);
    double copying = seconds_of_step(device, copy_step(n), {bytes, bytes});
    double adding = seconds_of_step(device, sum_step(n), {bytes, 256 * bytes_of(DType::f32)});
    double multiplying = seconds_of_step(device, vector_step(n), {4096, bytes, n / 256});
    double reading = std::min(adding, multiplying);
    rates.copy = 2 * double(bytes) / copying;
    rates.read = double(bytes) / reading;
    if (copying > 10 * kLongEnough) break;
  }
}
double product_rate(program::Device& device, const std::string& dtype) {
  double rate = 0;
  auto type = dtype_of(dtype);
  for (std::int64_t n = 32; n <= 1024; n *= 2) {
    auto bytes = n * n * bytes_of(type);
    auto seconds = seconds_of_step(device, product_step(n, type), {bytes, bytes, bytes});
    rate = std::max(rate, 2 * double(n * n * n) / seconds);
    if (seconds > 4 * kLongEnough) break;
  }
  return rate;
}

}  // namespace

Traffic traffic_of(const Step& s, const Program& p) {
  Traffic all;
  std::vector<std::pair<const View*, bool>> seen;
  each_view(s, [&](const View& v, bool writes) {
    if (v.slot < 0) return;
    for (auto& [other, wrote] : seen)
      if (*other == v && wrote == writes) return;
    seen.push_back({&v, writes});
    auto dims = accessed_dims(s, v);
    double n = accessed_elements(v, dims);
    if (&v == &s.gather.table || &v == &s.scatter.target) n = double(program::points(dims));
    // Overlapping windows count shared elements once.
    auto bytes = std::min(n * bytes_of(v.dtype), double(p.slot(v.slot).bytes));
    (writes ? all.written : all.read) += bytes;
  });
  return all;
}

void measure(MachineRates& rates, program::Device& device, const std::string& dtype) {
  if (!device.is_host()) return;  // `run` of other devices is asynchronous
  // Each profile only has the rates that it requested. Callers hold the lock of all profilers.
  static auto& measured = *new std::map<std::pair<std::string, int>, MachineRates>;
  auto& known = measured[{device.name(), threads()}];
  if (dtype.empty()) {
    if (known.copy == 0) measure_memory(known, device);
    rates.copy = known.copy;
    rates.read = known.read;
    return;
  }
  auto find = [&](auto& all) {
    return std::find_if(all.begin(), all.end(), [&](auto& r) { return r.first == dtype; });
  };
  if (find(rates.flops) != rates.flops.end()) return;
  if (find(known.flops) == known.flops.end())
    known.flops.emplace_back(dtype, product_rate(device, dtype));
  rates.flops.push_back(*find(known.flops));
}
double bound_of(const ProfileCost& c, const std::string& dtype, const MachineRates& rates) {
  if (rates.copy == 0 || rates.read == 0) return 0;
  const double reading = 1 / rates.read, writing = std::max(0., 2 / rates.copy - reading);
  double bound = c.read * reading + c.written * writing;
  for (auto& [name, rate] : rates.flops)
    if (name == dtype && rate > 0) bound = std::max(bound, c.flops / rate);
  return bound;
}

}  // namespace haliax
