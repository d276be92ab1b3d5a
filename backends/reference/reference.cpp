#include "reference.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "compute.h"
#include "haliax/error.h"

namespace haliax::reference {
namespace {

using namespace program;
using namespace scalar;

void require(bool ok, const char* what) {
  if (!ok) throw Error(std::string("[reference] ") + what);
}
Dims joined(std::initializer_list<const Dims*> parts) {
  Dims all;
  for (auto* p : parts) all.insert(all.end(), p->begin(), p->end());
  return all;
}
Dims without_last(Dims dims) {
  require(!dims.empty(), "a sort or a running sum needs a dim to go along");
  dims.pop_back();
  return dims;
}
std::int64_t count(const Dims& dims) { return std::accumulate(dims.begin(), dims.end(), std::int64_t(1), std::multiplies<>()); }

// Calls f(index) for each point, the last dim fastest; once if there are no dims.
template <class F>
void each(const Dims& dims, F f) {
  Dims index(dims.size(), 0);
  for (auto left = count(dims); left > 0; --left) {
    f(static_cast<const Dims&>(index));
    for (auto d = dims.size(); d-- > 0 && ++index[d] == dims[d];) index[d] = 0;
  }
}
// Of the index along the dims that start at `first`, in elements.
std::int64_t offset_of(const Dims& index, const View& v, std::size_t first = 0) {
  require(first + index.size() <= v.strides.size(), "a view has fewer strides than its step has dims");
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < index.size(); ++d) offset += index[d] * v.strides[first + d];
  return offset;
}
bool is_reduction(Code c) { return c >= Code::reduce_sum && c <= Code::reduce_argmin; }

class Run {
 public:
  Run(const Program& p, const std::vector<void*>& arguments, const std::vector<void*>& results, void* arena, Communicator* comm)
      : program_(p), loops_(std::size_t(p.loops), 0), comm_(comm) {
    for (auto& s : p.slots) {
      auto* root = &s;
      for (std::size_t links = 0; root->alias >= 0; root = &p.slots.at(std::size_t(root->alias)))
        require(++links <= p.slots.size(), "slots alias each other in a circle");
      auto index = std::size_t(root->index);
      auto* at = root->home == Home::argument ? arguments.at(index) : root->home == Home::result ? results.at(index) : arena;
      memory_.push_back(static_cast<std::byte*>(at) + (at && root->home == Home::arena ? root->offset : 0));
    }
    run(p.steps);
  }
 private:
  void run(const std::vector<Step>& steps) {
    for (auto& s : steps) {
      switch (s.kind) {
        case Kind::fused: run(s.fused); break;
        case Kind::contract: run(s.contract); break;
        case Kind::gather: run(s.gather); break;
        case Kind::scatter: run(s.scatter); break;
        case Kind::sort: run(s.sort); break;
        case Kind::cumulative: run(s.cumulative); break;
        case Kind::copy: run(s.copy); break;
        case Kind::skip: if (get(s.skip.unless, start(s.skip.unless)).whole) break; else return;
        case Kind::collective: run(s.collective); break;
        case Kind::loop:
          for (std::int64_t t = 0; t < s.loop.trips; ++t) {
            if (s.loop.variable >= 0) loops_.at(std::size_t(s.loop.variable)) = s.loop.reverse ? s.loop.trips - 1 - t : t;
            run(s.loop.body);
          }
      }
    }
  }

