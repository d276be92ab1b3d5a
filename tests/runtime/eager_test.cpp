// Loops without jit: the values that reading a result caches, and the values that it does not.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "haliax/haliax.h"
#include "support/memory.h"
#include "support/near.h"
#include "transforms/rewrite.h"

using namespace haliax;

namespace {

const Axis B("batch", 8), In("in", 6), Out("out", 3), Layers("layers", 3), Hidden("hidden", 6);

// Returns the number of nodes without a value that the arrays of the trees depend on.
template <class... T> std::size_t pending(const T&... trees) {
  Nodes roots, out;
  ((roots =
        [&] {
          for (auto& a : flatten(trees))
            if (!a.empty()) roots.push_back(a.node());
          return roots;
        }()),
   ...);
  traverse(roots, [&](const NodePtr& n, PendingNodes& todo) {
    if (n->value) return;
    out.push_back(n);
    add_reads(n, todo);
  });
  return out.size();
}

struct Block {
  nn::Linear up, down;
  NamedArray operator()(Arr x) const { return x + down(nn::gelu(up(x))); }
};
struct Model {
  nn::Linear in;
  nn::Stacked<Block> blocks;
  nn::Linear out;
  static Model init(const Key& key) {
    auto [a, b, c] = random::split<3>(key);
    const Axis wide("wide", 12);
    auto block = [&](const Key& k) {
      auto [u, d] = random::split<2>(k);
      return Block{nn::Linear::init(Hidden, wide, u), nn::Linear::init(wide, Hidden, d)};
    };
    return {nn::Linear::init(In, Hidden, a),
            nn::Stacked<Block>::init(Layers, block, random::split(b, Layers)),
            nn::Linear::init(Hidden, Out, c)};
  }
  NamedArray operator()(const NamedArray& x) const { return out(blocks.fold(in(x))); }
};
NamedArray plain(const Model& m, const NamedArray& x, const NamedArray& y) {
  return mean(square(m(x) - y));
}

// Returns, for each step in `at`, the number of nodes that reading its loss computes, before or
// after the update, and the number that stays uncomputed.
template <class Loss, class Optimizer>
std::vector<std::size_t> sizes(const Loss& loss_of, const Optimizer& optimizer, bool read_first,
                               const std::vector<int>& at) {
  auto model = Model::init(random::key(0));
  auto state = optimizer.init(model);
  NamedArray total = 0.;
  std::vector<std::size_t> out;
  for (int i = 0; i <= at.back(); ++i) {
    auto x = random::normal(random::key(2 * i), {B, In}).eval(),
         y = random::normal(random::key(2 * i + 1), {B, Out}).eval();
    auto [loss, g] = value_and_grad([&](const Model& m) { return loss_of(m, x, y); })(model);
    if (read_first) loss.eval();
    auto [updates, next] = optimizer.update(g, state, model);
    model = optim::apply_updates(model, updates);
    state = next;
    total = total + loss * 0.5;
    auto before = pending(loss);
    CHECK(loss.item() > 0);
    if (std::find(at.begin(), at.end(), i) == at.end()) continue;
    out.push_back(before);
    out.push_back(pending(model, state, loss));
  }
  return out;
}
template <class Loss, class Optimizer>
void check_constant(const Loss& loss, const Optimizer& optimizer,
                    const std::vector<int>& at = {10, 16}) {
  for (bool read_first : {false, true}) {
    CAPTURE(read_first);
    auto s = sizes(loss, optimizer, read_first, at);
    CHECK(s[0] == s[2]);
    CHECK(s[1] == s[3]);
  }
}

double seconds_of_this_thread() {
  std::timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}
struct Unverified {  // the verifier dominates the time of a small step
  Unverified() { setenv("HALIAX_VERIFY", "0", 1); }
  ~Unverified() { setenv("HALIAX_VERIFY", "1", 1); }
};

}  // namespace

TEST_CASE(
    "eager: a training loop that reads only its loss "
    "computes the same number of nodes at each step") {
  check_constant(plain, optim::adamw());
  check_constant(plain, optim::sgd({.momentum = 0.9}));
  check_constant(
      plain, optim::chain(optim::ClipByGlobalNorm{1.0}, optim::ScaleByAdam{}, optim::Scale{-1e-3}));
}

