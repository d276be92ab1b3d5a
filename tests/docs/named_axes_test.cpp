// The code of docs/concepts/named-axes.md, compiled and run.
#include <doctest/doctest.h>

#include <iostream>

#include "docs/printed.h"
#include "haliax/haliax.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch{"batch", 2}, Embed{"embed", 3};

}  // namespace

TEST_CASE("named axes: the smallest example prints named values") {
  Printed out;
  Axis Batch{"batch", 2}, Embed{"embed", 3}, Mlp{"mlp", 4};
  auto x = array({1, 2, 3, 4, 5, 6}, {Batch, Embed});
  auto bias = array({10, 20, 30}, Embed);
  auto weight = ones({Mlp, Embed});

  out.start();
  std::cout << x + bias << "\n";                 // bias broadcasts over batch
  std::cout << mean(x, "batch") << "\n";         // reduces batch
  std::cout << dot(x, weight, "embed") << "\n";  // a matmul: contracts embed
  std::cout << rename(x, "batch", "example").axes() << "\n";
  CHECK(out.text() ==
        "NamedArray(f32, (batch=2, embed=3), [[11, 22, 33], [14, 25, 36]])\n"
        "NamedArray(f32, (embed=3), [2.5, 3.5, 4.5])\n"
        "NamedArray(f32, (batch=2, mlp=4), [[6, 6, 6, 6], [15, 15, 15, 15]])\n"
        "(example=2, embed=3)");
}

TEST_CASE("named axes: an axis is a name and a size") {
  Axis Pos{"position", 16};
  auto KeyPos = Pos.alias("key_position");  // another name, the same size
  auto Short = Pos.resize(8);               // the same name, another size
  CHECK(KeyPos.size == 16);
  CHECK(Short.name == Pos.name);
  CHECK_FALSE(Short == Pos);
  raises([] { return Axis("n", -1); }, {"size -1"});
  raises([] { return zeros({Axis("n", 2), Axis("n", 2)}); }, {"axis n"});
  CHECK(zeros(Axis("n", 0)).size() == 0);
}

TEST_CASE("named axes: selections") {
  auto x = ones({Batch, Embed});
  auto a = sum(x, "embed");           // by name
  auto b = sum(x, Embed);             // by axis: checks the size as well
  auto c = sum(x, {"batch", Embed});  // several axes
  auto d = sum(x);                    // all axes
  auto e = sum(x, Names{});           // no axis
  CHECK(a.axes() == b.axes());
  CHECK(c.ndim() == 0);
  CHECK(d.item() == 6);
  CHECK(e.axes() == x.axes());

  Printed out;
  out.start();
  try {
    sum(x, "embd");
  } catch (const haliax::Error& error) {
    std::cout << error.what() << "\n";
  }
  CHECK(out.text().starts_with(
      "[sum] axis embd is not in (batch=2, embed=3); did you mean embed?; "));
}

TEST_CASE("named axes: broadcasting is by name, and partial overlap raises") {
  Printed out;
  auto x = ones({Batch, Embed});
  auto scale = ones(Axis("heads", 4));
  out.start();
  std::cout << (x * broadcast_axis(scale, x.axes())).axes() << "\n";
  CHECK(out.text() == "(batch=2, embed=3, heads=4)");
  raises([&] { return x * scale; }, {"[multiply]", "broadcast_axis"});
  raises([&] { return x + ones(Embed.resize(1)); }, {"axis embed has size 3", "and 1"});
  CHECK((ones(Embed) + x).axes() == x.axes());
  auto transposed = rearrange(x, {"embed", "batch"});
  CHECK((x + transposed).axes() == x.axes());
  CHECK((transposed + x).axes() == transposed.axes());
}

TEST_CASE("named axes: the order of result axes") {
  auto x = ones({Batch, Embed});
  CHECK(broadcast_axis(x, Axis("heads", 4)).axes()[0].name == Name("heads"));
  CHECK(stack("layer", {x, x}).axes()[0].name == Name("layer"));
  auto ids = zeros({Axis("token", 5)}, DType::i32);
  CHECK(to_string(take(x, "embed", ids).axes()) == "(batch=2, token=5)");
  CHECK(to_string(flatten_axes(x, {"batch", "embed"}, "flat").axes()) == "(flat=6)");
  CHECK(to_string(one_hot(ids, Axis("class", 7)).axes()) == "(token=5, class=7)");
  CHECK(to_string(dot(x, ones({Axis("out", 2), Embed}), "embed", {.out_axes = Names{"out", "..."}})
                      .axes()) == "(out=2, batch=2)");
  CHECK(to_string(vmap([](const NamedArray& v) { return v * 2.; }, "embed")(x).axes()) ==
        "(embed=3, batch=2)");
}

TEST_CASE("named axes: indexing, updates and methods") {
  Printed out;
  auto x = arange({Batch, Embed});
  auto ids = array(std::vector<std::int32_t>{2, 0}, Axis("pick", 2));

  out.start();
  std::cout << x[{"embed", 1}] << "\n";            // a position: removes the axis
  std::cout << x[{"embed", Slice{0, 2}}] << "\n";  // a range
  std::cout << x[{"embed", ids}] << "\n";          // positions in an array
  std::cout << x.at({"embed", 1}).set(9) << "\n";  // a copy with a changed part
  CHECK(out.text() ==
        "NamedArray(i32, (batch=2), [1, 4])\n"
        "NamedArray(i32, (batch=2, embed=2), [[0, 1], [3, 4]])\n"
        "NamedArray(i32, (batch=2, pick=2), [[2, 0], [5, 3]])\n"
        "NamedArray(i32, (batch=2, embed=3), [[0, 9, 2], [3, 9, 5]])");
  raises([&] { return x[{"embed", 3}]; }, {"embed"});
  CHECK(x[{"embed", -1}].integers() == std::vector<std::int64_t>{2, 5});

  auto y = x;
  y += 1;  // y refers to a new array, x is unchanged
  CHECK(x.integers()[0] == 0);
  CHECK(y.integers()[0] == 1);
  CHECK(x.sum("embed").integers() == sum(x, "embed").integers());
}

TEST_CASE("named axes: with a shared axis, the axes that take adds come first") {
  const Axis B("b", 2), T("t", 3), E("e", 4), Sel("sel", 5);
  auto x = zeros({B, T, E}), ids = zeros({B, Sel}, DType::i32);
  CHECK(take(x, "t", ids).axes() == Axes{Sel, B, E});
  CHECK(x[{"t", ids}].axes() == Axes{B, Sel, E});
}

TEST_CASE("named axes: attention names both position axes") {
  Axis Pos{"position", 4}, Head{"head_size", 8};
  auto q = random::normal(random::key(0), {Pos, Head});
  auto k = random::normal(random::key(1), {Pos, Head}), v = k;
  auto KeyPos = Pos.alias("key_position");
  auto keys = rename(k, Pos, KeyPos), values = rename(v, Pos, KeyPos);
  auto weights = softmax(dot(q, keys, "head_size"), KeyPos);  // (position, key_position)
  auto mixed = dot(weights, values, KeyPos);                  // (position, head_size)
  CHECK(mixed.axes() == Axes{Pos, Head});
}
