// Steps that move values, or run along one axis, as kernels. If the order of several writes to one
// place matters, a single thread performs them, so results are bitwise identical in every run.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/scalar.h"
#include "haliax/error.h"
#include "kernel_source.h"

namespace haliax::cuda {
namespace {

using namespace program;

Dims without_last(Dims d) {
  d.pop_back();
  return d;
}
const char* bits_type(DType d) {  // unsigned type of the same size
  switch (bytes_of(d)) {
    case 1:
      return "std::uint8_t";
    case 2:
      return "std::uint16_t";
    case 4:
      return "std::uint32_t";
    default:
      return "std::uint64_t";
  }
}
std::string each_point(SourceWriter& w, std::int64_t n) {
  return fmt::format(
      "for (I p = my_block * I(blockDim_x) + threadIdx_x; "
      "p < I({}); p += I(all_blocks) * blockDim_x)",
      w.argument(n));
}
// Declares `moved`, the offset of the ids, and `inside`, which is true if the element exists and
// all ids are valid positions.
void pick(SourceWriter& w, const std::vector<Indexed>& indexed, bool clamps,
          const std::string& there = "true") {
  w.line(fmt::format("bool inside = {};", there));
  w.line("std::int64_t moved = 0;");
  for (auto& i : indexed) {
    auto base = w.base(i.ids), at = w.at(i.ids, i.ids.strides);
    w.open("if (inside)");
    w.line(fmt::format("auto id = position<{}>({}, {}, {}, {});", element_of(i.ids.dtype), base, at,
                       w.argument(i.size), clamps));
    w.line(fmt::format("inside = id >= 0, moved += id * {};", w.argument(i.stride)));
    w.close();
  }
}

Launch gather(const Gather& g, NestContext* nest) {
  auto& [dims, table, to, indexed, outside] = g;
  SourceWriter w(nest);
  w.needs_64_bits = true;
  w.open(each_point(w, points(dims)));
  w.indices("p", dims);
  auto T = bits_type(to.dtype);  // bitwise
  auto x = w.base(table), x_at = w.at(table, table.strides), out = w.base(to, true),
       out_at = w.at(to, to.strides);
  pick(w, indexed, outside == Outside::clamp);
  auto d = to.dtype;
  auto absent = is_float(d) ? bits_of(d, std::numeric_limits<double>::quiet_NaN(), 0)
                            : (is_signed(d) ? scalar::lowest(d) : scalar::highest(d)).integer;
  w.line(fmt::format("if (inside) store<{0}>({1}, {2}, load<{0}>({3}, {4} + moved));", T, out,
                     out_at, x, x_at));
  w.line(fmt::format("else store<{0}>({1}, {2}, constant<{0}>({3}));", element_of(d), out, out_at,
                     w.argument(outside == Outside::zero ? 0 : absent)));
  w.close();
  return w.launch(points(dims));
}
// Copies bitwise, as a fused step: in chunks where elements are adjacent.
Launch copy(Copy c, NestContext* nest) {
  constexpr DType of_size[] = {DType::u8, DType::u16, DType::u32, DType::u64};
  const auto bits = of_size[std::countr_zero(unsigned(bytes_of(c.x.dtype)))];
  c.x.dtype = c.out.dtype = bits;
  Fused f{c.dims, int(c.dims.size()), {}};
  f.code.push_back({.code = Code::load, .dtype = bits, .view = c.x});
  f.code.push_back({.code = Code::store, .dtype = bits, .args = {0, -1, -1, -1}, .view = c.out});
  return fused_launch(f, nest);
}

// ---- scatters ----
// Threads split the dims along which updates never collide, and process ids in row-major order.
struct Parted {
  Dims disjoint, together;  // together: the dims of the ids
  View updates, target;     // with the dims `disjoint`, then `together`, like the ids
  std::vector<Indexed> indexed;
};
Parted parted(const Scatter& s) {
  Parted out{{}, {}, s.updates, s.target, s.indexed};
  std::vector<std::size_t> order, together;
  for (std::size_t d = 0; d < s.dims.size(); ++d) {
    bool named = s.target.strides[d] == 0;
    for (auto& i : s.indexed) named |= i.ids.strides[d] != 0;
    (named ? together : order).push_back(d);
    (named ? out.together : out.disjoint).push_back(s.dims[d]);
  }
  order.insert(order.end(), together.begin(), together.end());
  auto arrange = [&](View& v) {
    auto old = v.strides;
    for (std::size_t k = 0; k < order.size(); ++k) v.strides[k] = old[order[k]];
  };
  arrange(out.updates);
  arrange(out.target);
  for (auto& i : out.indexed) arrange(i.ids);
  return out;
}
// Emits the update of element `at` of the target by element `from_at` of the updates.
void update(SourceWriter& w, const Scatter& s, const std::string& base, const std::string& at,
            const std::string& from, const std::string& from_at) {
  auto S = element_of(s.target.dtype), U = element_of(s.updates.dtype);
  if (s.update == Update::set) {
    auto T = bits_type(s.target.dtype);
    w.line(fmt::format("store<{0}>({1}, {2}, load<{0}>({3}, {4}));", T, base, at, from, from_at));
    return;
  }
  auto* f = s.update == Update::add   ? "add"
            : s.update == Update::mul ? "mul"
            : s.update == Update::min ? "scalar::min"
                                      : "scalar::max";
  w.line(fmt::format("const auto at = {};", at));
  const auto x = fmt::format("load<{}>({}, {})", U, from, from_at);
  w.line(fmt::format(
      "store<{0}>({1}, at, result<{0}>({2}(wide(load<{0}>({1}, at)), wide(cast<{0}, {3}>({4})))));",
      S, base, f, U, x));
}
// A scatter of many ids to few elements. Each warp has 32 elements, one per lane, and a part of the
// ids. It reads all ids, 32 at a time, one per lane, and processes the ids of its part. Ids of the
// same element are in the same part, so they stay in order.
Launch scatter_in_parts(const Scatter& s, const Parted& p, std::int64_t groups,
                        std::int64_t parts) {
  const auto first = std::ptrdiff_t(p.disjoint.size());
  auto of_point = [&](const Dims& strides) {
    return Dims(strides.begin(), strides.begin() + first);
  };
  SourceWriter w;
  w.needs_64_bits = true;
  auto of_ids = [&](Dims strides) {
    std::fill_n(strides.begin(), first, 0);
    auto sum = w.sum_of(strides);
    return sum.empty() ? "0" : sum;
  };
  w.open(each_point(w, 32 * groups * parts));
  auto wide = w.argument(32 * groups), ids = w.argument(points(p.together));
  w.line(fmt::format("const I part = p / I({0}), point = p % I({0});", wide));
  w.indices("point", p.disjoint);
  w.line(fmt::format("const bool there = point < I({});", w.argument(points(p.disjoint))));
  auto base = w.base(p.target, true), at = w.at(p.target, of_point(p.target.strides));
  auto from = w.base(p.updates), from_at = w.at(p.updates, of_point(p.updates.strides));
  w.line(fmt::format("const I at_point = {}, from_point = {};", at, from_at));
  w.open(fmt::format("for (I first = 0; first < I({}); first += 32)", ids));
  w.line("const I q = first + threadIdx_x % 32;");
  w.indices("q", p.together, p.disjoint.size());
  pick(w, p.indexed, s.clamp, fmt::format("q < I({})", ids));
  w.line(fmt::format("const I to = moved + {}, from = {};", of_ids(p.target.strides),
                     of_ids(p.updates.strides)));
  w.line(fmt::format("auto mine = lanes_where(inside && part_of(to, {}) == part);",
                     w.argument(parts)));
  w.open("for (; mine != 0; mine &= mine - 1)");
  w.line("const int lane = first_of(mine);");
  w.line("const I at_id = from_lane(to, lane), from_id = from_lane(from, lane);");
  w.open("if (there)");
  update(w, s, base, "at_point + at_id", from, "from_point + from_id");
  w.close();
  w.close();
  w.close();
  w.close();
  return w.launch(32 * groups * parts, true);
}
Launch scatter(const Scatter& s, NestContext* nest) {
  // The number of warps that occupies a GPU, 24 per multiprocessor; each additional warp reads all
  // ids, too. A part has at least 32 ids.
  constexpr std::int64_t most_warps = kMultiprocessors * 24;
  const auto p = parted(s);
  const auto groups = (points(p.disjoint) + 31) / 32;
  const auto parts =
      nest || groups == 0 ? 1 : std::min(most_warps / groups, points(p.together) / 32);
  if (parts > 1) return scatter_in_parts(s, p, groups, parts);
  SourceWriter w(nest);
  w.needs_64_bits = true;
  w.open(each_point(w, points(p.disjoint)));
  w.indices("p", p.disjoint);
  w.open(fmt::format("for (I q = 0; q < I({}); ++q)", w.argument(points(p.together))));
  w.indices("q", p.together, p.disjoint.size());
  pick(w, p.indexed, s.clamp);
  w.open("if (inside)");
  auto base = w.base(p.target, true), at = w.at(p.target, p.target.strides) + " + moved";
  auto from = w.base(p.updates), from_at = w.at(p.updates, p.updates.strides);
  update(w, s, base, at, from, from_at);
  w.close();
  w.close();
  w.close();
  return w.launch(points(p.disjoint));
}

// Each element is stored at its rank: the number of elements that are less, or equal and earlier.
Launch sort(const Sort& s, NestContext* nest) {
  const auto n = s.dims.back();
  const auto rest = without_last(s.dims).size();
  SourceWriter w(nest);
  w.needs_64_bits = true;
  w.open(each_point(w, points(s.dims)));
  w.indices("p", s.dims);
  auto S = element_of(s.x.dtype);
  auto row = [&](const View& v) {
    return w.at(v, Dims(v.strides.begin(), v.strides.begin() + std::ptrdiff_t(rest)));
  };
  auto base = w.base(s.x), from = row(s.x), along = w.argument(s.x.strides.back());
  w.line(fmt::format("const auto mine = load<{0}>({1}, {2} + i{3} * {4});", S, base, from, rest,
                     along));
  w.line("I rank = 0;");
  w.open(fmt::format("for (I q = 0; q < I({}); ++q)", w.argument(n)));
  w.line(fmt::format("const auto other = load<{}>({}, {} + q * {});", S, base, from, along));
  w.line(
      fmt::format("rank += is_nan(mine) ? !is_nan(other) || q < i{0} : other < mine || (other == "
                  "mine && q < i{0});",
                  rest));
  w.close();
  auto write = [&](const View& v, const std::string& value) {
    if (v.slot < 0) return;
    auto out = w.base(v, true), at = row(v);
    w.line(fmt::format("store<{}>({}, {} + rank * {}, {});", element_of(v.dtype), out, at,
                       w.argument(v.strides.back()), value));
  };
  write(s.out, "mine");
  write(s.indices, fmt::format("cast<{}, std::int64_t>(i{})", element_of(s.indices.dtype), rest));
  w.close();
  return w.launch(points(s.dims));
}

Launch cumulative(const Cumulative& c, NestContext* nest) {
  const auto rows = without_last(c.dims);
  SourceWriter w(nest);
  w.needs_64_bits = true;
  w.open(each_point(w, points(rows)));
  w.indices("p", rows);
  auto X = element_of(c.x.dtype), S = element_of(c.out.dtype);
  auto row = [&](const View& v) { return w.at(v, Dims(v.strides.begin(), v.strides.end() - 1)); };
  auto x = w.base(c.x), x_at = row(c.x), out = w.base(c.out, true), out_at = row(c.out);
  auto x_step = w.argument(c.x.strides.back()), out_step = w.argument(c.out.strides.back()),
       n = w.argument(c.dims.back());
  w.line(fmt::format("auto sum = wide(constant<{}>({}));", S,
                     w.argument(start_bits(c.monoid, c.out.dtype))));
  w.open(fmt::format("for (I t = 0; t < I({}); ++t)", n));
  w.line(c.reverse ? fmt::format("const I q = I({}) - 1 - t;", n) : "const I q = t;");
  w.line(fmt::format("sum = {}(sum, wide(cast<{}, {}>(load<{}>({}, {} + q * {}))));",
                     fold_of(c.monoid), S, X, X, x, x_at, x_step));
  w.line(
      fmt::format("store<{0}>({1}, {2} + q * {3}, result<{0}>(sum));", S, out, out_at, out_step));
  w.close();
  w.close();
  return w.launch(points(rows));
}

// Computes one element per thread, for contractions that the library does not support (product.h).
Launch product(const Contract& c, NestContext* nest) {
  Dims all = c.batch;
  for (auto* d : {&c.m, &c.n}) all.insert(all.end(), d->begin(), d->end());
  const auto created = all.size();
  auto dims = all;
  dims.insert(dims.end(), c.k.begin(), c.k.end());
  SourceWriter w(nest);
  w.needs_64_bits = true;
  w.open(each_point(w, points(all)));
  w.indices("p", all);
  auto d = c.out.dtype;
  auto S = element_of(d), W = is_float(d) && bytes_of(d) < 4 ? "float" : S;
  Dims out_strides(c.out.strides.begin(),
                   c.out.strides.begin() + std::ptrdiff_t(std::min(created, c.out.strides.size())));
  auto out = w.base(c.out, true), out_at = w.at(c.out, out_strides);
  w.line(fmt::format("auto sum = {};", c.accumulate
                                           ? fmt::format("wide(load<{}>({}, {}))", S, out, out_at)
                                           : fmt::format("wide(Number<{}>(0))", S)));
  auto depth = w.argument(points(c.k));
  // sums of short sums are more accurate
  w.open(fmt::format("for (I block = 0; block < I({}); block += 32)", depth));
  w.line("decltype(sum) some = 0;");
  w.open(fmt::format("for (I q = block; q < block + 32 && q < I({}); ++q)", depth));
  w.indices("q", c.k, created);
  auto read = [&](const View& v) {
    auto base = w.base(v);
    return fmt::format("wide(cast<{}, {}>(load<{}>({}, {})))", W, element_of(v.dtype),
                       element_of(v.dtype), base, w.at(v, v.strides));
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

// The statements of a custom step, once per thread.
Launch custom(const Custom& c, NestContext* nest) {
  const auto outer = std::size_t(c.outer), inner = c.dims.size() - outer;
  Dims dims(c.dims.begin(), c.dims.begin() + c.outer);
  std::vector<std::string> at(inner, "0");
  for (int d : c.text.dims) {
    at[std::size_t(d)] = fmt::format("i{}", dims.size());
    dims.push_back(c.dims[outer + std::size_t(d)]);
  }
  SourceWriter w(nest);
  w.needs_64_bits = true;
  w.open(each_point(w, points(dims)));
  w.indices("p", dims);
  std::vector<std::string> arrays, sizes, strides;
  for (auto& v : c.arrays) {
    const auto k = arrays.size();
    const auto base = w.base(v, &v == &c.arrays.back()),
               first = w.at(v, Dims(v.strides.begin(), v.strides.begin() + c.outer));
    w.line(fmt::format("using S{} = {};", k, element_of(v.dtype)));
    arrays.push_back(fmt::format("{} + ({}) * {}", base, first, bytes_of(v.dtype)));
    std::vector<std::string> along;
    for (std::size_t d = 0; d < inner; ++d) along.push_back(w.argument(v.strides[outer + d]));
    strides.push_back(fmt::format("{{{}}}", fmt::join(along, ", ")));
  }
  for (std::size_t d = 0; d < inner; ++d) sizes.push_back(w.argument(c.dims[outer + d]));
  w.line(fmt::format("const Word array[] = {{{}}};", fmt::join(arrays, ", ")));
  w.line(fmt::format("const I size[] = {{{}}};", fmt::join(sizes, ", ")));
  w.line(fmt::format("const I stride[][{}] = {{{}}};", inner, fmt::join(strides, ", ")));
  w.line(fmt::format("const I at[] = {{{}}};", fmt::join(at, ", ")));
  w.line(c.text.statements);
  w.close();
  return w.launch(points(dims));
}

}  // namespace

std::vector<Launch> launches_of(const Step& s, NestContext* nest, std::int64_t shared_limit) {
  std::vector<Launch> out;
  auto add = [&](Launch l) {
    if (l.blocks > 0) out.push_back(std::move(l));
  };
  switch (s.kind) {
    case Kind::fused:
      if (!nest && s.scratch_bytes > 0)
        out = fused_in_two(s.fused, s.scratch);
      else
        add(fused_launch(s.fused, nest, shared_limit));
      break;
    case Kind::contract:
      if (auto products = nest ? std::nullopt : products_of(s))
        out = std::move(*products);
      else
        add(product(s.contract, nest));
      break;
    case Kind::gather:
      add(gather(s.gather, nest));
      break;
    case Kind::scatter:
      add(scatter(s.scatter, nest));
      break;
    case Kind::sort:
      add(sort(s.sort, nest));
      break;
    case Kind::cumulative:
      add(cumulative(s.cumulative, nest));
      break;
    case Kind::copy:
      add(copy(s.copy, nest));
      break;
    case Kind::custom:
      add(custom(s.custom, nest));
      break;
    default:
      throw Error("[cuda] this step is no kernel");
  }
  return out;
}

}  // namespace haliax::cuda
