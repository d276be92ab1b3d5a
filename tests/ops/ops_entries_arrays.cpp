// Entries of reductions, contractions, shape ops and indexing ops, and of the primitives that no
// public op creates alone.
#include "ops_entries.h"

#include "ops/prim.h"

namespace ops_test {
namespace {

constexpr auto b8 = DType::boolean;
constexpr auto i32 = DType::i32;
constexpr auto u32 = DType::u32;
constexpr auto f32 = DType::f32;
const Axis B{"b", 2}, N{"n", 3}, K{"k", 5};

}  // namespace

Entries reduction_entries() {
  return {
      {"sum", {"b2n3k5"}, [](In x) { return sum(x[0], "n"); }, "b2k5"},
      {"sum over all", {"b2n3"}, [](In x) { return sum(x[0]); }, ""},
      {"sum over none", {"b2n3"}, [](In x) { return sum(x[0], AxisSelection{Axes{}}); }, "b2n3"},
      {"sum with a mask",
       {"b2n3", mask("n3")},
       [](In x) { return sum(x[0], "n", {.where = x[1]}); },
       "b2"},
      {"sum of bools", {mask("b2n3")}, [](In x) { return sum(x[0], "n"); }, "b2", i32},
      {"mean",
       {"b2n3"},
       [](In x) {
         return mean(x[0], {"n", "b"});
       },
       ""},
      {"mean with a mask",
       {"b2n3", mask("n3")},
       [](In x) { return mean(x[0], "n", {.where = x[1]}); },
       "b2"},
      {"mean of integers", {ints("b2n3", 0, 9)}, [](In x) { return mean(x[0], "b"); }, "n3", f32},
      {"prod", {positive("b2n3")}, [](In x) { return prod(x[0], "n"); }, "b2"},
      {"max", {"b2n3"}, [](In x) { return max(x[0], "n"); }, "b2"},
      {"max with a mask",
       {"b2n3", mask("n3")},
       [](In x) { return max(x[0], "n", {.where = x[1]}); },
       "b2"},
      {"min", {"b2n3"}, [](In x) { return min(x[0], "b"); }, "n3"},
      {"min of integers", {ints("b2n3", -9, 9)}, [](In x) { return min(x[0]); }, "", i32},
      {"var", {"b2n3"}, [](In x) { return var(x[0], "n"); }, "b2"},
      {"var of a sample", {"b2n3"}, [](In x) { return var(x[0], "n", {.ddof = 1}); }, "b2"},
      {"std_dev", {"b2n3"}, [](In x) { return std_dev(x[0], "n"); }, "b2"},
      {"var in another dtype",
       {ints("b2n3", 0, 9)},
       [](In x) { return var(x[0], "n", {.dtype = DType::f64}); },
       "b2",
       DType::f64},
      {"ptp", {"b2n3"}, [](In x) { return ptp(x[0], "n"); }, "b2"},
      {"bincount",
       {ints("n6", 0, 4), "n6"},
       [](In x) { return bincount(x[0], K, Arr(x[1])); },
       "k5"},
      {"bincount without weights",
       {ints("n6", -1, 7)},
       [](In x) { return bincount(x[0], K); },
       "k5",
       i32},
      {"any", {mask("b2n3")}, [](In x) { return any(x[0], "n"); }, "b2", b8},
      {"all", {mask("b2n3")}, [](In x) { return all(x[0], "n"); }, "b2", b8},
      {"argmax", {"b2n3"}, [](In x) { return argmax(x[0], "n"); }, "b2", i32},
      {"argmax of all", {"b2n3"}, [](In x) { return argmax(x[0]); }, "", i32},
      {"argmin", {"b2n3"}, [](In x) { return argmin(x[0], "b"); }, "n3", i32},
      {"logsumexp", {"b2n3"}, [](In x) { return logsumexp(x[0], "n"); }, "b2"},
      {"logsumexp of all", {"b2n3"}, [](In x) { return logsumexp(x[0]); }, ""},
      {"softmax", {"b2n3"}, [](In x) { return softmax(x[0], "n"); }, "b2n3"},
      {"softmax over two axes",
       {"b2n3k5"},
       [](In x) {
         return softmax(x[0], {"b", "n"});
       },
       "b2n3k5"},
      {"log_softmax", {"b2n3"}, [](In x) { return log_softmax(x[0], "n"); }, "b2n3"},
      {"standardize", {"b2n3"}, [](In x) { return standardize(x[0], "n"); }, "b2n3"},
      {"cumsum", {"b2n3"}, [](In x) { return cumsum(x[0], "n"); }, "b2n3"},
      {"cumprod", {positive("b2n3")}, [](In x) { return cumprod(x[0], "n"); }, "b2n3"},
      {"cumsum in another dtype",
       {ints("b2n3", 0, 9)},
       [](In x) { return cumsum(x[0], "n", f32); },
       "b2n3",
       f32},
      {"sort", {"b2n6"}, [](In x) { return sort(x[0], "n"); }, "b2n6"},
      {"sort along the first axis", {"n6b2"}, [](In x) { return sort(x[0], "n"); }, "n6b2"},
      {"argsort", {"b2n6"}, [](In x) { return argsort(x[0], "n"); }, "b2n6", i32},
      {"top_k values", {"b2n6"}, [](In x) { return top_k(x[0], "n", 2).first; }, "b2n2"},
      {"top_k indices",
       {"n6b2"},
       [](In x) { return top_k(x[0], "n", 2, Name("k")).second; },
       "k2b2",
       i32},
      {"dot", {"b2n3", "n3k5"}, [](In x) { return dot(x[0], x[1], "n"); }, "b2k5"},
      {"dot over two axes",
       {"b2n3k5", "k5n3m4"},
       [](In x) {
         return dot(x[0], x[1], {"n", "k"});
       },
       "b2m4"},
      {"dot with a batch",
       {"b2n3k5", "b2k5m4"},
       [](In x) { return dot(x[0], x[1], "k"); },
       "b2n3m4"},
      {"dot of three",
       {"b2n3", "n3k5", "k5m4"},
       [](In x) {
         return dot({x[0], x[1], x[2]}, {"n", "k"});
       },
       "b2m4"},
      {"dot of all", {"b2n3", "n3b2"}, [](In x) { return dot(x[0], x[1], {}); }, ""},
      {"dot with an order",
       {"b2n3", "n3k5"},
       [](In x) {
         return dot(x[0], x[1], "n", {.out_axes = Names{"k", "b"}});
       },
       "k5b2"},
      {"dot with itself",
       {"b2n3"},
       [](In x) {
         return dot(x[0], x[0].rename({{"b", "c"}}), "n");
       },
       "b2c2"},
      {"einsum",
       {"b2n3", "n3k5"},
       [](In x) {
         return einsum("{b n, n k} -> k b", {x[0], x[1]});
       },
       "k5b2"},
  };
}

Entries shape_entries() {
  return {
      {"rename",
       {"b2n3"},
       [](In x) {
         return rename(x[0], {{"b", "n"}, {"n", "b"}});
       },
       "n2b3"},
      {"rearrange",
       {"b2n3k5"},
       [](In x) {
         return rearrange(x[0], Names{"k", ellipsis});
       },
       "k5b2n3"},
      {"rearrange by a string",
       {"b2n3k5"},
       [](In x) { return rearrange(x[0], "{b n k} -> k (h: b n)"); },
       "k5h6"},
      {"broadcast_axis", {"b2"}, [](In x) { return broadcast_axis(x[0], N); }, "n3b2"},
      {"broadcast_to",
       {"n3"},
       [](In x) {
         return broadcast_to(x[0], {B, N});
       },
       "b2n3"},
      {"flatten_axes",
       {"b2n3k5"},
       [](In x) {
         return flatten_axes(x[0], {"b", "n"}, "h");
       },
       "h6k5"},
      {"flatten_axes in another order",
       {"b2n3k5"},
       [](In x) {
         return flatten_axes(x[0], {"k", "b"}, "h");
       },
       "h10n3"},
      {"unflatten_axis",
       {"h6k5"},
       [](In x) {
         return unflatten_axis(x[0], "h", {B, N});
       },
       "b2n3k5"},
      {"ravel", {"b2n3"}, [](In x) { return ravel(x[0], "h"); }, "h6"},
      {"unbind",
       {"b2n3"},
       [](In x) {
         auto p = unbind(x[0], "n");
         return p[0] * p[2];
       },
       "b2"},
      {"split",
       {"b2n5"},
       [](In x) {
         return split(x[0], "n", {{"p", 2}, {"q", 3}})[1];
       },
       "b2q3"},
      {"stack",
       {"b2", "b2"},
       [](In x) {
         return stack("n", {x[0], x[1], x[0]});
       },
       "n3b2"},
      {"concatenate",
       {"b2n3", "b2n1"},
       [](In x) {
         return concatenate("n", {x[0], x[1]});
       },
       "b2n4"},
      {"repeat", {"b2n3"}, [](In x) { return repeat(x[0], "n", 2); }, "b2n6"},
      {"tile",
       {"b2n3"},
       [](In x) {
         return tile(x[0], {{"n", 2}});
       },
       "b2n6"},
      {"roll", {"b2n3"}, [](In x) { return roll(x[0], 1, "n"); }, "b2n3"},
      {"roll by an array",
       {"b2n3", ints("", -4, 4)},
       [](In x) { return roll(x[0], x[1], "n"); },
       "b2n3"},
      {"pad",
       {"b2n3", ""},
       [](In x) {
         return pad(x[0], {{"n", {1, 2}}}, x[1]);
       },
       "b2n6"},
      {"repeat by counts",
       {"b2n3", ints("n3", 0, 3)},
       [](In x) { return repeat(x[0], "n", x[1], 5); },
       "b2n5"},
      {"roll of two axes",
       {"b2n3"},
       [](In x) {
         return roll(x[0], {1, -1}, {"b", "n"});
       },
       "b2n3"},
      {"pad by reflection",
       {"b2n3"},
       [](In x) {
         return pad(x[0], {{N, {3, 2}}}, PadMode::reflect);
       },
       "b2n8"},
      {"pad by a ramp",
       {"b2n3"},
       [](In x) {
         return pad(x[0], {{"n", {2, 3}}}, PadMode::linear_ramp);
       },
       "b2n8"},
      {"pad by the median",
       {"b2n4"},
       [](In x) {
         return pad(x[0], {{"n", {1, 1}}}, PadMode::median);
       },
       "b2n6"},
      {"pad_left", {"b2n3"}, [](In x) { return pad_left(x[0], "n", K); }, "b2k5"},
      {"broadcast_arrays",
       {"b2", "n3"},
       [](In x) {
         auto both = broadcast_arrays({x[0], x[1]}, false);
         return both[0] * both[1];
       },
       "b2n3"},
      {"flip", {"b2n3"}, [](In x) { return flip(x[0], "n"); }, "b2n3"},
      {"tril", {"n3b2k3"}, [](In x) { return tril(x[0], "n", "k"); }, "b2n3k3"},
      {"triu", {"b2n3k3"}, [](In x) { return triu(x[0], "n", "k", 1); }, "b2n3k3"},
      {"trace", {"b2n3k3"}, [](In x) { return trace(x[0], "n", "k"); }, "b2"},
  };
}

Entries picking_entries() {
  return {
      {"take", {"b2n5", ints("k4", 0, 5)}, [](In x) { return take(x[0], "n", x[1]); }, "b2k4"},
      {"take with a shared axis",
       {"b2n5", ints("b2k4", 0, 5)},
       [](In x) { return take(x[0], "n", x[1]); },
       "k4b2"},
      {"slice", {"b2n5"}, [](In x) { return slice(x[0], "n", 1, 3); }, "b2n3"},
      {"slice from an array",
       {"b2n5", ints("", 0, 3)},
       [](In x) { return slice(x[0], "n", x[1], 2, Name("k")); },
       "b2k2"},
      {"at", {"b2n5"}, [](In x) { return at(x[0], "n", 2); }, "b2"},
      {"at an array", {"b2n5", ints("", 0, 5)}, [](In x) { return at(x[0], "n", x[1]); }, "b2"},
      {"updated_slice",
       {"b2n5", "b2n2", ints("", 0, 4)},
       [](In x) {
         return updated_slice(x[0], {{"n", x[2]}}, x[1]);
       },
       "b2n5"},
      {"ds",
       {"b2n5", ints("", 0, 3)},
       [](In x) {
         return index(x[0], {{"n", ds(x[1], Axis("m", 2))}});
       },
       "b2n2"},
      {"ds out of range",
       {"b2n5", ints("", 3, 6)},
       [](In x) {
         return index(x[0], {{"n", ds(x[1], 4)}});
       },
       "b2n4"},
      {"index",
       {"b2n6"},
       [](In x) {
         return index(x[0], {{"n", Slice{1, 6, 2}}});
       },
       "b2n3"},
      {"index backwards",
       {"b2n6"},
       [](In x) {
         return index(x[0], {{"n", Slice{5, 0, -2}}});
       },
       "b2n3"},
      {"index by an array",
       {"b2n5", ints("k4", 0, 5)},
       [](In x) {
         return index(x[0], {{"n", x[1]}, {"b", 1}});
       },
       "k4"},
      {"index by an array with a shared axis",
       {"b2n5", ints("b2k4", 0, 5)},
       [](In x) {
         return index(x[0], {{"n", x[1]}});
       },
       "b2k4"},
      {"at_get",
       {"b2n5", ints("k4", -7, 8)},
       [](In x) {
         return at_get(x[0], {{"n", x[1]}}, IndexMode::fill, 3.);
       },
       "b2k4"},
      {"at_set by an array with a shared axis",
       {"b2n5", ints("b2", 0, 5), "b2"},
       [](In x) {
         return at_set(x[0], {{"n", x[1]}}, x[2]);
       },
       "b2n5"},
      {"at_set at a dynamic slice",
       {"b2n5", ints("", 3, 6), "b2n4"},
       [](In x) {
         return at_set(x[0], {{"n", ds(x[1], 4)}}, x[2]);
       },
       "b2n5"},
      {"at_add by an array with a shared axis",
       {"b2n5", ints("b2k4", -2, 7), "b2k4"},
       [](In x) {
         return at_add(x[0], {{"n", x[1]}}, x[2], IndexMode::clip);
       },
       "b2n5"},
      {"at_mul by an array",
       {"b2n5", ints("k4", 0, 5), "b2k4"},
       [](In x) {
         return at_mul(x[0], {{"n", x[1]}}, x[2]);
       },
       "b2n5"},
      {"at_min by an array",
       {"b2n5", ints("b2k4", 0, 5), "k4"},
       [](In x) {
         return at_min(x[0], {{"n", x[1]}}, x[2]);
       },
       "b2n5"},
      {"at_max by an array",
       {"b2n5", ints("k4", 0, 5), "b2k4"},
       [](In x) {
         return at_max(x[0], {{"n", x[1]}}, x[2]);
       },
       "b2n5"},
      {"at_divide",
       {"b2n5", ints("k4", 0, 5), positive("k4")},
       [](In x) {
         return at_divide(x[0], {{"n", x[1]}}, x[2]);
       },
       "b2n5"},
      {"at_power",
       {positive("b2n5"), ints("k4", 0, 5), "k4"},
       [](In x) {
         return at_power(x[0], {{"n", x[1]}}, x[2]);
       },
       "b2n5"},
      {"at_set",
       {"b2n5", "b2"},
       [](In x) {
         return at_set(x[0], {{"n", 3}}, x[1]);
       },
       "b2n5"},
      {"at_add",
       {"b2n5", ints("k4", 0, 5), "b2k4"},
       [](In x) {
         return at_add(x[0], {{"n", x[1]}}, x[2]);
       },
       "b2n5"},
      {"at_mul",
       {"b2n5", "b2"},
       [](In x) {
         return at_mul(x[0], {{"n", 3}}, x[1]);
       },
       "b2n5",
       f32,
       Smooth::none},
      {"at_min",
       {"b2n5", "b2"},
       [](In x) {
         return at_min(x[0], {{"n", 3}}, x[1]);
       },
       "b2n5",
       f32,
       Smooth::none},
      {"at_max",
       {"b2n5", "b2"},
       [](In x) {
         return at_max(x[0], {{"n", 3}}, x[1]);
       },
       "b2n5",
       f32,
       Smooth::none},
  };
}

Entries primitive_entries() {
  return {
      {"prim fma",
       {"b2n3", "n3", "b2n3"},
       [](In x) { return NamedArray(prim::fma(x[0].node(), x[1].node(), x[2].node())); },
       "b2n3"},
      {"prim bitcast",
       {ints("b2n3", 0, 1 << 30, u32)},
       [](In x) { return NamedArray(prim::bitcast(x[0].node(), f32)); },
       "b2n3",
       f32,
       Smooth::none},
      {"prim place",
       {"b2k2"},
       [](In x) {
         Axes axes = x[0].node()->axes;
         for (auto& a : axes)
           if (a.name == Name("k")) a.size = 6;
         return NamedArray(prim::place(x[0].node(), axes, "k", 1, 2, false));
       },
       "b2k6"},
      {"prim barrier",
       {"b2n3", "b2"},
       [](In x) { return NamedArray(prim::barrier(x[0].node(), x[1].node())) * x[0]; },
       "b2n3"},
      {"prim pin",
       {"b2n3"},
       [](In x) {
         return NamedArray(
                    prim::sharding_constraint(x[0].node(), std::make_shared<const Mapping>())) *
                x[0];
       },
       "b2n3"},
      {"prim checkpoint_name",
       {"b2n3"},
       [](In x) { return NamedArray(prim::checkpoint_name(x[0].node(), "name")) * x[0]; },
       "b2n3"},
      {"prim tracer",
       {"b2n3"},
       [](In x) { return NamedArray(prim::tracer(x[0].node())) * x[0]; },
       "b2n3"},
      {"prim threefry",
       {ints("n3", 0, 1 << 30, u32), ints("n3", 0, 1 << 30, u32), ints("b2", 0, 9, u32)},
       [](In x) {
         auto high = prim::integer(0, u32);
         auto draw = [&](Code word) {
           return NamedArray(prim::threefry(word, x[0].node(), x[1].node(), high, x[2].node()));
         };
         return draw(Code::threefry0) + draw(Code::threefry1) * draw(Code::threefry_xor);
       },
       "n3b2",
       u32},
      {"prim cumulative from the end",
       {positive("b2n3")},
       [](In x) { return NamedArray(prim::cumulative(Monoid::prod, x[0].node(), "n", true)); },
       "b2n3"},
      {"fold",
       {"b2n5"},
       [](In x) {
         auto f = [](const NamedArray& c, const NamedArray& v) { return sin(c) + v; };
         return fold(f, "n")(full(B, 1, x[0].dtype()), x[0]);
       },
       "b2"},
      {"scan",
       {"b2n5"},
       [](In x) {
         auto f = [](const NamedArray& c, const NamedArray& v) {
           return std::pair{c + v * v, c * v};
         };
         return scan(f, "n")(full(B, 1, x[0].dtype()), x[0]).second;
       },
       "n5b2"},
      {"chunked_reduce",
       {"b2n5", "b2"},
       [](In x) {
         auto f = [](const NamedArray& v, const NamedArray& w) { return sum(sin(v * w), "n"); };
         return chunked_reduce("n", {.chunk = 2}, f)(x[0], x[1]);
       },
       "b2"},
      {"chunked_reduce recomputed for its gradient",
       {"b2n5", "b2"},
       [](In x) {
         auto f = [](const NamedArray& v, const NamedArray& w) { return sum(sin(v * w), "n"); };
         return chunked_reduce("n", {.chunk = 2, .form = ChunkForm::recompute}, f)(x[0], x[1]);
       },
       "b2"},
      {"chunked_reduce that keeps the axis",
       {"b2n5", "b2"},
       [](In x) {
         auto f = [](const NamedArray& v, const NamedArray& w) { return sin(v * w); };
         return chunked_reduce("n", {.chunk = 2}, f)(x[0], x[1]);
       },
       "b2n5"},
      {"checkpoint",
       {"b2n3"},
       [](In x) { return checkpoint([](const NamedArray& v) { return sin(v) * v; })(x[0]); },
       "b2n3"},
      {"custom_vjp",
       {"b2n3"},
       [](In x) {
         auto cube = [](const NamedArray& v) { return v * v * v; };
         auto back = [](const auto& in, const NamedArray&, const NamedArray& g) {
           return std::tuple{g * 3 * square(std::get<0>(in))};
         };
         return custom_vjp(cube, back)(x[0]);
       },
       "b2n3"},
  };
}

Entries all_entries() {
  Entries out;
  for (auto part : {elementwise_entries, binary_entries, creation_entries, reduction_entries,
                    shape_entries, picking_entries, primitive_entries, layer_entries}) {
    auto more = part();
    out.insert(out.end(), more.begin(), more.end());
  }
  return out;
}

}  // namespace ops_test
