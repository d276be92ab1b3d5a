// Keys and draws: known answers, keys along an axis, vmap and scan over keys, bounds, empty keys.
// The golden tests have more.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "haliax/haliax.h"
#include "support/near.h"

using namespace haliax;

namespace {

const Axis A("a", 3), B("b", 5);
using Ints = std::vector<std::int64_t>;
NamedArray floats(std::initializer_list<double> v) {
  return array(v, Axis("a", std::int64_t(v.size())));
}

}  // namespace

TEST_CASE("random: draws for seed 0 match JAX") {
  auto k = random::key(0);
  CHECK(k.words.integers() == Ints{0, 0});
  CHECK(random::key(2147483653).words.integers() == Ints{0, 2147483653});
  CHECK(random::split(k, Axis("s", 3)).words.integers() ==
        Ints{1797259609, 2579123966, 928981903, 3453687069, 4146024105, 2718843009});
  CHECK(random::fold_in(k, 17).words.integers() == Ints{2763999920, 494843597});
  CHECK(random::bits(k, Axis("a", 7)).integers() ==
        Ints{4070199207, 4202968722, 1427181096, 2012915765, 2447653815, 710830403, 1332275837});
  CHECK(difference(random::uniform(k, Axis("a", 4)),
                   floats({0.9476670026779175, 0.9785798788070679, 0.33229148387908936,
                           0.46866846084594727}),
                   0) == "");
  CHECK(difference(random::normal(k, Axis("a", 3)),
                   floats({1.622642159461975, 2.0252647399902344, -0.4335944354534149}),
                   1e-5) == "");
  Ints randint = random::randint(k, {{"a", 2}, {"b", 3}, {"c", 5}}, 0, 97).integers();
  CHECK(Ints(randint.begin(), randint.begin() + 8) == Ints{54, 13, 74, 61, 7, 21, 93, 61});
  Ints coins = random::bernoulli(k, {A, B}, 0.5).integers();
  CHECK(Ints(coins.begin(), coins.begin() + 8) == Ints{0, 0, 1, 1, 0, 1, 1, 0});
  // The position is row-major in the requested axes, whatever their names.
  CHECK(random::bits(k, {A, B}).integers() == random::bits(k, Axis("z", 15)).integers());
}

TEST_CASE("random: split returns the same keys one by one, as an array and along an axis") {
  auto k = random::key(42);
  auto [first, second, third] = random::split<3>(k);
  auto along = random::split(k, A);
  CHECK(along.words.axes() == Axes{A, Axis(key_word, 2)});
  auto rows = along.words.unbind("a");
  CHECK(difference(rows[0], first.words, 0) == "");
  CHECK(difference(rows[1], second.words, 0) == "");
  CHECK(difference(rows[2], third.words, 0) == "");
  CHECK(random::split(k, 3)[2].words.integers() == third.words.integers());
  CHECK(first.words.integers() != second.words.integers());
  CHECK_THROWS_WITH_AS(random::split(along, B), doctest::Contains("array of keys over (a=3)"),
                       Error);
  CHECK(difference(random::key(first.words.rename({{key_word, "word"}})).words, first.words, 0) ==
        "");
}

TEST_CASE("random: under vmap and scan each key draws from position 0") {
  auto keys = random::split(random::key(1), A);
  auto draw = [](const Key& k) { return random::uniform(k, B); };
  Leaves each;
  for (auto& row : keys.words.unbind("a")) each.push_back(draw(Key{row}));
  auto expected = stack(A, each);
  CHECK(difference(vmap(draw, "a")(keys), expected, 0) == "");
  CHECK(difference(map(draw, "a")(keys), expected, 0) == "");
  CHECK(difference(jit(vmap(draw, "a"))(keys), expected, 0) == "");
  // One key for all positions: the same values everywhere.
  auto shared = vmap([&](const NamedArray& x) { return random::uniform(random::key(1), B) + x; },
                     "a")(zeros(A));
  CHECK(difference(shared, broadcast_axis(random::uniform(random::key(1), B), A), 0) == "");
  CHECK_THROWS_WITH_AS(random::uniform(keys, B), doctest::Contains("array of keys over (a=3)"),
                       Error);
}

