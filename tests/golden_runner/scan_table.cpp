// Loops: scan, fold, map, associative_scan, and Stacked blocks.
#include "haliax/nn.h"
#include "haliax/transforms.h"
#include "table.h"

namespace golden {

using namespace haliax;

namespace {

// Returns dot(c, w over `axis`) with `other` renamed to `axis`, so that the result has the axes of
// c.
NamedArray recur(const NamedArray& c, const NamedArray& w, const char* axis, const char* other) {
  return rename(dot(c, w, axis), AxisSelector(other), AxisSelector(axis));
}

// ---- scan and fold: (carries, inputs at one position) -> (carries, outputs) ----

using Step = std::pair<Arrays, Arrays> (*)(const Arrays& c, const Arrays& x);

Step step_of(const std::string& name) {
  if (name == "cumadd")
    return [](const Arrays& c, const Arrays& x) {
      const NamedArray next = c.at(0) + x.at(0);
      return std::pair{Arrays{next}, Arrays{next}};
    };
  if (name == "rnn")
    return [](const Arrays& c, const Arrays& x) {
      const NamedArray h = tanh(recur(c.at(0), x.at(1), "h", "h2") + x.at(0));
      return std::pair{Arrays{h}, Arrays{h}};
    };
  if (name == "rnn_two")
    return [](const Arrays& c, const Arrays& x) {
      const NamedArray h = tanh(recur(c.at(0), x.at(1), "h", "h2") + x.at(0));
      return std::pair{Arrays{h, c.at(1) + sum(h * h, "h")}, Arrays{h, mean(h, "h")}};
    };
  if (name == "ema")
    return [](const Arrays& c, const Arrays& x) {
      const NamedArray next = c.at(0) * x.at(1) + x.at(0) * (1 - x.at(1));
      return std::pair{Arrays{next}, Arrays{next * x.at(0)}};
    };
  if (name == "runmax_count")
    return [](const Arrays& c, const Arrays& x) {
      return std::pair{Arrays{maximum(c.at(0), x.at(0)), c.at(1) + sum(x.at(0) > 0)},
                       Arrays{maximum(c.at(0), x.at(0)), c.at(1)}};
    };
  if (name == "resid_mlp")
    return [](const Arrays& c, const Arrays& x) {
      const NamedArray hidden = nn::gelu(dot(c.at(0), x.at(0), "embed") + x.at(1));
      const NamedArray next = c.at(0) + dot(hidden, x.at(2), "mlp");
      return std::pair{Arrays{next}, Arrays{sum(next * next, "embed")}};
    };
  throw Skip{"scan of " + name};
}

struct LoopCall {
  Step step;
  AxisSelector axis;
  ScanOptions options;
  Arrays carries, rest;
  LoopCall(const Arrays& in, const Value& args)
      : step(step_of(args["fn"].as_text())), axis(selector_of(args["axis"])) {
    const auto n = std::size_t(args["n_carry"].as_integer());
    if (n > in.size()) throw BadData("a scan with more carries than inputs");
    carries.assign(in.begin(), in.begin() + std::ptrdiff_t(n));
    rest.assign(in.begin() + std::ptrdiff_t(n), in.end());
    options.reverse = args["reverse"].as_flag(false);
    if (const Value* unroll = args.find("unroll")) options.unroll = unroll->as_integer();
  }
};

// ---- map ----

using Each = NamedArray (*)(const NamedArray&);

Each each_of(const std::string& name) {
  if (name == "softmax_embed") return [](const NamedArray& x) { return softmax(x, "embed"); };
  if (name == "sum_sq") return [](const NamedArray& x) { return sum(x * x, "embed"); };
  if (name == "sorted") return [](const NamedArray& x) { return sort(x, "embed"); };
  if (name == "outer")
    return [](const NamedArray& x) {
      return x * broadcast_axis(rename(x, AxisSelector("embed"), AxisSelector("embed2")), x.axes());
    };
  throw Skip{"map of " + name};
}

// ---- blocks ----

struct LinearTanh {
  NamedArray w, b;
  static LinearTanh from(const Arrays& in) { return {input(in, 1), input(in, 2)}; }
  static constexpr std::size_t inputs = 3;
  NamedArray operator()(const NamedArray& x) const {
    return tanh(recur(x, w, "embed", "embed2") + b);
  }
};
struct PrenormMlp {
  NamedArray g, w1, b1, w2;
  static PrenormMlp from(const Arrays& in) {
    return {input(in, 1), input(in, 2), input(in, 3), input(in, 4)};
  }
  static constexpr std::size_t inputs = 5;
  NamedArray operator()(const NamedArray& x) const {
    const nn::LayerNorm norm{.axis = x.resolve_axis("embed"), .weight = g, .bias = {}};
    return x + dot(nn::gelu(dot(norm(x), w1, "embed") + b1), w2, "mlp");
  }
};
// A block whose extra inputs are added to its result.
template <class B> struct Extended {
  B block;
  NamedArray operator()(const NamedArray& x) const { return block(x); }
  NamedArray operator()(const NamedArray& x, const NamedArray& extra) const {
    return block(x) + extra;
  }
};
// A block that also emits the mean square of its result.
template <class B> struct Emitting {
  Extended<B> block;
  template <class... Extra>
  std::pair<NamedArray, NamedArray> operator()(const NamedArray& x, const Extra&... extra) const {
    const NamedArray y = block(x, extra...);
    return {y, mean(y * y, "embed")};
  }
};

// f(stacked blocks, x, extra inputs...)
template <class B, class F> Arrays on_stacked(const Arrays& in, const Value& args, F f) {
  const B block = B::from(in);
  const Axis Layers = flatten(block)[0].resolve_axis(selector_of(args["Block"]));
  const nn::Stacked<Extended<B>> stacked{
      {block}, Layers, ScanCheckpoint(args["checkpoint"].as_flag(false))};
  if (in.size() > B::inputs + 1) throw Skip{"blocks with several extra inputs"};
  if (in.size() == B::inputs) return f(stacked, in[0]);
  return f(stacked, in[0], in[B::inputs]);
}
template <class F> Op stacked_op(F f) {
  return [f](const Arrays& in, const Value& args) {
    const std::string& block = args["block"].as_text();
    if (block == "linear_tanh") return on_stacked<LinearTanh>(in, args, f);
    if (block == "prenorm_mlp") return on_stacked<PrenormMlp>(in, args, f);
    throw Skip{"blocks of " + block};
  };
}

}  // namespace

void add_scan_ops(Table& t) {
  t["scan"] = [](const Arrays& in, const Value& args) {
    const LoopCall call(in, args);
    auto [carries, emitted] = scan(call.step, call.axis, call.options)(call.carries, call.rest);
    carries.insert(carries.end(), emitted.begin(), emitted.end());
    return carries;
  };
  t["fold"] = [](const Arrays& in, const Value& args) {
    const LoopCall call(in, args);
    auto step = [f = call.step](const Arrays& c, const Arrays& x) { return f(c, x).first; };
    return fold(step, call.axis, call.options)(call.carries, call.rest);
  };
  t["map"] = [](const Arrays& in, const Value& args) {
    ScanOptions options;
    options.reverse = args["reverse"].as_flag(false);
    return Arrays{
        map(each_of(args["fn"].as_text()), selector_of(args["axis"]), options)(input(in, 0))};
  };
  t["associative_scan"] = [](const Arrays& in, const Value& args) {
    const std::string& name = args["fn"].as_text();
    const AxisSelector axis = selector_of(args["axis"]);
    const bool reverse = args["reverse"].as_flag(false);
    if (name == "linear") {  // b_t <- a_t b_{t-1} + b_t
      auto combine = [](const Arrays& l, const Arrays& r) {
        return Arrays{r[0] * l[0], r[0] * l[1] + r[1]};
      };
      return associative_scan(combine, axis, Arrays{input(in, 0), input(in, 1)}, reverse);
    }
    NamedArray (*f)(Arr, Arr) = name == "add"   ? add
                                : name == "mul" ? multiply
                                : name == "max" ? maximum
                                : name == "min" ? minimum
                                                : nullptr;
    if (!f) throw Skip{"associative_scan of " + name};
    return Arrays{
        associative_scan([f](const NamedArray& a, const NamedArray& b) { return f(a, b); }, axis,
                         input(in, 0), reverse)};
  };

  t["stacked_fold"] =
      stacked_op([](const auto& stacked, const NamedArray& x, const auto&... extra) {
        return Arrays{stacked.fold(x, extra...)};
      });
  t["stacked_scan"] = stacked_op(
      []<class B>(const nn::Stacked<Extended<B>>& s, const NamedArray& x, const auto&... extra) {
        const nn::Stacked<Emitting<B>> emitting{{s.stacked}, s.Layers, s.gradient_checkpointing};
        auto [y, squares] = emitting.scan(x, extra...);
        return Arrays{y, squares};
      });
  t["stacked_unstacked"] = stacked_op([](const auto& stacked, const auto&...) {
    Arrays out;
    for (const auto& block : stacked.unstacked())
      for (const NamedArray& a : flatten(block)) out.push_back(a);
    return out;
  });
}

}  // namespace golden
