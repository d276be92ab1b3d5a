// Steps that move values, or go along one axis, as kernels. What several threads would write to one place in some order is left
// to one thread: results have the same bits in every run.
#include <fmt/format.h>

#include <bit>

#include "base/scalar.h"
#include "haliax/error.h"
#include "text.h"

namespace haliax::cuda {
namespace {

using namespace program;

Dims without_last(Dims d) { return d.pop_back(), d; }
const char* bits_type(DType d) {  // of the same size
  switch (bytes_of(d)) {
    case 1: return "std::uint8_t";
    case 2: return "std::uint16_t";
    case 4: return "std::uint32_t";
    default: return "std::uint64_t";
  }
}
std::string each_point(Writer& w, std::int64_t n) {
  return fmt::format("for (I p = my_block * I(blockDim_x) + threadIdx_x; p < I({}); p += I(all_blocks) * blockDim_x)",
                     w.word(n));
}
// Declares `moved`: what the ids here add, and `inside`: whether all of them are positions.
void pick(Writer& w, const std::vector<Indexed>& indexed, bool clamps) {
  w.line("bool inside = true;");
  w.line("std::int64_t moved = 0;");
  for (auto& i : indexed) {
    auto base = w.base(i.ids), at = w.at(i.ids, i.ids.strides);
    w.open("if (inside)");
    w.line(fmt::format("auto id = position<{}>({}, {}, {}, {});", element_of(i.ids.dtype), base, at, w.word(i.size), clamps));
    w.line(fmt::format("inside = id >= 0, moved += id * {};", w.word(i.stride)));
    w.close();
  }
}

Launch gather(const Gather& g, Around* around) {
  auto& [dims, table, to, indexed, outside] = g;
  Writer w(around);
  w.far = true;
  w.open(each_point(w, points(dims)));
  w.indices("p", dims);
  auto T = bits_type(to.dtype);  // bit by bit
  auto x = w.base(table), x_at = w.at(table, table.strides), out = w.base(to, true), out_at = w.at(to, to.strides);
  pick(w, indexed, outside == Outside::clamp);
  auto d = to.dtype;
  auto absent = is_float(d) ? bits_of(d, std::numeric_limits<double>::quiet_NaN(), 0)
                            : (is_signed(d) ? scalar::lowest(d) : scalar::highest(d)).whole;
  w.line(fmt::format("if (inside) store<{0}>({1}, {2}, load<{0}>({3}, {4} + moved));", T, out, out_at, x, x_at));
  w.line(fmt::format("else store<{0}>({1}, {2}, constant<{0}>({3}));", element_of(d), out, out_at,
                     w.word(outside == Outside::zero ? 0 : absent)));
  w.close();
  return w.launch(points(dims));
}
// Bit by bit, as a fused step: by chunks, where they lie side by side.
Launch copy(Copy c, Around* around) {
  constexpr DType of_size[] = {DType::u8, DType::u16, DType::u32, DType::u64};
  const auto bits = of_size[std::countr_zero(unsigned(bytes_of(c.x.dtype)))];
  c.x.dtype = c.out.dtype = bits;
  Fused f{c.dims, int(c.dims.size()), {}};
  f.code.push_back({.code = Code::load, .dtype = bits, .view = c.x});
  f.code.push_back({.code = Code::store, .dtype = bits, .args = {0, -1, -1, -1}, .view = c.out});
  return fused_launch(f, around);
}

// Threads share the dims along which nothing meets; each goes through the others in row-major order.
Launch scatter(const Scatter& s, Around* around) {
  std::vector<std::size_t> apart, together;
  for (std::size_t d = 0; d < s.dims.size(); ++d) {
    bool named = s.target.strides[d] == 0;
    for (auto& i : s.indexed) named |= i.ids.strides[d] != 0;
    (named ? together : apart).push_back(d);
  }
  auto dims_of = [&](auto& which) {
    Dims out;
    for (auto d : which) out.push_back(s.dims[d]);
    return out;
  };
  auto order = apart;
  order.insert(order.end(), together.begin(), together.end());
  auto in_order = [&](View v) {
    auto old = v.strides;
    for (std::size_t k = 0; k < order.size(); ++k) v.strides[k] = old[order[k]];
    return v;
  };
  auto indexed = s.indexed;
  for (auto& i : indexed) i.ids = in_order(i.ids);
  auto target = in_order(s.target), updates = in_order(s.updates);
  const Dims outer = dims_of(apart), inner = dims_of(together);
  Writer w(around);
  w.far = true;
  w.open(each_point(w, points(outer)));
  w.indices("p", outer);
  w.open(fmt::format("for (I q = 0; q < I({}); ++q)", w.word(points(inner))));
  w.indices("q", inner, outer.size());
  pick(w, indexed, s.clamp);
  w.open("if (inside)");
  auto S = element_of(s.target.dtype), U = element_of(s.updates.dtype);
  auto base = w.base(target, true), at = w.at(target, target.strides);
  auto from = w.base(updates), from_at = w.at(updates, updates.strides);
  auto x = fmt::format("load<{}>({}, {})", U, from, from_at);
  if (s.update == Update::set) {
    auto T = bits_type(s.target.dtype);
    w.line(fmt::format("store<{0}>({1}, {2} + moved, load<{0}>({3}, {4}));", T, base, at, from, from_at));
  } else {
    auto* f = s.update == Update::add   ? "add"
              : s.update == Update::mul ? "mul"
              : s.update == Update::min ? "scalar::min"
                                        : "scalar::max";
    w.line(fmt::format("const auto at = {} + moved;", at));
    w.line(fmt::format("store<{0}>({1}, at, result<{0}>({2}(wide(load<{0}>({1}, at)), wide(cast<{0}, {3}>({4})))));", S, base, f,
                       U, x));
  }
  w.close(), w.close(), w.close();
  return w.launch(points(outer));
}

// Each element goes where those before it end: what is less, or equal and stands before it.
Launch sort(const Sort& s, Around* around) {
  const auto n = s.dims.back();
  const auto rest = without_last(s.dims).size();
  Writer w(around);
  w.far = true;
  w.open(each_point(w, points(s.dims)));
  w.indices("p", s.dims);
  auto S = element_of(s.x.dtype);
  auto row = [&](const View& v) { return w.at(v, Dims(v.strides.begin(), v.strides.begin() + std::ptrdiff_t(rest))); };
  auto base = w.base(s.x), from = row(s.x), along = w.word(s.x.strides.back());
  w.line(fmt::format("const auto mine = load<{0}>({1}, {2} + i{3} * {4});", S, base, from, rest, along));
  w.line("I rank = 0;");
  w.open(fmt::format("for (I q = 0; q < I({}); ++q)", w.word(n)));
  w.line(fmt::format("const auto other = load<{}>({}, {} + q * {});", S, base, from, along));
  w.line(fmt::format("rank += is_nan(mine) ? !is_nan(other) || q < i{0} : other < mine || (other == mine && q < i{0});", rest));
  w.close();
  auto write = [&](const View& v, const std::string& value) {
    if (v.slot < 0) return;
    auto out = w.base(v, true), at = row(v);
    w.line(fmt::format("store<{}>({}, {} + rank * {}, {});", element_of(v.dtype), out, at, w.word(v.strides.back()), value));
  };
  write(s.out, "mine");
  write(s.indices, fmt::format("cast<{}, std::int64_t>(i{})", element_of(s.indices.dtype), rest));
  w.close();
  return w.launch(points(s.dims));
}

Launch cumulative(const Cumulative& c, Around* around) {
  const auto rows = without_last(c.dims);
  Writer w(around);
  w.far = true;
  w.open(each_point(w, points(rows)));
  w.indices("p", rows);
  auto X = element_of(c.x.dtype), S = element_of(c.out.dtype);
  auto row = [&](const View& v) { return w.at(v, Dims(v.strides.begin(), v.strides.end() - 1)); };
  auto x = w.base(c.x), x_at = row(c.x), out = w.base(c.out, true), out_at = row(c.out);
  auto x_step = w.word(c.x.strides.back()), out_step = w.word(c.out.strides.back()), n = w.word(c.dims.back());
  w.line(fmt::format("auto sum = wide(constant<{}>({}));", S, w.word(start_bits(c.monoid, c.out.dtype))));
  w.open(fmt::format("for (I t = 0; t < I({}); ++t)", n));
  w.line(c.reverse ? fmt::format("const I q = I({}) - 1 - t;", n) : "const I q = t;");
  w.line(
      fmt::format("sum = {}(sum, wide(cast<{}, {}>(load<{}>({}, {} + q * {}))));", fold_of(c.monoid), S, X, X, x, x_at, x_step));
  w.line(fmt::format("store<{0}>({1}, {2} + q * {3}, result<{0}>(sum));", S, out, out_at, out_step));
  w.close(), w.close();
  return w.launch(points(rows));
}

// Each thread makes one element; for what the library does not take (product.h).
Launch product(const Contract& c, Around* around) {
  Dims all = c.batch;
  for (auto* d : {&c.m, &c.n}) all.insert(all.end(), d->begin(), d->end());
  const auto made = all.size();
  auto dims = all;
  dims.insert(dims.end(), c.k.begin(), c.k.end());
  Writer w(around);
  w.far = true;
  w.open(each_point(w, points(all)));
  w.indices("p", all);
  auto d = c.out.dtype;
  auto S = element_of(d), W = is_float(d) && bytes_of(d) < 4 ? "float" : S;
  Dims out_strides(c.out.strides.begin(), c.out.strides.begin() + std::ptrdiff_t(std::min(made, c.out.strides.size())));
  auto out = w.base(c.out, true), out_at = w.at(c.out, out_strides);
  w.line(fmt::format("auto sum = {};", c.accumulate ? fmt::format("wide(load<{}>({}, {}))", S, out, out_at)
                                                    : fmt::format("wide(Number<{}>(0))", S)));
  auto depth = w.word(points(c.k));
  w.open(fmt::format("for (I block = 0; block < I({}); block += 32)", depth));  // sums of few terms are summed: less is lost
  w.line("decltype(sum) some = 0;");
  w.open(fmt::format("for (I q = block; q < block + 32 && q < I({}); ++q)", depth));
  w.indices("q", c.k, made);
  auto read = [&](const View& v) {
    auto base = w.base(v);
    return fmt::format("wide(cast<{}, {}>(load<{}>({}, {})))", W, element_of(v.dtype), element_of(v.dtype), base,
                       w.at(v, v.strides));
  };
  auto a = read(c.a), b = read(c.b);
  w.line(fmt::format("some = kernel::fma({}, {}, some);", a, b));
  w.close();
  w.line("sum = add(sum, some);");
  w.close();
  w.line(fmt::format("store<{0}>({1}, {2}, result<{0}>(sum));", S, out, out_at));
  w.close();
  return w.launch(points(all));
}

}  // namespace

std::vector<Launch> launches_of(const Step& s, Around* around, std::int64_t near) {
  std::vector<Launch> out;
  auto add = [&](Launch l) {
    if (l.blocks > 0) out.push_back(std::move(l));
  };
  switch (s.kind) {
    case Kind::fused:
      if (!around && s.scratch_bytes > 0) out = fused_in_two(s.fused, s.scratch);
      else add(fused_launch(s.fused, around, near));
      break;
    case Kind::contract:
      if (auto products = around ? std::nullopt : products_of(s)) out = std::move(*products);
      else add(product(s.contract, around));
      break;
    case Kind::gather: add(gather(s.gather, around)); break;
    case Kind::scatter: add(scatter(s.scatter, around)); break;
    case Kind::sort: add(sort(s.sort, around)); break;
    case Kind::cumulative: add(cumulative(s.cumulative, around)); break;
    case Kind::copy: add(copy(s.copy, around)); break;
    default: throw Error("[cuda] this step is no kernel");
  }
  return out;
}

}  // namespace haliax::cuda
