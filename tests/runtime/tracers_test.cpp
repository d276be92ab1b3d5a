// Errors of leaked tracers: the function, and the lines where the tracer was created and read.
// Errors of trees, files and backends have a line too.
#include <doctest/doctest.h>

#include <functional>

#include "haliax/haliax.h"
#include "haliax/state_dict.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis N("n", 4), M("m", 3);
NamedArray leaked;
std::string line(int offset = 0, int of = __builtin_LINE()) {
  return "tracers_test.cpp:" + std::to_string(of + offset);
}

NamedArray keep(const NamedArray& v) {
  leaked = v * 2.;
  return v;
}
const std::string made = line(-3);

// Checks the message `... it was created at MADE inside BY ... ; READ`.
void left(const std::string& message, const std::string& by, const std::string& read) {
  CAPTURE(message);
  CHECK(has(message,
            "[eval] this array is a leaked tracer: it was created at " + made + " inside " + by));
  CHECK(has(message, "return it from that function; " + read));
}

}  // namespace

TEST_CASE(
    "tracers: a leaked tracer raises with the lines of jit, of its creation and of the read") {
  auto x = ones(N);
  auto f = jit(keep);
  auto at = line(-1);
  f(x);
  left(message_of([&] { leaked.floats(); }), "jit (" + at + ")", line());
  // The error names the leaked tracer, not values computed from it.
  left(message_of([&] { sum(leaked + 1.).item(); }), "jit (" + at + ")", line());
  left(message_of([&] { eval(std::vector{leaked}); }), "jit (" + at + ")", line());
  CHECK(has(message_of([&] { (void)bool(sum(leaked) > 1.); }), "a leaked tracer"));
  CHECK(has(leaked.to_string(), "leaked from jit (" + at));
  auto g = jit([](const NamedArray& v) { return v + leaked; });
  auto at_g = line(-1);
  left(message_of([&] { g(x); }), "jit (" + at + ")", at_g);
  left(message_of([&] { f(leaked); }), "jit (" + at + ")", at);
  CHECK(g.report().traces == 1);
  leaked = x;
  CHECK(g(x).floats() == std::vector<float>(4, 2));  // works after the error
  jit(grad([](const NamedArray& v) { return sum(keep(v)); }))(x);
  left(message_of([&] { leaked.floats(); }), "jit (" + line(-1) + ")", line());
  set_devices(2);
  named_jit(keep, {.mesh = Mesh{{{"d", 2}}}, .axis_resources = Mapping{{"n", "d"}}})(x);
  left(message_of([&] { leaked.floats(); }), "jit (" + line(-1) + ")", line());
  set_devices(8);
}