  // ---- memory ----
  bool inside(std::size_t k, DType dtype, std::int64_t offset) const {
    return k < memory_.size() && memory_[k] && offset >= 0 && (offset + 1) * bytes_of(dtype) <= program_.slots[k].bytes;
  }
  std::byte* at(int slot, DType dtype, std::int64_t offset) const {   // of one element
    require(inside(std::size_t(slot), dtype, offset), "an element lies outside of its slot");
    return memory_[std::size_t(slot)] + offset * bytes_of(dtype);
  }
  // The offset of element (0, 0, ...), as the loops and the scalars in memory stand now.
  std::int64_t start(const View& v) const {
    auto offset = v.offset;
    for (auto& t : v.terms) {
      auto number = t.loop >= 0 ? loops_.at(std::size_t(t.loop)) : 0;
      if (t.slot >= 0) number = load(t.slot_dtype, at(t.slot, t.slot_dtype, t.slot_offset)).whole;
      if (t.slot >= 0) number = std::max<std::int64_t>(0, std::min(number, t.limit));
      offset += number * t.stride;
    }
    return offset;
  }
  Value get(const View& v, std::int64_t offset) const { return load(v.dtype, at(v.slot, v.dtype, offset)); }
  void put(const View& v, std::int64_t offset, Value x) const { store(v.dtype, at(v.slot, v.dtype, offset), x); }
  void move(const View& x, std::int64_t from, const View& out, std::int64_t to) const {   // bit by bit
    require(x.dtype == out.dtype, "a step that moves values has two dtypes");
    std::memmove(at(out.slot, out.dtype, to), at(x.slot, x.dtype, from), std::size_t(bytes_of(x.dtype)));
  }
  void merge(Monoid m, const View& v, std::int64_t offset, Value x) const {
    put(v, offset, combine(m, v.dtype, get(v, offset), x));
  }

  // ---- steps ----
  using Registers = std::vector<std::vector<Value>>;   // of each instruction: a value for each inner point, or one
  void run(const Fused& f) {
    require(f.outer >= 0 && f.outer <= int(f.dims.size()), "a fused step has more outer dims than dims");
    auto cut = f.dims.begin() + f.outer;
    const Dims outer(f.dims.begin(), cut), inner(cut, f.dims.end());
    auto n = count(inner);
    Registers registers;
    Dims starts;
    for (auto& i : f.code) {
      for (int a : i.args) require(a < int(registers.size()), "an operand is no earlier instruction");
      registers.emplace_back(std::size_t(i.inner ? n : 1));
      starts.push_back(start(i.view));
    }
    each(outer, [&](const Dims& row) {
      // All loads come before the stores: a step may write over what it reads, row by row.
      for (bool loads : {true, false})
        for (std::size_t k = 0; k < f.code.size(); ++k)
          if ((f.code[k].code == Code::load) == loads) evaluate(f, k, starts[k], row, inner, registers);
    });
  }
  // Instruction k at all inner points of one row (or once); `from` is where its view starts.
  void evaluate(const Fused& f, std::size_t k, std::int64_t from, const Dims& row, const Dims& inner, Registers& r) const {
    auto& i = f.code[k];
    auto type = i.args[0] < 0 ? i.dtype : f.code[std::size_t(i.args[0])].dtype;   // of the first operand
    auto arg = [&](int a, std::size_t point) {   // an outer value is the same at all inner points
      auto operand = std::size_t(i.args[a]);
      return r.at(operand).at(f.code[operand].inner ? point : 0);
    };
    if (is_reduction(i.code)) {
      r[k].at(0) = reduce(i, type, std::size_t(count(inner)), [&](std::size_t point) { return arg(0, point); });
      return;
    }
    std::size_t point = 0;
    each(i.inner ? inner : Dims{}, [&](const Dims& column) {
      auto place = [&] { return from + offset_of(row, i.view) + offset_of(column, i.view, row.size()); };
      auto& out = r[k][point];
      switch (i.code) {
        case Code::constant: out = rounded(i.dtype, {i.number, i.integer}); break;
        case Code::load:   // with no inner points there may be no such element, and nobody asks for it
          if (count(inner) > 0 || inside(std::size_t(i.view.slot), i.view.dtype, place()))
            out = cast(get(i.view, place()), i.view.dtype, i.dtype);
          break;
        case Code::iota: {
          auto position = i.dim < 0 ? 0 : i.dim < f.outer ? row.at(std::size_t(i.dim)) : column.at(std::size_t(i.dim - f.outer));
          out = cast({0, position * i.stride + i.integer + from}, DType::i64, i.dtype);
          break;
        }
        case Code::store: put(i.view, place(), cast(arg(0, point), type, i.view.dtype)); break;
        case Code::store_add: merge(Monoid::sum, i.view, place(), cast(arg(0, point), type, i.view.dtype)); break;
        case Code::store_max: merge(Monoid::max, i.view, place(), cast(arg(0, point), type, i.view.dtype)); break;
        case Code::store_min: merge(Monoid::min, i.view, place(), cast(arg(0, point), type, i.view.dtype)); break;
        default: {
          Value args[4];
          for (int a = 0; a < 4 && i.args[a] >= 0; ++a) args[a] = arg(a, point);
          out = compute(i.code, i.dtype, type, args);
        }
      }
      ++point;
    });
  }
  template <class At>
  static Value reduce(const Instr& i, DType from, std::size_t n, At at) {
    if (i.code >= Code::reduce_argmax) {
      std::size_t best = 0;   // the first NaN, or else the first of the largest
      for (std::size_t k = 1; k < n && !is_nan(from, at(best)); ++k) {
        bool better = i.code == Code::reduce_argmax ? less(from, at(best), at(k)) : less(from, at(k), at(best));
        if (better || is_nan(from, at(k))) best = k;
      }
      return cast({0, std::int64_t(best)}, DType::i64, i.dtype);
    }
    auto m = Monoid(int(i.code) - int(Code::reduce_sum));
    auto acc = start_of(m, i.dtype);
    for (std::size_t k = 0; k < n; ++k) acc = combine(m, i.dtype, acc, cast(at(k), from, i.dtype));
    return rounded(i.dtype, acc);
  }

