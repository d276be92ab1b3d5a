// Tests of debug::print, debug::check and HALIAX_NANS, eagerly and in compiled functions.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>

#include "haliax/haliax.h"
#include "support/nans.h"
#include "support/raises.h"

using namespace haliax;
using Lines = std::vector<std::string>;

namespace {

const Axis Batch("batch", 4), Embed("embed", 2);
Lines lines;
std::mutex lock;
struct Caught {  // Collects printed lines during its lifetime.
  Caught() {
    lines.clear();
    debug::set_output([](std::string_view line) {
      std::lock_guard hold(lock);
      lines.emplace_back(line);
    });
  }
  ~Caught() { debug::set_output(nullptr); }
};
std::string text(const NamedArray& a) { return a.to_string(); }
NamedArray number(double v) { return NamedArray(v); }

}  // namespace

TEST_CASE("debug: print prints at once outside of jit, and in each call inside") {
  Caught caught;
  auto x = arange(Embed) * 2.;
  auto f = [](const NamedArray& a) {
    auto y = a + 1.;
    debug::print("y is {}, {{a}} is {}", y, a);
    debug::print("and no more");
    return sum(y);
  };
  f(x);
  const Lines once{"y is " + text(x + 1.) + ", {a} is " + text(x), "and no more"};
  CHECK(lines == once);
  auto compiled = jit(f);
  compiled(x);
  lines.clear();
  compiled(x);
  compiled(x);
  CHECK(lines == Lines{once[0], once[1], once[0], once[1]});
  jit(f, {.backend = "reference"})(x);
  CHECK(lines.size() == 6);
  eval_shape(f, x);
  CHECK(lines.size() == 6);
}

TEST_CASE(
    "debug: prints are in order and once per iteration of a loop, whichever results are read") {
  Caught caught;
  auto body = [](const NamedArray& c, const NamedArray& x) {
    debug::print("{}", x);
    return std::pair(c + x, x * 2.);
  };
  auto x = arange(Batch) * 1.;
  auto f = [&](const NamedArray& v) {
    debug::print("before");
    auto out = scan(body, "batch")(number(0), v).first;
    debug::print("after {}", out);
    return v;
  };
  const Lines wanted{"before",        text(number(0)), text(number(1)),
                     text(number(2)), text(number(3)), "after " + text(number(6))};
  jit(f)(x);
  CHECK(lines == wanted);
  lines.clear();
  jit(f, {.backend = "reference"})(x);
  CHECK(lines == wanted);
  lines.clear();
  f(x);
  CHECK(lines == wanted);
}

TEST_CASE("debug: a gradient prints the lines of its function once") {
  Caught caught;
  auto x = arange(Batch) * 1.;
  auto loss = [](const NamedArray& w) {
    auto inside = checkpoint([](const NamedArray& v) {
      auto y = exp(v);
      debug::print("inside {}", sum(y));
      return y;
    });
    auto body = [](const NamedArray& c, const NamedArray& v) {
      debug::print("turn");
      return tanh(c * v) + v;
    };
    return fold(body, "batch")(number(1), inside(w));
  };
  const auto sums = "inside " + text(sum(exp(x)));
  for (auto* backend : {"cpu", "reference"}) {
    lines.clear();
    jit(value_and_grad(loss), {.backend = backend})(x);
    CHECK(lines == Lines{sums, "turn", "turn", "turn", "turn"});
  }
  lines.clear();
  grad(loss)(x);
  CHECK(lines == Lines{sums, "turn", "turn", "turn", "turn"});
}

TEST_CASE("debug: on a mesh print prints once, with full values") {
  Caught caught;
  Mesh mesh{{{"data", 2}}};
  auto x = arange({Batch, Embed}) * 1.;
  auto f = [](const NamedArray& v) {
    debug::print("{} {}", v * 2., sum(v));
    return v + 1.;
  };
  named_jit(f, {.mesh = mesh, .axis_resources = Mapping{{"batch", "data"}}})(x);
  CHECK(lines == Lines{text(x * 2.) + " " + text(sum(x))});
}

