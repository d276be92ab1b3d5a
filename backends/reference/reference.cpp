// The reference backend: an interpreter of Programs that runs element by element.
// It is slow and simple, and the tests compare the other backends with it. All accesses are checked
// against the bounds of their slots.
#include "program/custom.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "compute.h"
#include "haliax/error.h"
#include "program/devices.h"
#include "program/fused.h"

namespace haliax::reference {
namespace {

using namespace program;
using namespace scalar;

void require(bool ok, const char* what) {
  if (!ok) throw Error(std::string("[reference] ") + what);
}
Dims joined(Dims x, const Dims& y) {
  x.insert(x.end(), y.begin(), y.end());
  return x;
}

// Calls f(index) for each element in row-major order. Calls f once if there are no dims.
template <class F> void each(const Dims& dims, F f) {
  Dims index(dims.size(), 0);
  for (auto left = points(dims); left > 0; --left) {
    f(static_cast<const Dims&>(index));
    for (auto d = dims.size(); d-- > 0 && ++index[d] == dims[d];) index[d] = 0;
  }
}
// Calls f(offset) for each element in row-major order. Offsets are updated by additions only.
template <class F>
void walk(const Dims& dims, const Dims& strides, std::int64_t offset, const F& f,
          std::size_t d = 0) {
  if (d == dims.size()) return f(offset);
  for (std::int64_t k = 0; k < dims[d]; ++k, offset += strides[d])
    if (d + 1 == dims.size())
      f(offset);
    else
      walk(dims, strides, offset, f, d + 1);
}
// Returns the dims [first, end) of a step, or the strides of a view along these dims.
Dims part(const Dims& dims, std::size_t first, std::size_t end) {
  require(first <= end && end <= dims.size(),
          "a step has fewer dims than it iterates over, or a view has fewer strides");
  return Dims(dims.begin() + std::ptrdiff_t(first), dims.begin() + std::ptrdiff_t(end));
}
// Returns the offset of the index along the first dims, in elements.
std::int64_t offset_of(const Dims& index, const Dims& strides) {
  require(index.size() <= strides.size(), "a view has fewer strides than its step has dims");
  return std::inner_product(index.begin(), index.end(), strides.begin(), std::int64_t(0));
}
Value converted(Value x, DType from, DType to) { return from == to ? x : cast(x, from, to); }

// The slots of a run. Views are read at the current values of the loop variables.
struct Memory {
  Memory(const Program& p, const std::vector<void*>& arguments, const std::vector<void*>& results,
         void* arena)
      : program(p), loops(std::size_t(p.loops), 0) {
    for (auto& s : p.slots) {
      auto* root = &s;
      for (std::size_t links = 0; root->alias >= 0; root = &p.slots.at(std::size_t(root->alias)))
        require(++links <= p.slots.size(), "slots alias each other in a cycle");
      auto index = std::size_t(root->index);
      auto* at = root->home == Home::argument ? arguments.at(index)
                 : root->home == Home::result ? results.at(index)
                                              : arena;
      base.push_back(static_cast<std::byte*>(at) +
                     (at && root->home == Home::arena ? root->offset : 0));
    }
  }
  bool inside(std::size_t k, DType dtype, std::int64_t offset) const {
    return k < base.size() && base[k] && offset >= 0 &&
           (offset + 1) * bytes_per(dtype) <= program.slots[k].bytes;
  }
  // Returns the address of one element. Raises if the element is outside of its slot.
  std::byte* at(int slot, DType dtype, std::int64_t offset) const {
    require(inside(std::size_t(slot), dtype, offset), "an element is outside of its slot");
    return base[std::size_t(slot)] + offset * bytes_per(dtype);
  }
  // Returns the offset of element (0, 0, ...) for the current loop variables and the current
  // scalars in memory.
  std::int64_t start(const View& v) const {
    auto offset = v.offset;
    for (auto& t : v.terms) {
      auto number = t.loop >= 0 ? loops.at(std::size_t(t.loop)) : 0;
      if (t.slot >= 0) number = load(t.slot_dtype, at(t.slot, t.slot_dtype, t.slot_offset)).integer;
      if (t.slot >= 0) number = std::max<std::int64_t>(0, std::min(number, t.limit));
      offset += number * t.stride;
    }
    return offset;
  }
  Value get(const View& v, std::int64_t offset) const {
    return load(v.dtype, at(v.slot, v.dtype, offset));
  }
  void put(const View& v, std::int64_t offset, Value x) const {
    store(v.dtype, at(v.slot, v.dtype, offset), x);
  }
  // Copies one element bitwise.
  void move(const View& x, std::int64_t from, const View& out, std::int64_t to) const {
    require(x.dtype == out.dtype, "a step that moves values has two dtypes");
    std::memmove(at(out.slot, out.dtype, to), at(x.slot, x.dtype, from),
                 std::size_t(bytes_of(x.dtype)));
  }
  void merge(Monoid m, const View& v, std::int64_t at, Value x) const {
    put(v, at, combine(m, v.dtype, get(v, at), x));
  }
  // Returns the address of element (0, 0, ...) of each array, or null for an empty array.
  std::vector<void*> first(const std::vector<Operand>& arrays) const {
    std::vector<void*> out;
    for (auto& [dims, v] : arrays)
      out.push_back(points(dims) ? at(v.slot, v.dtype, start(v)) : nullptr);
    return out;
  }