TEST_CASE(
    "eager: the number of nodes per step is constant with checkpoints, "
    "chunks and a custom backward pass") {
  check_constant([](const Model& m, const NamedArray& x,
                    const NamedArray& y) { return checkpoint(plain)(m, x, y); },
                 optim::adamw());
  check_constant(
      [](const Model& m, const NamedArray& x, const NamedArray& y) {
        auto shallow = [](const Model& q, const NamedArray& x, const NamedArray& y) {
          return mean(square(q.out(q.in(x)) - y));
        };
        auto rest = [](const nn::Linear& l) {
          return mean(square(l.weight)) + mean(square(*l.bias));
        };
        return chunked_reduce(B, {.chunk = 3}, shallow)(m, x, y) + rest(m.blocks.stacked.up) +
               rest(m.blocks.stacked.down);
      },
      optim::adamw(), {7, 8});
  auto twice = custom_vjp(
      [](const NamedArray& v) { return v * 2.; },
      [](const auto&, const NamedArray&, const NamedArray& g) { return std::tuple{g * 2.}; });
  check_constant([&](const Model& m, const NamedArray& x,
                     const NamedArray& y) { return twice(plain(m, x, y)); },
                 optim::adamw());
}

TEST_CASE("eager: memory stays constant over the steps of a loop") {
  const Axis n("n", 1 << 18);  // 1 MiB
  auto x = ones(n).eval();
  std::int64_t first = 0;
  for (int i = 0; i < 100; ++i) {
    x = x * 0.999 + cos(x) * 0.001;
    CHECK(sum(x).item() > 0);
    if (i == 20) first = resident_bytes();
  }
  CHECK(resident_bytes() - first < 8 << 20);
}

TEST_CASE("eager: step 1000 is as fast as step 10, in the same memory") {
  const Unverified unverified;
  const auto optimizer = optim::adamw({.learning_rate = 1e-3});
  auto model = Model::init(random::key(0));
  auto state = optimizer.init(model);
  const auto x = random::normal(random::key(1), {B, In}).eval(),
             y = random::normal(random::key(2), {B, Out}).eval();
  std::vector<double> seconds;
  std::vector<std::size_t> nodes;
  std::int64_t memory = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto began = seconds_of_this_thread();
    auto [loss, g] = value_and_grad([&](const Model& m) { return plain(m, x, y); })(model);
    auto [updates, next] = optimizer.update(g, state, model);
    model = optim::apply_updates(model, updates);
    state = next;
    nodes.push_back(pending(loss, model, state));
    REQUIRE(loss.item() > 0);
    seconds.push_back(seconds_of_this_thread() - began);
    if (i == 100) memory = resident_bytes();
  }
  CHECK(nodes[999] == nodes[10]);
  CHECK(resident_bytes() - memory < 2 << 20);
  auto best = [&](int from, int to) {
    return *std::min_element(seconds.begin() + from, seconds.begin() + to);
  };
  CHECK(best(500, 1000) < 1.3 * best(10, 60));  // long, since other processes slow down some steps
}

TEST_CASE("eager: an intermediate is cached if and only if an array refers to it") {
  auto x = arange(In, {.dtype = DType::f32}).eval();
  auto y = exp(x), z = sum(y * 3.);
  z.eval();
  CHECK(y.node()->value);
  CHECK(y.node()->in.empty());
  auto view = y.rename({{"in", "other"}});
  auto w = exp(exp(x) * 2.);
  sum(w.rename({{"in", "other"}})).eval();  // caches the base of the view, not the view
  CHECK(w.node()->value);
  CHECK(!view.node()->value);
  // A much larger value that would be stored only for the cache is not cached.
  const Axis a("a", 4500), b("b", 4500);
  auto from = random::uniform(random::key(0), a).eval(),
       to = random::uniform(random::key(1), b).eval();
  auto d = broadcast_axis(from, b) - to;  // 77 MiB
  CHECK(max(d * d, {a, b}).item() <= 1);
  CHECK(!d.node()->value);
}

TEST_CASE("eager: nodes retain their operands while a gradient may need them") {
  auto x = arange(In, {.dtype = DType::f32}).eval();
  auto [y, pull] = vjp(
      [](const NamedArray& v) {
        auto square = v * v;
        CHECK(sum(square).item() == 55);  // reads a value while the function is differentiated
        CHECK(v.floats()[5] == 5);
        return square * 2.;
      },
      x);
  CHECK(sum(y).item() == 110);
  CHECK(pull(ones(In)).floats() == std::vector<float>{0, 4, 8, 12, 16, 20});
  CHECK(pull(ones(In)).floats() == std::vector<float>{0, 4, 8, 12, 16, 20});
}

TEST_CASE("eager: intermediates are cached and memory is reused") {
  auto x = arange(In, {.dtype = DType::f32}).eval();
  auto y = exp(x * 2.);     // nothing runs
  auto z = sum(y * y);      // nothing runs
  double total = z.item();  // one program runs: it makes z, and y, which is remembered too
  CHECK(total > 0);
  CHECK(y.node()->value);
  NamedArray average = x, steps = 0.;
  for (int i = 0; i < 3; ++i) {
    average = average * 0.9 + x * 0.1;
    steps = steps + 1.;
  }

  std::vector<NamedArray> now{average, steps};
  eval(now);  // both from here on are values
  CHECK(average.node()->value);
  CHECK(steps.item() == 3);
}
