// chunked_reduce gives what f gives on the whole arrays, whatever the chunk; what it cannot cut it refuses by name.
#include <doctest/doctest.h>

#include "haliax/jit.h"
#include "haliax/losses.h"
#include "haliax/nn.h"
#include "near.h"

using namespace haliax;

namespace {

const Axis Tokens{"tokens", 11}, Batch{"batch", 4}, Embed{"embed", 3}, Vocab{"vocab", 6};

NamedArray normal(int seed, const AxisSpec& axes) { return random::normal(random::key(seed), axes, DType::f64); }

// f in chunks of 1, 4, 11 and 20 positions, jitted, against f itself.
template <class F, class... A>
void agrees(const AxisSelection& axes, F f, const A&... args) {
  auto want = flatten(f(args...));
  for (std::int64_t chunk : {1, 4, 11, 20}) {
    CAPTURE(chunk);
    auto got = flatten(jit([=](const A&... a) { return chunked_reduce(axes, {.chunk = chunk}, f)(a...); })(args...));
    REQUIRE(got.size() == want.size());
    for (std::size_t k = 0; k < got.size(); ++k) {
      CAPTURE(k);
      CHECK(difference(got[k], want[k], 1e-12) == "");
    }
  }
}
template <class F>
std::string message(F f) {
  try {
    f();
  } catch (const Error& e) { return e.what(); }
  return "";
}

}  // namespace

TEST_CASE("chunked: folds, stacks, and what follows a fold") {
  auto f = [](const NamedArray& x, const NamedArray& w) {
    auto y = tanh(dot(x, w, "embed"));  // (tokens, vocab)
    return std::vector<NamedArray>{sum(y, "tokens"),
                                   mean(y),
                                   max(y, "tokens"),
                                   min(y, "tokens"),
                                   exp(mean(y)),
                                   y * 2.,
                                   y.rename({{"vocab", "words"}}),
                                   argmax(y, "vocab"),
                                   dot(y, x, "tokens")};
  };
  agrees("tokens", f, normal(1, {Tokens, Embed}), normal(2, {Vocab, Embed}));
}

TEST_CASE("chunked: softmax and logsumexp over the walked axis itself stream") {
  auto f = [](const NamedArray& x) {
    return std::vector<NamedArray>{logsumexp(x, "tokens"), argmax(x, "tokens"), softmax(x, "tokens"), var(x, "tokens")};
  };
  agrees("tokens", f, normal(1, {Tokens, Embed}) * 30.);
}

TEST_CASE("chunked: several axes, the first outermost") {
  auto f = [](const NamedArray& x) { return std::vector<NamedArray>{sum(square(x)), max(x, "tokens"), x + 1.}; };
  agrees({"batch", "tokens"}, f, normal(1, {Batch, Tokens, Embed}));
}

TEST_CASE("chunked: a draw inside is the slice of the whole draw") {
  auto f = [](const NamedArray& x) { return x * random::uniform(random::key(5), {Tokens, Embed}, 0., 1., DType::f64); };
  agrees("tokens", f, normal(1, {Tokens, Embed}));
}

TEST_CASE("chunked: gradients, of arguments and of what f captured") {
  auto x = normal(1, {Tokens, Embed}), w = normal(2, {Vocab, Embed}),
       mask = random::uniform(random::key(3), Tokens, 0., 1., DType::f64);
  auto loss = [&](std::int64_t chunk) {
    auto with = [=](const std::pair<NamedArray, NamedArray>& p) {
      auto each = [w = p.second, mask](const NamedArray& a) {
        return sum(logsumexp(dot(a, w, "embed"), "vocab") * mask);
      };  // mask: whole, captured
      return chunk ? chunked_reduce("tokens", {.chunk = chunk}, each)(p.first) : each(p.first);
    };
    return flatten(jit(value_and_grad(with))(std::pair{x, w}));
  };
  auto want = loss(0);
  for (std::int64_t chunk : {1, 3, 11})
    for (std::size_t k = 0; auto& got : loss(chunk)) CHECK(difference(got, want[k++], 1e-12) == "");
}

TEST_CASE("chunked: forms: one sweep with three contractions, or the chunk made again, four") {
  const Axis Even{"tokens", 12};  // one body
  auto x = normal(1, {Even, Embed}), w = normal(2, {Vocab, Embed});
  auto ids = random::randint(random::key(3), Even, 0, 6);
  for (ChunkForm form : {ChunkForm::automatic, ChunkForm::sweep, ChunkForm::recompute}) {
    CAPTURE(int(form));
    auto f = jit([=](const std::pair<NamedArray, NamedArray>& p) {
      return value_and_grad([=](const std::pair<NamedArray, NamedArray>& q) {
        return mean(
            nn::chunked_cross_entropy(q.first, q.second, ids, Embed, Vocab, Even, {.chunks = {.chunk = 4, .form = form}}));
      })(p);
    });
    f(std::pair{x, w});
    CHECK(f.report().contractions == (form == ChunkForm::recompute ? 4 : 3));
    CHECK(f.report().loops == (form == ChunkForm::recompute ? 2 : 1));
  }
}

TEST_CASE("chunked: what needs the whole axis at once is refused by name") {
  auto x = normal(1, {Tokens, Embed});
  auto refused = [&](auto f) { return message([&] { chunked_reduce("tokens", {.chunk = 4}, f)(x); }); };
  for (auto& text : {refused([](const NamedArray& a) { return cumsum(a, "tokens"); }),
                     refused([](const NamedArray& a) { return sort(a, "tokens"); }),
                     refused([](const NamedArray& a) { return roll(a, 1, "tokens"); })}) {
    CAPTURE(text);
    CHECK(text.starts_with("[chunked_reduce]"));
    CHECK(text.find("tokens=11") != std::string::npos);
  }
  auto same = [](const NamedArray& a) { return a; };
  CHECK(message([&] { chunked_reduce("words", {.chunk = 4}, same)(x); }).find("words") != std::string::npos);
  CHECK(message([&] { chunked_reduce("tokens", {.chunk = -1}, same)(x); }).find("positive") != std::string::npos);
  auto squares = [](const NamedArray& a) { return sum(square(dot(a, a.rename({{"embed", "other"}}), {}))); };   // (tokens, embed, other)
  CHECK(message([&] { chunked_reduce("tokens", {.memory = 8}, squares)(x); }).find("8 allowed") != std::string::npos);
  CHECK(message([&] { chunked_reduce("tokens", {.chunk = 0}, same)(x); }).find("positive") != std::string::npos);
  CHECK(message([&] { chunked_reduce("token", {.chunk = 4}, same)(x); }).find("did you mean tokens") != std::string::npos);
}