TEST_CASE(
    "debug: under vmap print prints all positions, and cond prints only the selected branch") {
  Caught caught;
  auto x = arange({Batch, Embed}) * 1.;
  auto row = [](const NamedArray& v) {
    debug::print("{}", v);
    return sum(v);
  };
  vmap(row, "batch")(x);
  CHECK(lines == Lines{text(x)});
  lines.clear();
  jit(vmap(row, "batch"))(x);
  CHECK(lines == Lines{text(x)});
  auto f = [](const NamedArray& v) {
    auto side = [](const char* name) {
      return [name](const NamedArray& a) {
        debug::print(name);
        return a;
      };
    };
    return cond(sum(v) > 0., side("one"), side("other"))(v);
  };
  lines.clear();
  jit(f)(x);
  jit(f)(-x);
  f(x);
  CHECK(lines == Lines{"one", "other", "one"});
}

TEST_CASE("debug: check raises with its line, in jit and on a mesh too") {
  auto x = arange(Batch) * 1.;
  auto f = [](const NamedArray& v) {
    debug::check(v < 3., "a value is too large");
    return v * 2.;
  };
  raises([&] { return f(x); }, {"[check] a value is too large; debug_test.cpp:"});
  auto compiled = jit(f);
  raises([&] { return compiled(x); }, {"[check] a value is too large; debug_test.cpp:"});
  CHECK(compiled(x - 1.).floats() == std::vector<float>{-2, 0, 2, 4});
  Mesh mesh{{{"data", 2}}};
  auto on_mesh = named_jit(f, {.mesh = mesh, .axis_resources = Mapping{{"batch", "data"}}});
  raises([&] { return on_mesh(x); }, {"[check] a value is too large; debug_test.cpp:"});
  CHECK(on_mesh(x - 1.).floats() == std::vector<float>{-2, 0, 2, 4});
}

TEST_CASE("debug: eager prints appear once and in order, however results are read") {
  Caught caught;
  auto x = (arange(Batch) * 1.).eval();
  auto body = [](const NamedArray& c, const NamedArray& v) {
    debug::print("turn {}", v);
    return std::pair(c + v, v * 2.);
  };
  struct Read {
    const char* name;
    void (*of)(const NamedArray& last, const NamedArray& each);
  } reads[] = {
      {"the carry", [](const NamedArray& last, const NamedArray&) { CHECK(last.item() == 6); }},
      {"each", [](const NamedArray&, const NamedArray& each) { CHECK(each.floats()[3] == 6); }},
      {"one after the other",
       [](const NamedArray& last, const NamedArray& each) {
         CHECK(each.floats()[3] == 6);
         CHECK(last.item() == 6);
         CHECK(sum(each + last).item() == 36);
       }},
      {"both at once",
       [](const NamedArray& last, const NamedArray& each) {
         eval(std::vector{last, each});
       }},
      {"part of what is made of them", [](const NamedArray& last, const NamedArray& each) {
         auto y = each * last, z = sum(y) + 1.;
         CHECK(z.item() == 73);
         CHECK(y.floats()[1] == 12);
       }}};
  const Lines iteration_lines{"before",
                              "turn " + text(number(0)),
                              "turn " + text(number(1)),
                              "turn " + text(number(2)),
                              "turn " + text(number(3)),
                              "behind"};
  for (std::string backend : {"cpu", "reference"}) {
    set_default_backend(backend);
    for (auto& read : reads) {
      CAPTURE(backend);
      CAPTURE(read.name);
      lines.clear();
      auto lazy = x * 1.;
      debug::print("before");
      auto [last, each] = scan(body, "batch")(number(0), lazy);
      debug::print("behind");
      read.of(last, each);
      CHECK(lines == iteration_lines);
      auto y = exp(each);
      debug::print("side");
      auto side = y * 2.;
      auto yes = [](const NamedArray& a) {
        debug::print("yes");
        return a;
      };
      auto picked = cond(last > 0., yes, [](const NamedArray& a) { return -a; })(side);
      sum(picked).item();
      y.floats();
      picked.floats();
      Lines more = iteration_lines;
      more.insert(more.end(), {"side", "yes"});
      CHECK(lines == more);
    }
  }
  set_default_backend("cpu");
}