  const Program& program;
  std::vector<std::byte*> base;  // by slot
  Dims loops;                    // current values of the loop variables
};

// The run-time state of an instruction.
struct Line {
  const Instr& instr;
  std::int64_t start;         // offset of the first element of its view
  Dims outer, inner;          // strides along the outer and the inner dims
  std::vector<Value> values;  // at the inner elements of a row, or a single value
  std::vector<const Line*> args;
  const Value& at(std::size_t point) const { return values.at(values.size() == 1 ? 0 : point); }
};
Value reduce(const Line& l, std::size_t n) {
  auto& i = l.instr;
  auto from = l.args[0]->instr.dtype;
  auto at = [&](std::size_t point) { return l.args[0]->at(point); };
  if (finds_position(i.code)) {
    std::size_t best = 0;  // the first NaN; without a NaN, the first of the largest values
    for (std::size_t k = 1; k < n && !is_nan(from, at(best)); ++k) {
      bool better =
          i.code == Code::reduce_argmax ? less(from, at(best), at(k)) : less(from, at(k), at(best));
      if (better || is_nan(from, at(k))) best = k;
    }
    return cast({0, std::int64_t(best)}, DType::i64, i.dtype);
  }
  auto m = monoid_of(i.code);
  auto acc = start_of(m, i.dtype);
  for (std::size_t k = 0; k < n; ++k) acc = combine(m, i.dtype, acc, cast(at(k), from, i.dtype));
  return rounded(i.dtype, acc);
}
// Evaluates an instruction at all elements of one row, or once. `from` is the offset of the first
// element of its view; `n` is the number of inner elements.
void evaluate(Line& l, std::int64_t from, const Dims& points, std::int64_t n,
              const Memory& memory) {
  auto& i = l.instr;
  auto type = l.args.empty() ? i.dtype : l.args[0]->instr.dtype;  // dtype of the first operand
  if (is_reduction(i.code)) return void(l.values.at(0) = reduce(l, std::size_t(n)));
  std::size_t point = 0;
  walk(points, l.inner, from, [&](std::int64_t at) {
    Value args[4];
    for (std::size_t a = 0; a < l.args.size(); ++a) args[a] = l.args[a]->at(point);
    auto& out = l.values[point++];
    switch (i.code) {
      case Code::constant:
        out = rounded(i.dtype, {i.number, i.integer});
        break;
      // without inner elements the loaded element may not exist; its value is never used
      case Code::load:
        if (n == 0 && !memory.inside(std::size_t(i.view.slot), i.view.dtype, at)) break;
        out = converted(memory.get(i.view, at), i.view.dtype, i.dtype);
        break;
      case Code::iota:
        out = cast({0, at}, DType::i64, i.dtype);
        break;
      case Code::store:
        memory.put(i.view, at, converted(args[0], type, i.view.dtype));
        break;
      case Code::store_add:
      case Code::store_max:
      case Code::store_min:
        memory.merge(monoid_of(i.code), i.view, at, converted(args[0], type, i.view.dtype));
        break;
      default:
        out = compute(i.code, i.dtype, type, args);
    }
  });
}
void run(const Fused& f, const Memory& memory) {
  require(f.outer >= 0 && f.outer <= int(f.dims.size()),
          "a fused step has more outer dims than dims");
  auto outer = std::size_t(f.outer), all = f.dims.size();
  // for speed, the last dims form one row if elements are independent
  if (outer == all && points_are_independent(f, memory.program, memory.base))
    for (std::int64_t n = 1; outer > 0 && (n == 1 || n * f.dims[outer - 1] <= 4096);)
      n *= f.dims[--outer];
  const Dims rows = part(f.dims, 0, outer), inner = part(f.dims, outer, all), once;
  auto n = points(inner);
  std::vector<Line> lines;
  lines.reserve(f.code.size());
  for (auto& i : f.code) {
    const bool many = i.inner || (int(outer) < f.outer && i.code != Code::constant);
    auto strides = accesses_memory(i.code) ? i.view.strides : Dims(many ? all : outer, 0);
    if (i.code == Code::iota && i.dim >= 0) strides.at(std::size_t(i.dim)) = i.stride;
    lines.push_back({i,
                     memory.start(i.view) + (i.code == Code::iota ? i.integer : 0),
                     part(strides, 0, outer),
                     many ? part(strides, outer, all) : once,
                     std::vector<Value>(std::size_t(many ? n : 1)),
                     {}});
    require(i.args[0] >= 0 || !(is_reduction(i.code) || is_store(i.code)),
            "a reduction or a store has no operand");
    for (int a : operands(i)) {
      require(a < int(lines.size()) - 1, "an operand is not an earlier instruction");
      lines.back().args.push_back(&lines[std::size_t(a)]);
    }
  }
  each(rows, [&](const Dims& row) {
    // All loads come before the stores, because a step may overwrite its own input, row by row.
    for (bool loads : {true, false})
      for (auto& l : lines)
        if ((l.instr.code == Code::load) == loads)
          evaluate(l, l.start + offset_of(row, l.outer), l.inner.empty() ? once : inner, n, memory);
  });
}

template <class T> T number(Value x) {
  return std::is_same_v<T, double> ? T(x.real) : T(x.integer);
}
template <class T> Value value(T x) {
  return std::is_same_v<T, double> ? Value{double(x), 0} : Value{0, std::int64_t(x)};
}
template <class T> void contract(const Contract& c, const Memory& memory) {
  auto wide = is_float(c.out.dtype) ? DType::f64 : c.out.dtype;
  // positions at which the strides of each kind of dims end
  auto batch = c.batch.size(), m = batch + c.m.size(), n = m + c.n.size(), k = n + c.k.size();
  auto rows = points(c.m), columns = points(c.n), depth = points(c.k);
  each(rows && columns ? c.batch : Dims{0}, [&](const Dims& point) {
    auto read = [&](const View& v, const Dims& dims, const Dims& strides) {
      std::vector<T> all;
      auto add = [&](std::int64_t at) {
        all.push_back(number<T>(converted(memory.get(v, at), v.dtype, wide)));
      };
      walk(dims, strides, memory.start(v) + offset_of(point, v.strides), add);
      return all;
    };
    const auto a =
        read(c.a, joined(c.m, c.k), joined(part(c.a.strides, batch, m), part(c.a.strides, n, k)));
    const auto b =
        read(c.b, joined(c.k, c.n), joined(part(c.b.strides, n, k), part(c.b.strides, m, n)));
    const auto dims = joined(c.m, c.n), strides = part(c.out.strides, batch, n);
    auto out =
        c.accumulate ? read(c.out, dims, strides) : std::vector<T>(std::size_t(rows * columns));
    auto *x = a.data(), *y = b.data();  // (m, k), (k, n)
    for (auto* sums = out.data(); sums != out.data() + rows * columns;
         sums += columns, y = b.data())
      for (auto d = depth; d > 0; --d, ++x)
        for (auto* sum = sums; sum != sums + columns; ++sum, ++y) *sum += *x * *y;
    auto* sum = out.data();
    walk(dims, strides, memory.start(c.out) + offset_of(point, c.out.strides),
         [&](std::int64_t at) { memory.put(c.out, at, value(*sum++)); });
  });
}
// Floats accumulate in double, all other dtypes in 64-bit integers.
void run(const Contract& c, const Memory& memory) {
  is_float(c.out.dtype) ? contract<double>(c, memory) : contract<std::uint64_t>(c, memory);
}

// Returns the offset that the ids at this element add to a table or a target. Sets `inside` to
// true if all ids are within the size of their axis.
std::int64_t picked(const std::vector<Indexed>& indexed, const Dims& point, bool clamp,
                    bool& inside, const Memory& memory) {
  std::int64_t offset = 0;
  inside = true;
  for (auto& i : indexed) {
    auto id = memory.get(i.ids, memory.start(i.ids) + offset_of(point, i.ids.strides)).integer;
    // a u64 id with its high bit set is out of range, not negative
    if (id < 0) id = i.ids.dtype == DType::u64 ? i.size : id + i.size;
    if (clamp && i.size > 0) id = std::clamp<std::int64_t>(id, 0, i.size - 1);
    inside = id >= 0 && id < i.size;
    if (!inside) return 0;
    offset += id * i.stride;
  }
  return offset;
}
void run(const Gather& g, const Memory& memory) {
  auto table = memory.start(g.table), out = memory.start(g.out);
  auto type = g.out.dtype;
  auto absent = is_float(type)    ? Value{std::nan(""), 0}
                : is_signed(type) ? lowest(type)
                                  : highest(type);
  if (g.outside == Outside::zero) absent = {};
  each(g.dims, [&](const Dims& point) {
    bool inside;
    auto from = picked(g.indexed, point, g.outside == Outside::clamp, inside, memory);
    auto to = out + offset_of(point, g.out.strides);
    if (inside)
      memory.move(g.table, table + from + offset_of(point, g.table.strides), g.out, to);
    else
      memory.put(g.out, to, absent);
  });
}
void run(const Scatter& s, const Memory& memory) {
  auto updates = memory.start(s.updates), target = memory.start(s.target);
  each(s.dims, [&](const Dims& point) {
    bool inside;
    auto to = target + picked(s.indexed, point, s.clamp, inside, memory) +
              offset_of(point, s.target.strides);
    auto from = updates + offset_of(point, s.updates.strides);
    if (!inside) return;
    constexpr Monoid monoids[] = {{}, Monoid::sum, Monoid::prod, Monoid::min, Monoid::max};
    if (s.update == Update::set)
      memory.move(s.updates, from, s.target, to);
    else
      memory.merge(monoids[int(s.update)], s.target, to, memory.get(s.updates, from));
  });
}
void run(const Sort& s, const Memory& memory) {
  auto rest = part(s.dims, 0, s.dims.size() - 1);
  each(rest, [&](const Dims& row) {
    std::vector<Value> values;
    auto x = memory.start(s.x) + offset_of(row, s.x.strides);
    for (std::int64_t k = 0; k < s.dims.back(); ++k)
      values.push_back(memory.get(s.x, x + k * s.x.strides.back()));
    std::vector<std::size_t> order(values.size());
    std::iota(order.begin(), order.end(), std::size_t(0));
    // NaN sorts after all other values
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      bool last = is_nan(s.x.dtype, values[b]);
      return is_nan(s.x.dtype, values[a]) ? false : last || less(s.x.dtype, values[a], values[b]);
    });
    auto write = [&](const View& v, auto value_of) {
      if (v.slot < 0) return;
      auto to = memory.start(v) + offset_of(row, v.strides);
      for (std::size_t k = 0; k < order.size(); ++k)
        memory.put(v, to + std::int64_t(k) * v.strides.back(), value_of(order[k]));
    };
    write(s.out, [&](std::size_t k) { return values[k]; });
    write(s.indices, [&](std::size_t k) {
      return cast({0, std::int64_t(k)}, DType::i64, s.indices.dtype);
    });
  });
}
void run(const Cumulative& c, const Memory& memory) {
  auto rest = part(c.dims, 0, c.dims.size() - 1);
  auto n = c.dims.back();
  each(rest, [&](const Dims& row) {
    auto x = memory.start(c.x) + offset_of(row, c.x.strides),
         out = memory.start(c.out) + offset_of(row, c.out.strides);
    auto acc = start_of(c.monoid, c.out.dtype);
    for (std::int64_t t = 0; t < n; ++t) {
      auto k = c.reverse ? n - 1 - t : t;
      acc = combine(c.monoid, c.out.dtype, acc,
                    cast(memory.get(c.x, x + k * c.x.strides.back()), c.x.dtype, c.out.dtype));
      memory.put(c.out, out + k * c.out.strides.back(), rounded(c.out.dtype, acc));
    }
  });
}
void run_custom(const Step& step, const Memory& memory) {
  std::vector<void*> first;
  for (auto& v : step.custom.arrays) first.push_back(memory.at(v.slot, v.dtype, memory.start(v)));
  CustomCalls calls(step);
  calls.run(first.data(), 0, calls.points());
  calls.rethrow();
}