TEST_CASE("tracers: leaked tracers of vmap, scan, shapes and checkpoints raise") {
  auto x = array({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {N, M});
  vmap(keep, N)(x);
  left(message_of([&] { leaked.floats(); }), "vmap over n (" + line(-1) + ")", line());
  CHECK(has(message_of([&] { (leaked + x).floats(); }), "inside vmap over n"));
  haliax::map(keep, N, {.at = SourceLocation::current()})(x);
  left(message_of([&] { leaked.floats(); }), "scan (" + line(-1) + ")", line());
  jit([](const NamedArray& v) { return v * 3.; })(
      x);  // the leaked tracers are not valid in this trace
  CHECK(has(message_of([&] { jit([](const NamedArray& v) { return v + leaked; })(x); }),
            "a leaked tracer"));
  eval_shape(keep, x);
  left(message_of([&] { leaked.floats(); }), "eval_shape", line());
  CHECK(has(message_of([&] { eval_shape(keep, x).floats(); }), "this array is from eval_shape"));
  checkpoint(keep)(x);
  left(message_of([&] { leaked.floats(); }), "checkpoint (" + line(-1) + ")", line());
  // a gradient that is computed at once has values
  grad([](const NamedArray& v) { return sum(keep(v)); })(x);
  CHECK(leaked.floats()[0] == 2);
  leaked = {};
}

TEST_CASE("tracers: a tracer leaked by a scan is not valid in the next scan over that axis") {
  auto x = array({1, 2, 3, 4}, N);
  // The slices of x are equal nodes, and stay alive throughout.
  auto other = haliax::map([](const NamedArray& v) { return v * 3.; }, N)(x);
  CHECK(haliax::map(keep, N)(x).floats() == x.floats());
  auto at = line(-1);
  auto left_in = [&](auto f, std::string where) {
    auto message = message_of(f);
    CAPTURE(message);
    CHECK(has(message, "] the function reads a leaked tracer: it was created at " + made +
                           " inside scan (" + at + ") and has a value only there"));
    CHECK(has(message, "return it from that function; " + where));
  };
  auto reads = [](const NamedArray& v) { return v + leaked; };
  left_in([&] { return haliax::map(reads, N)(x); }, line());
  left_in(
      [&] {
        return fold([](const NamedArray& c, const NamedArray&) { return c + leaked; }, N)(
            NamedArray(0.), x);
      },
      line(-3));
  left_in([&] { return jit([&](const NamedArray& v) { return haliax::map(reads, N)(v); })(x); },
          line(-1));
  left_in(
      [&] { return grad([&](const NamedArray& v) { return sum(haliax::map(reads, N)(v)); })(x); },
      line(-1));
  auto nested = [&](const NamedArray& v) { return v * haliax::map(reads, M)(ones(M)); };
  left_in([&] { return haliax::map(nested, N)(x); }, line());
  // A scan over another axis does not accept it either, and its results name the origin.
  left(message_of([&] { haliax::map(reads, M)(ones(M)).floats(); }), "scan (" + at + ")", line());
  haliax::map(
      [&](const NamedArray& v) {
        left(message_of([&] { leaked.floats(); }), "scan (" + at + ")", line());
        return v;
      },
      N)(x);
  // Values inside an iteration are new nodes in each scan, even if they equal earlier ones.
  leaked = {};
  auto repeated = haliax::map([](const NamedArray& v) { return v * 3.; }, N)(x);
  CHECK(repeated.floats() == other.floats());
  auto twice = [&](const NamedArray& v) {
    auto body = [&](const NamedArray& c, const NamedArray& a) { return c * 0.5 + a * a; };
    return fold(body, N)(NamedArray(1.), v) + fold(body, N)(NamedArray(1.), v * 2.);
  };
  auto eager = grad(twice)(x).floats();
  CHECK(eager == jit(grad(twice))(x).floats());
  NamedArray carried;
  auto body = [&](const NamedArray& c, const NamedArray& a) {
    carried = c;
    return c + a;
  };
  fold(body, N)(NamedArray(0.), x);
  CHECK(has(message_of([&] {
              fold([&](const NamedArray& c, const NamedArray&) { return c + carried; }, N)(
                  NamedArray(0.), x);
            }),
            "a leaked tracer"));
}

TEST_CASE("tracers: reading a tracer inside its function raises with the transform") {
  auto x = array({1, 2, 3, 4}, N);
  CHECK(has(message_of([&] { jit([](const NamedArray& v) { return v * v.floats()[0]; })(x); }),
            "the value of a traced array is not available inside jit ("));
  CHECK(has(message_of([&] { vmap([](const NamedArray& v) { return v * v.item(); }, N)(x); }),
            "inside vmap over n ("));
  CHECK(
      has(message_of([&] { haliax::map([](const NamedArray& v) { return v * v.item(); }, N)(x); }),
          "inside scan ("));
  auto nested = jit([](const NamedArray& v) {
    // an argument of jit that is read inside vmap
    return vmap([&](const NamedArray& one) { return one * sum(v).item(); }, N)(v);
  });
  CHECK(has(message_of([&] { nested(x); }),
            "the value of a traced array is not available inside jit ("));
}

TEST_CASE("tracers: errors of trees, files and backends have a line") {
  CHECK(has(message_of([&] { set_default_backend("gpu"); }), "there is no backend gpu"));
  CHECK(has(message_of([&] { set_default_backend("gpu"); }), line()));
  CHECK(has(
      message_of([&] { jit([](const NamedArray& v) { return v; }, {.backend = "cpi"})(ones(N)); }),
      line()));
  CHECK(has(message_of([&] { read_safetensors("/nowhere/x"); }), line()));
  CHECK(has(message_of([&] { write_safetensors("/nowhere/x", {}); }), line()));
  CHECK(has(message_of([&] { TensorFile().at("w"); }), line()));
  CHECK(has(message_of([&] { read_npy("/nowhere/x"); }), line()));
  CHECK(has(message_of([&] { read_npz("/nowhere/x"); }), line()));
  CHECK(has(message_of([&] { write_npy("/nowhere/x", to_tensor(ones(N))); }), line()));
  CHECK(has(message_of([&] { write_npz("/nowhere/x", {{to_tensor(ones(N))}, {}}); }), line()));
  CHECK(has(message_of([&] {
              set_devices(0);
              return 0;
            }),
            line()));
  CHECK(has(message_of([&] { Mesh{{{"data", 2}}}.size("model"); }), line()));
  auto l = nn::Linear::init(N, M, random::key(0));
  CHECK(has(message_of([&] { from_state_dict(TensorFile(), l); }), line()));
  StateOptions options;  // set one by one, as below
  options.prefix = "model";
  CHECK(has(message_of([&] { from_state_dict(TensorFile(), l, options); }), line()));
  ToStateOptions written;
  written.prefix = "model";
  CHECK(has(message_of([&] {
              to_state_dict(std::pair(l, l), {{"0", ""}, {"1", ""}}, written);
            }),
            line()));
  CHECK(has(message_of([&] {
              from_state_dict(TensorFile(), l, StateNames{{"weight", "w"}});
            }),
            line()));
  CHECK(has(message_of([&] { to_state_dict(std::pair(l, l), {{"0", ""}, {"1", ""}}); }), line()));
  CHECK(has(message_of([&] { NamedArray().axes(); }), line()));
  Jitted<NamedArray(const NamedArray&)> none;
  CHECK(has(message_of([&] { none(ones(N)); }), line()));
  CHECK(has(message_of([&] { none.plan(ones(N)); }), line()));
  CHECK(has(message_of([&] { none.report(); }), line()));
  CHECK(has(message_of([&] { StaticFunction<NamedArray(Arr)>()(1.); }), line()));
  for (int count : {-1, 2000}) CHECK(has(message_of([&] { set_threads(count); }), line()));
  CHECK(message_of([&] {
          set_threads(2000);
        }).find("[set_threads] count is 2000; expected 1 to 1024, or 0") == 0);
}

TEST_CASE("tracers: set_threads raises inside a custom kernel") {
  static const auto sets =
      custom_op({.name = "sets",
                 .along = {AxisRule::whole},
                 .cpu = {[](Strided<const float>, Strided<float>) { set_threads(2); }}});
  const auto set_at = line(-1);
  auto message = message_of([&] { sets(ones({M, N}), "n").eval(); });
  CAPTURE(message);
  CHECK(message.find("[set_threads] must not be called by a function "
                     "that runs on these threads; call it outside") == 0);
  CHECK(has(message, set_at));
}

TEST_CASE("tracers: a conversion to bool has no call site, so its error names the preceding call") {
  NamedArray none;
  (void)ones(N);
  const auto before = line(-1);
  CHECK(message_of([&] { return bool(none); }) ==
        "[bool] an empty NamedArray has no truth value; use x.empty() to test whether there is an "
        "array; after the call at " +
            before);
  CHECK(has(message_of([&] { return !none; }), "after the call at " + before));
  auto traced = message_of([&] {
    return jit([&](const NamedArray& v) {
      auto twice = v * 2.;
      return none ? v : twice;
    })(ones(N));
  });
  CHECK(has(traced, "[bool] an empty NamedArray has no truth value"));
  CHECK(has(traced, "tracers_test.cpp:"));
}

namespace {
struct Model {
  nn::Linear up;
  nn::Linear down;
};
}  // namespace

TEST_CASE("tracers: an error in a layer outside of grad and jit names the layer") {
  auto made_at = line(1);
  auto l = nn::Linear::init(N, M, random::key(0));
  auto message = message_of([&] { l(ones(M)); });
  CHECK(has(message, "[linear] axis n is not in the input (m=3)"));
  CHECK(has(message, line(-2) + ", in a layer whose weight was created at " + made_at));
  // Arrays that jit returned have their path.
  auto init = jit([](const Key& k) {
    return Model{nn::Linear::init(N, M, k), nn::Linear::init(M, N, k)};
  });
  auto m = init(random::key(0));
  CHECK(has(message_of([&] { m.down(ones(N)); }), line() + ", in down"));
  auto step = jit(
      [](const Model& model, const NamedArray& x) { return std::tuple(model, sum(model.up(x))); });
  auto [after, loss] = step(m, ones(N));
  CHECK(has(message_of([&, &trained = after] { trained.down(ones(N)); }), line() + ", in down"));
}

TEST_CASE("tracers: every function that traverses a model records the paths of its layers") {
  struct Net {
    Model a, b;
  };
  auto model = [](int seed) {
    auto k = random::key(seed);
    return Model{nn::Linear::init(N, M, k), nn::Linear::init(M, N, k)};
  };
  auto made = [&] { return Net{model(1), model(2)}; };
  auto where = [](const nn::Linear& l) { return message_of([&] { l(ones(Axis("other", 2))); }); };
  const Net alone = made();
  CHECK(has(where(alone.b.down), "in a layer whose weight was created at " + line(-5)));

  auto loss = [](const Net& n) { return sum(n.a.up(ones(N))); };
  Net retained;
  std::function<void(const Net&)> seen_by[] = {
      [](const Net& n) { optim::adamw().init(n); }, [](const Net& n) { summary(n); },
      [](const Net& n) { tree_to_string(n); },      [](const Net& n) { trainable(n, "up"); },
      [&](const Net& n) { grad(loss)(n); },         [&](const Net& n) { jit(loss)(n); },
      [&](const Net& n) { jit(loss).plan(n); }};
  for (auto& see : seen_by) {
    const Net n = made();
    see(n);
    CHECK(has(where(n.b.down), ", in b.down"));
    retained = n;
  }
  CHECK(has(where(from_state_dict(to_state_dict(made()), made()).b.up), ", in b.up"));
  // An updated array keeps its path. Part of another tree still has the common suffix of both
  // paths.
  auto updated = optim::apply_updates(retained, retained);
  CHECK(has(where(updated.a.down), ", in a.down"));
  eval(flatten(updated));
  CHECK(has(where(updated.a.down), ", in a.down"));
  summary(std::pair(0, updated));
  CHECK(has(where(updated.a.down), ", in a.down"));
  // Shared arrays have no unique path.
  const auto shared = nn::Linear::init(N, M, random::key(3));
  const Model both{shared, shared};
  summary(both);
  CHECK(has(where(both.up), "in a layer whose weight was created at " + line(-3)));
}