TEST_CASE("random: uniform draws stay within their bounds") {
  auto k = random::key(7);
  Axis n("n", 1000);
  auto u = random::uniform(k, n).floats();
  CHECK(*std::min_element(u.begin(), u.end()) >= 0);
  CHECK(*std::max_element(u.begin(), u.end()) < 1);
  CHECK(mean(random::uniform(k, n)).item() == doctest::Approx(0.5).epsilon(0.05));
  auto low = floats({-1, 0, 10}), high = floats({0, 5, 11});
  auto v = random::uniform(k, {A, n}, low, high);  // bounds broadcast by name
  CHECK(all(v >= low).item() == 1);
  CHECK(all(v < high).item() == 1);
  CHECK(difference(random::uniform(k, n, 3., 3.), full(n, 3.), 0) == "");
  for (auto d : {DType::f64, DType::f16, DType::bf16})
    CHECK(random::uniform(k, n, 0., 1., d).dtype() == d);
  CHECK(all(random::uniform(k, n, 0., 1., DType::bf16) < 1).item() == 1);
  CHECK_THROWS_WITH_AS(random::uniform(k, n, low), doctest::Contains("axis a"), Error);
  CHECK_THROWS_WITH_AS(random::uniform(k, n, 0., 1., DType::i32),
                       doctest::Contains("expected a float dtype, got i32"), Error);
  auto g = grad([&](const NamedArray& h) { return sum(random::uniform(k, {A, n}, low, h)); })(high);
  // bounds have gradients
  CHECK(difference(g, sum(random::uniform(k, {A, n}), "n"), 1e-4) == "");
}

TEST_CASE("random: the other samplers have the right range and moments") {
  auto k = random::key(3);
  Axis n("n", 2000);
  auto z = random::normal(k, n);
  CHECK(mean(z).item() == doctest::Approx(0).epsilon(0.1));
  CHECK(std_dev(z).item() == doctest::Approx(1).epsilon(0.1));
  auto t = random::truncated_normal(k, n, -1, 2);
  CHECK(all(t >= -1).item() == 1);
  CHECK(all(t <= 2).item() == 1);
  auto i = random::randint(k, n, -3, 4);
  CHECK(i.dtype() == DType::i32);
  CHECK(min(i).item() == -3);
  CHECK(max(i).item() == 3);
  CHECK(mean(random::bernoulli(k, n, 0.25).astype(DType::f32)).item() ==
        doctest::Approx(0.25).epsilon(0.15));
  CHECK(sum(random::bernoulli(k, n, 0.)).item() == 0);
  CHECK(sum(random::bernoulli(k, n, 1.)).item() == 2000);
  auto p = random::permutation(k, n).integers();
  CHECK(std::set<std::int64_t>(p.begin(), p.end()).size() == 2000);
  auto c = random::categorical(k, array({-100, 0, -100}, A), "a", AxisSpec{n});
  CHECK(c.axes() == Axes{n});
  CHECK(difference(c, full(n, 1, DType::i32), 0) == "");
  CHECK(random::gumbel(k, {A, B}).axes() == Axes{A, B});
  CHECK(all(random::exponential(k, n) >= 0).item() == 1);
}

TEST_CASE("random: an empty key disables randomness") {
  Key none;
  CHECK(!none);
  for (auto& k : random::split(none, 3)) CHECK(!k);
  CHECK(!random::split(none, A));
  CHECK(!random::fold_in(none, 3));
  CHECK_THROWS_WITH_AS(random::normal(none, A), doctest::Contains("the key is empty"), Error);
  auto doubled =
      vmap([](const Key& k, const NamedArray& x) { return k ? x : x * 2; }, "a")(none, ones(A));
  CHECK(difference(doubled, full(A, 2.), 0) == "");
}

TEST_CASE("random: invalid keys and arguments raise") {
  CHECK_THROWS_WITH_AS(random::key(array({1, 2}, Axis(key_word, 2))),
                       doctest::Contains("u32, got f32"), Error);
  CHECK_THROWS_WITH_AS(random::key(array(std::vector<std::uint32_t>{1, 2, 3}, Axis("word", 3))),
                       doctest::Contains("[random.key]"), Error);
  CHECK_THROWS_WITH_AS(random::split(random::key(0), -1),
                       doctest::Contains("n is -1; it must not be negative"), Error);
  CHECK_THROWS_WITH_AS(random::fold_in(random::key(0), 1.5),
                       doctest::Contains("[random.fold_in] 1.5"), Error);
  CHECK_THROWS_WITH_AS(random::bits(random::key(0), A, DType::i32), doctest::Contains("got i32"),
                       Error);
  CHECK_THROWS_WITH_AS(random::bernoulli(random::key(0), A, 1.5), doctest::Contains("from 0 to 1"),
                       Error);
  CHECK_THROWS_WITH_AS(random::randint(random::key(0), A, 0, 1.5),
                       doctest::Contains("not an integer"), Error);
  CHECK_THROWS_WITH_AS(random::categorical(random::key(0), zeros(A), "aa"),
                       doctest::Contains("did you mean a?"), Error);
}