void run(const std::vector<Step>& steps, Memory& memory, Communicator* comm) {
  for (auto& s : steps) {
    switch (s.kind) {
      case Kind::fused:
        run(s.fused, memory);
        break;
      case Kind::contract:
        run(s.contract, memory);
        break;
      case Kind::gather:
        run(s.gather, memory);
        break;
      case Kind::scatter:
        run(s.scatter, memory);
        break;
      case Kind::sort:
        run(s.sort, memory);
        break;
      case Kind::cumulative:
        run(s.cumulative, memory);
        break;
      case Kind::copy:
        run(Gather{s.copy.dims, s.copy.x, s.copy.out, {}}, memory);
        break;
      case Kind::conditional:
        if (memory.get(s.conditional.flag, memory.start(s.conditional.flag)).integer)
          run(s.body, memory, comm);
        break;
      case Kind::custom:
        run_custom(s, memory);
        break;
      case Kind::collective:
        require(comm,
                "the program communicates with other devices, "
                "but there is no communicator; run it on a mesh");
        // the reference backend requests no scratch
        comm->run(s.collective, memory.first(s.collective.x).data(),
                  memory.first(s.collective.out).data(), nullptr, 0);
        [[fallthrough]];
      case Kind::finish:
        break;
      case Kind::host:
        if (!s.host.once || memory.program.device == 0)
          s.host.call->run(s.host.arrays, memory.first(s.host.arrays).data());
        break;
      case Kind::loop:
        for (std::int64_t t = 0; t < s.loop.trips; ++t) {
          memory.loops.at(std::size_t(s.loop.variable)) = s.loop.reverse ? s.loop.trips - 1 - t : t;
          run(s.body, memory, comm);
        }
    }
  }
}

class Reference : public Executable {
 public:
  explicit Reference(std::shared_ptr<const Program> p) : program_(std::move(p)) {}
  void run(const std::vector<void*>& arguments, const std::vector<void*>& results, void* arena,
           Communicator* comm) override {
    require(int(arguments.size()) == program_->arguments,
            "the program has another number of arguments");
    require(int(results.size()) == program_->results, "the program has another number of results");
    Memory memory(*program_, arguments, results, arena);
    reference::run(program_->steps, memory, comm);
  }

 private:
  std::shared_ptr<const Program> program_;
};
class ReferenceDevice : public Device {
 public:
  const char* name() const override { return "reference"; }
  bool supports(const Step&) const override { return true; }
  bool runs_optional_passes() const override { return false; }
  std::unique_ptr<Executable> compile(std::shared_ptr<const Program> p) override {
    return std::make_unique<Reference>(p);
  }
};

}  // namespace

std::unique_ptr<Device> make_reference_device() { return std::make_unique<ReferenceDevice>(); }

}  // namespace haliax::reference