  void run(const Contract& c) const {
    auto first = joined({&c.batch, &c.m, &c.n}).size();
    auto wide = is_float(c.out.dtype) ? DType::f64 : c.out.dtype;
    auto a = start(c.a), b = start(c.b), out = start(c.out);
    each(joined({&c.batch, &c.m, &c.n}), [&](const Dims& point) {
      auto row = a + offset_of(point, c.a), column = b + offset_of(point, c.b), to = out + offset_of(point, c.out);
      Value sum = c.accumulate ? get(c.out, to) : Value{};
      each(c.k, [&](const Dims& k) {
        auto x = cast(get(c.a, row + offset_of(k, c.a, first)), c.a.dtype, wide);
        auto y = cast(get(c.b, column + offset_of(k, c.b, first)), c.b.dtype, wide);
        sum.real += x.real * y.real;
        sum.whole = std::int64_t(std::uint64_t(sum.whole) + std::uint64_t(x.whole) * std::uint64_t(y.whole));
      });
      put(c.out, to, sum);
    });
  }

  // The offset that the ids at this point add; `inside` tells whether all of them are positions of the table.
  std::int64_t picked(const std::vector<Indexed>& indexed, const Dims& point, bool clamp, bool& inside) const {
    std::int64_t offset = 0;
    inside = true;
    for (auto& i : indexed) {
      auto id = get(i.ids, start(i.ids) + offset_of(point, i.ids)).whole;
      if (id < 0) id = i.ids.dtype == DType::u64 ? i.size : id + i.size;   // a u64 with its high bit set is large, not negative
      if (clamp && i.size > 0) id = std::clamp<std::int64_t>(id, 0, i.size - 1);
      inside = id >= 0 && id < i.size;
      if (!inside) return 0;
      offset += id * i.stride;
    }
    return offset;
  }
  void run(const Gather& g) const {
    auto table = start(g.table), out = start(g.out);
    auto type = g.out.dtype;
    auto absent = is_float(type) ? Value{std::nan(""), 0} : is_signed(type) ? lowest(type) : highest(type);
    if (g.outside == Outside::zero) absent = {};
    each(g.dims, [&](const Dims& point) {
      bool inside;
      auto from = picked(g.indexed, point, g.outside == Outside::clamp, inside);
      auto to = out + offset_of(point, g.out);
      if (inside) move(g.table, table + from + offset_of(point, g.table), g.out, to);
      else put(g.out, to, absent);
    });
  }
  void run(const Scatter& s) const {
    auto updates = start(s.updates), target = start(s.target);
    each(s.dims, [&](const Dims& point) {
      bool inside;
      auto to = target + picked(s.indexed, point, s.clamp, inside) + offset_of(point, s.target);
      auto from = updates + offset_of(point, s.updates);
      if (!inside) return;
      switch (s.update) {
        case Update::set: move(s.updates, from, s.target, to); break;
        case Update::add: merge(Monoid::sum, s.target, to, get(s.updates, from)); break;
        case Update::mul: merge(Monoid::prod, s.target, to, get(s.updates, from)); break;
        case Update::min: merge(Monoid::min, s.target, to, get(s.updates, from)); break;
        case Update::max: merge(Monoid::max, s.target, to, get(s.updates, from)); break;
      }
    });
  }
  void run(const Sort& s) const {
    auto rest = without_last(s.dims);
    each(rest, [&](const Dims& row) {
      std::vector<Value> values;
      auto x = start(s.x) + offset_of(row, s.x);
      for (std::int64_t k = 0; k < s.dims.back(); ++k) values.push_back(get(s.x, x + k * s.x.strides.back()));
      std::vector<std::size_t> order(values.size());
      std::iota(order.begin(), order.end(), std::size_t(0));
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {   // NaN after all others
        bool last = is_nan(s.x.dtype, values[b]);
        return is_nan(s.x.dtype, values[a]) ? false : last || less(s.x.dtype, values[a], values[b]);
      });
      auto write = [&](const View& v, auto value_of) {
        if (v.slot < 0) return;
        auto to = start(v) + offset_of(row, v);
        for (std::size_t k = 0; k < order.size(); ++k) put(v, to + std::int64_t(k) * v.strides.back(), value_of(order[k]));
      };
      write(s.out, [&](std::size_t k) { return values[k]; });
      write(s.indices, [&](std::size_t k) { return cast({0, std::int64_t(k)}, DType::i64, s.indices.dtype); });
    });
  }
  void run(const Cumulative& c) const {
    auto rest = without_last(c.dims);
    auto n = c.dims.back();
    each(rest, [&](const Dims& row) {
      auto x = start(c.x) + offset_of(row, c.x), out = start(c.out) + offset_of(row, c.out);
      auto acc = start_of(c.monoid, c.out.dtype);
      for (std::int64_t t = 0; t < n; ++t) {
        auto k = c.reverse ? n - 1 - t : t;
        acc = combine(c.monoid, c.out.dtype, acc, cast(get(c.x, x + k * c.x.strides.back()), c.x.dtype, c.out.dtype));
        put(c.out, out + k * c.out.strides.back(), rounded(c.out.dtype, acc));
      }
    });
  }
  void run(const Copy& c) const {
    auto x = start(c.x), out = start(c.out);
    each(c.dims, [&](const Dims& point) { move(c.x, x + offset_of(point, c.x), c.out, out + offset_of(point, c.out)); });
  }
  void run(const Collective& c) const {
    require(comm_, "the program talks to other devices, but there is no communicator; run it on a mesh");
    auto first = [&](const Operand& o) { return count(o.dims) ? at(o.view.slot, o.view.dtype, start(o.view)) : nullptr; };
    std::vector<const void*> x;
    std::vector<void*> out;
    for (auto& o : c.x) x.push_back(first(o));
    for (auto& o : c.out) out.push_back(first(o));
    comm_->run(c, x.data(), out.data());
  }

  const Program& program_;
  std::vector<std::byte*> memory_;   // of each slot
  Dims loops_;                       // the loop variables
  Communicator* comm_;
};

class Reference : public Executable {
 public:
  explicit Reference(std::shared_ptr<const Program> p) : program_(std::move(p)) {}
  void run(const std::vector<void*>& arguments, const std::vector<void*>& results, void* arena, Communicator* comm) override {
    require(int(arguments.size()) == program_->arguments, "the program takes another number of arguments");
    require(int(results.size()) == program_->results, "the program gives another number of results");
    Run(*program_, arguments, results, arena, comm);
  }

 private:
  std::shared_ptr<const Program> program_;
};
class ReferenceDevice : public Device {
 public:
  const char* name() const override { return "reference"; }
  std::unique_ptr<Executable> compile(std::shared_ptr<const Program> p) override {
    return std::make_unique<Reference>(std::move(p));
  }
};

}  // namespace

std::unique_ptr<Device> make_reference_device() { return std::make_unique<ReferenceDevice>(); }

}  // namespace haliax::reference