TEST_CASE("debug: printing does not recompute values outside of jit") {
  Caught caught;
  static std::atomic<int> ran;
  static const auto layer =
      custom_op({.name = "layer",
                 .along = {AxisRule::whole},
                 .cpu = {[](Strided<const float> x, Strided<float> y) {
                   ++ran;
                   for (std::int64_t i = 0; i < x.size(); ++i) y(i) = x(i) / 2;
                 }},
                 .grad = [](const CustomCall& c) { return std::vector{c.g / 2.}; }});
  const auto x = (arange(Batch) * 1.).eval();
  constexpr int layers = 6;
  auto net = [](NamedArray h) {
    for (int i = 0; i < layers; ++i) {
      h = layer(h, "batch");
      debug::print("{}", sum(h));
      debug::check(h >= 0., "negative");
    }
    return sum(square(h));
  };
  auto runs = [](auto f) {
    ran = 0;
    f();
    return ran.load();
  };
  CHECK(runs([&] { return net(x).item(); }) == layers);
  for (bool other_threads : {false, true}) {  // another thread compiles the graph again
    CAPTURE(other_threads);
    if (other_threads) std::thread([&] { net(x).item(); }).join();
    CHECK(runs([&] {
            auto [loss, slope] = value_and_grad(net)(x);
            return loss.item() + slope.floats()[0];
          }) == layers);
    auto body = [](const NamedArray& h, const NamedArray&) {
      auto next = layer(h, "batch");
      debug::print("{}", next);
      return std::pair(next, sum(next));
    };
    CHECK(runs([&] {
            auto [last, each] = scan(body, Axis("turn", layers))(x, zeros(Axis("turn", layers)));
            return last.floats()[0] + each.floats()[0];
          }) == layers);
    auto side = [](const NamedArray& h) {
      auto y = layer(h, "batch");
      debug::print("{}", y);
      return y;
    };
    CHECK(runs([&] { return cond(x.sum() > 0., side, side)(x).floats(); }) == 1);
    auto checkpointed = checkpoint([&](const NamedArray& h) {
      auto y = layer(h, "batch");
      debug::print("{}", y);
      return y + 1.;
    });
    CHECK(runs([&] { return checkpointed(x).floats(); }) == 1);
  }
}

TEST_CASE("debug: an op that raises outside of jit runs only once") {
  static std::atomic<int> ran;
  static const auto refuses = custom_op({.name = "refuses",
                                         .along = {AxisRule::whole},
                                         .cpu = {[](Strided<const float>, Strided<float>) {
                                           ++ran;
                                           throw Error("[refuses] as ever");
                                         }}});
  auto x = (arange(Batch) * 1.).eval();
  auto live = exp(x * 3.), other = sum(live * x);  // intermediates that are still referenced
  auto y = refuses(live + other, "batch");
  CHECK(error_of([&] { return y.floats(); }).starts_with("[refuses] as ever; debug_test.cpp:"));
  CHECK(ran == 1);
  CHECK(live.floats()[0] == 1);
}

TEST_CASE("debug: each thread prints its own lines in order, with shared arrays") {
  Caught caught;
  auto x = arange(Batch) * 1., shared = tanh(x);
  const auto [last, each] = scan(
      [](const NamedArray& c, const NamedArray& v) {
        debug::print("shared {}", v);
        return std::pair(c + v, v * 2.);
      },
      "batch")(number(0), shared);
  auto compiled = jit([](const NamedArray& v, const NamedArray& by) {
    debug::print("{}", by);
    return v * by;
  });
  constexpr int threads = 4, steps = 20;
  std::vector<std::thread> all;
  std::atomic<int> wrong{0};
  for (int t = 0; t < threads; ++t)
    all.emplace_back([&, t] {
      for (int k = 0; k < steps; ++k) {
        auto mine = shared * double(k + 1) + last;
        debug::print("{} {}", number(t), sum(mine) * 0. + double(k));
        compiled(each, number(100 + 100 * t + k));
        wrong += !(std::abs(each.floats()[1] - 2 * std::tanh(1)) < 1e-6);
      }
    });
  for (auto& t : all) t.join();
  CHECK(wrong == 0);
  int of_shared = 0;
  std::vector<Lines> by(threads);
  std::vector<Lines> wanted(threads);  // the lines of each thread, in its order
  for (int t = 0; t < threads; ++t)
    for (int k = 0; k < steps; ++k) {
      wanted[std::size_t(t)].push_back(text(number(t)) + " " + text(number(k)));
      wanted[std::size_t(t)].push_back(text(number(100 + 100 * t + k)));
    }
  for (auto& line : lines) {
    of_shared += line.starts_with("shared");
    for (std::size_t t = 0; t < threads; ++t)
      by[t].insert(by[t].end(), std::count(wanted[t].begin(), wanted[t].end(), line) > 0, line);
  }
  CHECK(of_shared == 4);
  CHECK(lines.size() == std::size_t(4 + threads * steps * 2));
  for (std::size_t t = 0; t < threads; ++t) CHECK(by[t] == wanted[t]);
}

