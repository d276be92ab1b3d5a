// Ops on full arrays: reductions, contractions, shapes, indexing, and vmap of any other op.
#include "haliax/aliases.h"
#include "haliax/transforms.h"
#include "table.h"

namespace golden {

using namespace haliax;

namespace {

std::optional<NamedArray> mask_of(const Arrays& in, const Value& args) {
  if (!args["where"].as_flag(false)) return {};
  return input(in, 1);
}
void reduction(Table& t, const char* name,
               NamedArray (*f)(Arr, const AxisSelection&, ReduceOptions)) {
  t[name] = [f](const Arrays& in, const Value& args) {
    return Arrays{f(input(in, 0), selection_of(args["axis"]),
                    {.where = mask_of(in, args), .dtype = golden::dtype_of(args["dtype"])})};
  };
}
void variance(Table& t, const char* name, NamedArray (*f)(Arr, const AxisSelection&, VarOptions)) {
  t[name] = [f](const Arrays& in, const Value& args) {
    const Value* ddof = args.find("ddof");
    return Arrays{f(input(in, 0), selection_of(args["axis"]),
                    {.where = mask_of(in, args),
                     .ddof = ddof ? int(ddof->as_integer()) : 0,
                     .dtype = golden::dtype_of(args["dtype"])})};
  };
}
void over_axes(Table& t, const char* name, NamedArray (*f)(Arr, const AxisSelection&)) {
  t[name] = [f](const Arrays& in, const Value& args) {
    return Arrays{f(input(in, 0), selection_of(args["axis"]))};
  };
}
void along_axis(Table& t, const char* name, NamedArray (*f)(Arr, const AxisSelector&)) {
  t[name] = [f](const Arrays& in, const Value& args) {
    return Arrays{f(input(in, 0), selector_of(args["axis"]))};
  };
}
void running(Table& t, const char* name,
             NamedArray (*f)(Arr, const AxisSelector&, std::optional<DType>)) {
  t[name] = [f](const Arrays& in, const Value& args) {
    return Arrays{f(input(in, 0), selector_of(args["axis"]), golden::dtype_of(args["dtype"]))};
  };
}
void arg_reduction(Table& t, const char* name, NamedArray (*f)(Arr, std::optional<AxisSelector>)) {
  t[name] = [f](const Arrays& in, const Value& args) {
    const Value& axis = args["axis"];
    return Arrays{f(input(in, 0), axis ? std::optional(selector_of(axis)) : std::nullopt)};
  };
}
void triangle(Table& t, const char* name,
              NamedArray (*f)(Arr, const AxisSelector&, const AxisSelector&, int)) {
  t[name] = [f](const Arrays& in, const Value& args) {
    const Value* k = args.find("k");
    return Arrays{f(input(in, 0), selector_of(args["axis1"]), selector_of(args["axis2"]),
                    k ? int(k->as_integer()) : 0)};
  };
}

// Calls f with a braced list, for ops that accept one.
template <class F> NamedArray spread(const Arrays& in, F f) {
  switch (in.size()) {
    case 1:
      return f({in[0]});
    case 2:
      return f({in[0], in[1]});
    case 3:
      return f({in[0], in[1], in[2]});
    case 4:
      return f({in[0], in[1], in[2], in[3]});
    default:
      throw BadData("the data has " + std::to_string(in.size()) + " inputs of a contraction");
  }
}

Indices indices_of(const Value& idx, const Arrays& in) {
  Indices out;
  auto bound = [](const Value& v) { return v ? std::optional(v.as_integer()) : std::nullopt; };
  for (const Value& pair : idx.items) {
    const Name name = pair.at(0).as_text();
    const Value& what = pair.at(1);
    if (const Value* i = what.find("int")) {
      out.emplace_back(name, Index(i->as_integer()));
    } else if (const Value* s = what.find("slice")) {
      const Value& step = s->items.size() > 2 ? s->items[2] : Value();
      out.emplace_back(
          name, Index(Slice{bound(s->at(0)), bound(s->at(1)), step ? step.as_integer() : 1}));
    } else if (const Value* d = what.find("dslice")) {
      out.emplace_back(name, Index(ds(Arr(d->at(0).as_integer()), d->at(1).as_integer())));
    } else {
      out.emplace_back(name, Index(input(in, std::size_t(what["input"].as_integer()))));
    }
  }
  return out;
}
IndexMode mode_of(const Value& args, IndexMode otherwise) {
  const Value* mode = args.find("mode");
  if (!mode || !*mode) return otherwise;
  const std::string& name = mode->as_text();
  return name == "clip"   ? IndexMode::clip
         : name == "fill" ? IndexMode::fill
         : name == "drop" ? IndexMode::drop
                          : IndexMode::promise_in_bounds;
}
void placement(Table& t, const char* name, NamedArray (*f)(Arr, const Indices&, Arr, IndexMode)) {
  t[name] = [f](const Arrays& in, const Value& args) {
    const Value* number = args.find("update");
    return Arrays{f(input(in, 0), indices_of(args["idx"], in),
                    number ? number_of(*number) : Arr(input(in, 1)),
                    mode_of(args, IndexMode::drop))};
  };
}

std::vector<std::pair<Name, Name>> pairs_of(const Value& object) {
  std::vector<std::pair<Name, Name>> out;
  for (std::size_t i = 0; i < object.keys.size(); ++i)
    out.emplace_back(object.keys[i], object.items[i].as_text());
  return out;
}
std::vector<std::pair<std::string, AxisSelector>> bindings_of(const Value& object) {
  std::vector<std::pair<std::string, AxisSelector>> out;
  for (std::size_t i = 0; i < object.keys.size(); ++i) {
    const Value& v = object.items[i];
    if (v.is(Value::Kind::integer))
      out.emplace_back(object.keys[i], Axis(Name(object.keys[i]), v.integer));
    else
      out.emplace_back(object.keys[i], selector_of(v));
  }
  return out;
}

// The first axis is the innermost vmap.
Arrays mapped(const Op& inner, const Value& inner_args, const Value& axes, std::size_t count,
              const Arrays& in) {
  if (count == 0) return inner(in, inner_args);
  return vmap([&](const Arrays& xs) { return mapped(inner, inner_args, axes, count - 1, xs); },
              selector_of(axes.at(count - 1)))(in);
}

void add_reductions(Table& t) {
  reduction(t, "sum", sum);
  reduction(t, "mean", mean);
  reduction(t, "prod", prod);
  reduction(t, "max", haliax::max);
  reduction(t, "min", haliax::min);
  reduction(t, "any", any);
  reduction(t, "all", all);
  variance(t, "var", var);
  variance(t, "std", std_dev);
  arg_reduction(t, "argmax", argmax);
  arg_reduction(t, "argmin", argmin);
  over_axes(t, "logsumexp", logsumexp);
  over_axes(t, "softmax", softmax);
  over_axes(t, "log_softmax", log_softmax);
  over_axes(t, "ptp", ptp);
  reduction(t, "amax", amax);
  reduction(t, "amin", amin);
  running(t, "cumsum", cumsum);
  running(t, "cumprod", cumprod);
  along_axis(t, "sort", sort);
  along_axis(t, "argsort", argsort);
  t["standardize"] = [](const Arrays& in, const Value& args) {
    return Arrays{standardize(input(in, 0), selection_of(args["axis"]), args["epsilon"].as_real())};
  };
  t["top_k"] = [](const Arrays& in, const Value& args) {
    const Value& name = args["new_axis"];
    auto [values, indices] = top_k(input(in, 0), selector_of(args["axis"]), args["k"].as_integer(),
                                   name ? std::optional<Name>(name.as_text()) : std::nullopt);
    return Arrays{values, indices};
  };
  t["dot"] = [](const Arrays& in, const Value& args) {
    DotOptions options{.out_axes = {},
                       .preferred_element_type = golden::dtype_of(args["preferred_element_type"])};
    if (const Value* out = args.find("out_axes"); out && *out) options.out_axes = names_of(*out);
    return Arrays{spread(in, [&](std::initializer_list<Arr> xs) {
      return dot(xs, selection_of(args["axis"]), options);
    })};
  };
  t["einsum"] = [](const Arrays& in, const Value& args) {
    return Arrays{spread(
        in, [&](std::initializer_list<Arr> xs) { return einsum(args["spec"].as_text(), xs); })};
  };
}

void add_shapes(Table& t) {
  t["rename"] = [](const Arrays& in, const Value& args) {
    return Arrays{rename(input(in, 0), pairs_of(args["renames"]))};
  };
  t["rename_sized"] = [](const Arrays& in, const Value& args) {
    const Value& pair = args["renames"].at(0);
    return Arrays{rename(input(in, 0), selector_of(pair.at(0)), selector_of(pair.at(1)))};
  };
  t["named"] = [](const Arrays&, const Value& args) {
    Axes plain;
    for (const Value& size : args["shape"].items)
      plain.emplace_back(Name("dim" + std::to_string(plain.size())), size.as_integer());
    return Arrays{named(zeros(plain), spec_of(args["axes"]))};
  };
  t["rearrange"] = [](const Arrays& in, const Value& args) {
    if (args.has("spec"))
      return Arrays{rearrange(input(in, 0), args["spec"].as_text(), bindings_of(args["bindings"]))};
    return Arrays{rearrange(input(in, 0), names_of(args["axes"]))};
  };
  t["broadcast_axis"] = [](const Arrays& in, const Value& args) {
    return Arrays{broadcast_axis(input(in, 0), spec_of(args["axes"]))};
  };
  t["broadcast_to"] = [](const Arrays& in, const Value& args) {
    return Arrays{broadcast_to(input(in, 0), spec_of(args["axes"]),
                               args["ensure_order"].as_flag(true),
                               args["enforce_no_extra_axes"].as_flag(true))};
  };
  t["flatten_axes"] = [](const Arrays& in, const Value& args) {
    return Arrays{
        flatten_axes(input(in, 0), selection_of(args["old_axes"]), selector_of(args["new_axis"]))};
  };
  t["unflatten_axis"] = [](const Arrays& in, const Value& args) {
    return Arrays{
        unflatten_axis(input(in, 0), selector_of(args["axis"]), spec_of(args["new_axes"]))};
  };
  t["ravel"] = [](const Arrays& in, const Value& args) {
    return Arrays{ravel(input(in, 0), selector_of(args["new_axis"]))};
  };
  t["split"] = [](const Arrays& in, const Value& args) {
    return split(input(in, 0), selector_of(args["axis"]), spec_of(args["new_axes"]));
  };
  t["unbind"] = [](const Arrays& in, const Value& args) {
    return unbind(input(in, 0), selector_of(args["axis"]));
  };
  t["stack"] = [](const Arrays& in, const Value& args) {
    return Arrays{stack(selector_of(args["axis"]), in)};
  };
  t["concatenate"] = [](const Arrays& in, const Value& args) {
    return Arrays{concatenate(selector_of(args["axis"]), in)};
  };
  t["repeat"] = [](const Arrays& in, const Value& args) {
    return Arrays{repeat(input(in, 0), selector_of(args["axis"]), args["repeats"].as_integer())};
  };
  t["tile"] = [](const Arrays& in, const Value& args) {
    std::vector<std::pair<AxisSelector, std::int64_t>> reps;
    for (std::size_t i = 0; i < args["reps"].keys.size(); ++i)
      reps.emplace_back(AxisSelector(args["reps"].keys[i]), args["reps"].items[i].as_integer());
    return Arrays{tile(input(in, 0), reps)};
  };
  t["roll"] = [](const Arrays& in, const Value& args) {
    const Value &shift = args["shift"], &axis = args["axis"];
    if (!axis.is(Value::Kind::list))
      return Arrays{roll(input(in, 0), number_of(shift), selector_of(axis))};
    NamedArray x = input(in, 0);
    for (std::size_t i = 0; i < axis.items.size(); ++i)
      x = roll(x, number_of(shift.at(i)), selector_of(axis.items[i]));
    return Arrays{x};
  };
  t["pad"] = [](const Arrays& in, const Value& args) {
    PadWidths widths;
    const Value& w = args["pad_width"];
    for (std::size_t i = 0; i < w.keys.size(); ++i)
      widths.push_back({w.keys[i], {w.items[i].at(0).as_integer(), w.items[i].at(1).as_integer()}});
    return Arrays{pad(input(in, 0), widths, number_of(args["value"]))};
  };
  t["pad_left"] = [](const Arrays& in, const Value& args) {
    return Arrays{pad_left(input(in, 0), selector_of(args["axis"]), axis_of(args["new_axis"]),
                           args.has("value") ? number_of(args["value"]) : Arr(0))};
  };
  t["broadcast_arrays"] = [](const Arrays& in, const Value& args) {
    return broadcast_arrays(in, args["require_subset"].as_flag(true),
                            args["ensure_order"].as_flag(true));
  };
  triangle(t, "tril", tril);
  triangle(t, "triu", triu);
  t["trace"] = [](const Arrays& in, const Value& args) {
    const Value* offset = args.find("offset");
    return Arrays{trace(input(in, 0), selector_of(args["axis1"]), selector_of(args["axis2"]),
                        offset ? int(offset->as_integer()) : 0, golden::dtype_of(args["dtype"]))};
  };
}

void add_indexing(Table& t) {
  t["take"] = [](const Arrays& in, const Value& args) {
    const Value* index = args.find("index");
    return Arrays{take(input(in, 0), selector_of(args["axis"]),
                       index ? number_of(*index) : Arr(input(in, 1)))};
  };
  t["index"] = [](const Arrays& in, const Value& args) {
    return Arrays{index(input(in, 0), indices_of(args["idx"], in))};
  };
  placement(t, "at_set", at_set);
  placement(t, "at_add", at_add);
  placement(t, "at_mul", at_mul);
  placement(t, "at_min", at_min);
  placement(t, "at_max", at_max);
  placement(t, "at_divide", at_divide);
  placement(t, "at_power", at_power);
  t["at_get"] = [](const Arrays& in, const Value& args) {
    std::optional<Arr> fill;
    if (const Value* v = args.find("fill_value"); v && *v) fill = number_of(*v);
    return Arrays{at_get(input(in, 0), indices_of(args["idx"], in),
                         mode_of(args, IndexMode::promise_in_bounds), fill)};
  };
  t["updated_slice"] = [](const Arrays& in, const Value& args) {
    std::vector<std::pair<AxisSelector, NamedArray>> start;
    const Value& s = args["start"];
    for (std::size_t i = 0; i < s.keys.size(); ++i)
      start.emplace_back(AxisSelector(s.keys[i]), number_of(s.items[i]).array());
    return Arrays{updated_slice(input(in, 0), start, input(in, 1))};
  };
  t["slice"] = [](const Arrays& in, const Value& args) {
    auto name = [](const Value& v) { return v ? std::optional<Name>(v.as_text()) : std::nullopt; };
    const Value &start = args["start"], &length = args["length"];
    if (!start.is(Value::Kind::object))
      return Arrays{slice(input(in, 0), selector_of(args["axis"]), number_of(start),
                          length.as_integer(), name(args["new_axis"]))};
    NamedArray x = input(in, 0);
    for (std::size_t i = 0; i < start.keys.size(); ++i) {
      const Value& n = length[start.keys[i]];
      const bool renamed = n.is(Value::Kind::list);
      x = slice(x, AxisSelector(start.keys[i]), number_of(start.items[i]),
                (renamed ? n.at(1) : n).as_integer(), renamed ? name(n.at(0)) : std::nullopt);
    }
    return Arrays{x};
  };
}

LinspaceOptions spacing_of(const Value& args) {
  return {.start = args["start"].as_real(),
          .stop = args["stop"].as_real(),
          .endpoint = args["endpoint"].as_flag(true),
          .dtype = golden::dtype_of(args["dtype"])};
}

void add_creation(Table& t) {
  t["one_hot"] = [](const Arrays& in, const Value& args) {
    const Value* id = args.find("id");
    return Arrays{one_hot(id ? number_of(*id) : Arr(input(in, 0)), axis_of(args["class"]),
                          dtype_or(args["dtype"], DType::f32))};
  };
  t["arange"] = [](const Arrays&, const Value& args) {
    ArangeOptions options;
    if (const Value* start = args.find("start")) options.start = start->as_real();
    if (const Value* step = args.find("step")) options.step = step->as_real();
    options.dtype = golden::dtype_of(args["dtype"]);
    return Arrays{arange(axis_of(args["axis"]), options)};
  };
  t["linspace"] = [](const Arrays&, const Value& args) {
    return Arrays{linspace(selector_of(args["axis"]), spacing_of(args))};
  };
  t["geomspace"] = [](const Arrays&, const Value& args) {
    return Arrays{geomspace(selector_of(args["axis"]), spacing_of(args))};
  };
  t["logspace"] = [](const Arrays&, const Value& args) {
    const LinspaceOptions o = spacing_of(args);
    const Value* base = args.find("base");
    return Arrays{logspace(selector_of(args["axis"]), {.start = o.start,
                                                       .stop = o.stop,
                                                       .endpoint = o.endpoint,
                                                       .base = base ? base->as_real() : 10,
                                                       .dtype = o.dtype})};
  };
  t["zeros"] = [](const Arrays&, const Value& args) {
    return Arrays{zeros(spec_of(args["axes"]), dtype_or(args["dtype"], DType::f32))};
  };
  t["ones"] = [](const Arrays&, const Value& args) {
    return Arrays{ones(spec_of(args["axes"]), dtype_or(args["dtype"], DType::f32))};
  };
  t["full"] = [](const Arrays&, const Value& args) {
    return Arrays{
        full(spec_of(args["axes"]), number_of(args["value"]), golden::dtype_of(args["dtype"]))};
  };
  t["full_like"] = [](const Arrays& in, const Value& args) {
    return Arrays{full_like(input(in, 0), number_of(args["value"]))};
  };
}

}  // namespace

void add_array_ops(Table& t) {
  add_reductions(t);
  add_shapes(t);
  add_indexing(t);
  add_creation(t);
  t["vmap"] = [](const Arrays& in, const Value& args) {
    const std::string& inner = args["inner"].as_text();
    const auto op = table().find(inner);
    if (op == table().end()) throw Skip{"vmap of " + inner};
    const Value& axes = args["axes"];
    return mapped(op->second, args["inner_args"], axes, axes.items.size(), in);
  };
}

}  // namespace golden