TEST_CASE("debug: invalid arguments of print and check raise") {
  auto x = arange(Batch) * 1.;
  raises(
      [&] {
        debug::print("{} {}", x);
        return 0;
      },
      {"[print] the format string has 2 placeholders {}, but there are 1 values"});
  raises(
      [&] {
        debug::check(x, "no");
        return 0;
      },
      {"[check] condition: expected bool, got f32"});
  auto chunks = [&] {
    return chunked_reduce("batch", {}, [](const NamedArray& v) {
      debug::print("{}", v);
      return sum(v);
    })(x);
  };
  raises(chunks, {"[print] values are not materialized inside chunked_reduce"});
}

TEST_CASE(
    "debug: HALIAX_NANS stops at the step that produces a NaN or an infinity from finite values") {
  test::Nans nans;
  auto x = arange(Batch) * 1.;
  raises([&] { return log(x).floats(); },
         {"[log] produces inf from finite values; debug_test.cpp:"});
  raises([&] { return cumsum(x * 1e38, Batch).floats(); },
         {"[cumsum] produces inf from finite values; debug_test.cpp:"});
  raises([&] { return jit([](const NamedArray& v) { return sum(sqrt(v - 1.)) * 2.; })(x); },
         {"[sqrt] produces NaN from finite values; debug_test.cpp:"});
  auto f = [](const NamedArray& v) {
    return fold([](const NamedArray& c, const NamedArray& a) { return c + exp(a * 100.); },
                "batch")(number(0), v);
  };
  for (auto* backend : {"cpu", "reference"})
    raises([&] { return jit(f, {.backend = backend})(x); },
           {"[exp] produces inf from finite values; debug_test.cpp:"});
  // Infinite inputs, infinite constants and a mask of -inf pass.
  auto masked = [](const NamedArray& v) { return softmax(where(v > 1., v, -1. / 0.), "batch"); };
  CHECK(jit(masked)(x).floats()[0] == 0);
  const auto infinite = array({1. / 0., 1.}, Embed);
  CHECK(jit([](const NamedArray& v) { return max(v / 2.) + 1.; })(infinite).item() > 1e30);
  Mesh mesh{{{"data", 2}}};
  const Mapping mapping{{"batch", "data"}};
  auto on_mesh = named_jit([](const NamedArray& v) { return log(v); },
                           {.mesh = mesh, .axis_resources = mapping});
  raises([&] { return on_mesh(x); }, {"[log] produces inf"});
  struct Layer {
    nn::Linear up;
    NamedArray operator()(const NamedArray& v) const { return log(up(v)); }
  };
  const Axis Mlp("mlp", 2);
  Layer layer{nn::Linear::init(Batch, Mlp, random::key(0))};
  raises(
      [&] { return jit([](const Layer& l, const NamedArray& v) { return l(v); })(layer, x * 0.); },
      {"[log] produces inf"});
  // The error names the layer, outside of jit too.
  layer.up = nn::Linear::init(Batch, Mlp, random::key(1), {.init_scale = 1e38});
  raises([&] { return layer.up(x + 1e3).floats(); },
         {"[dot] produces inf", ", in a layer whose weight was created at debug_test.cpp:"});
  (void)summary(layer);
  raises([&] { return layer.up(x + 1e3).floats(); },
         {"[dot] produces inf", "debug_test.cpp:", ", in up"});
}

TEST_CASE("debug: a fold prints in each iteration and a check stops it") {
  Caught caught;
  auto step = [](const NamedArray& state, const NamedArray& x) {
    auto next = tanh(state + x);
    debug::print("next is {}, its mean {}", next, mean(next));
    debug::check(max(next) < 1., "the state saturates");
    return next;
  };
  auto last = jit([&](const NamedArray& xs) { return fold(step, "time")(zeros(Embed), xs); });
  last(ones({Axis("time", 3), Embed}));
  CHECK(lines.size() == 3);
  raises(
      [&] {
        return last(ones({Axis("time", 3), Embed}) * 1000.);
      },
      {"[check] the state saturates; debug_test.cpp:"});
}
