// Plans and Programs of five functions, as text, after sharding and after lowering. Review a change
// of these files as you review code: `build/tests/compile --update` writes them again.
#include <doctest/doctest.h>

#include <cstdlib>
#include <regex>

#include "compile/traced.h"
#include "support/golden_dir.h"

using namespace haliax;

namespace {

const Axis Batch{"batch", 8}, Embed{"embed", 16}, Mlp{"mlp", 32}, Vocab{"vocab", 24},
    Layers{"layers", 4};
const Mesh data{{{"data", 2}}}, both{{{"data", 2}, {"model", 2}}};

// A function of arrays, compiled for the first device of a mesh. `out` is the mapping of the
// results.
struct Program {
  std::string name;
  Mesh mesh;
  Mapping compute, out;
  std::vector<test::TracedArgument> arguments;
  Leaves (*f)(const Leaves&);
  PartitionOptions options = {};

  // Returns the text after sharding, and after lowering.
  std::pair<std::string, std::string> text() const {
    use_mesh on(mesh);
    axis_mapping by(compute);
    detail::Tracing tracing;
    auto c = test::traced(arguments, f, {.mesh = &mesh, .partition = options}, out);
    run(c, Stage::graph, Stage::sharding);
    auto first = on_device(c, 0);
    run(first, Stage::device, Stage::program);
    // removes bytes and lines of code, which other tests check
    static const std::regex place("    # .*"), bytes("arena .*|slot .*\n");
    auto without = [](const std::string& text, const std::regex& what) {
      return std::regex_replace(text, what, "");
    };
    return {without(c.partition->text(), place),
            without(without(program::to_string(*first.program), place), bytes)};
  }
};

NamedArray mlp(const Leaves& in) {
  return mean(square(dot(nn::gelu(dot(in[0], in[1], Embed)), in[2], Mlp) - in[0]));
}
Leaves with_gradients(NamedArray (*loss)(const Leaves&), const Leaves& in,
                      std::vector<std::size_t> by) {
  std::vector<NamedArray> parameters;
  for (auto k : by) parameters.push_back(in[k]);
  auto [value, g] = value_and_grad([&](const std::vector<NamedArray>& p) {
    auto all = in;
    for (std::size_t i = 0; i < by.size(); ++i) all[by[i]] = p[i];
    return loss(all);
  })(parameters);
  Leaves out{value};
  out.insert(out.end(), g.begin(), g.end());
  return out;
}
NamedArray layers(const Leaves& in) {  // a scan over layers, each checkpointed
  auto y = fold(
      [](const NamedArray& x, const NamedArray& w) {
        return tanh(rename(dot(x, w, Embed), {{"next", "embed"}}));
      },
      Layers, {.checkpoint = "full"})(in[0], in[1]);
  return mean(square(y));
}
NamedArray loss_in_chunks(const Leaves& in) {
  auto losses = [](const NamedArray& x, const NamedArray& w, const NamedArray& ids) {
    return mean(nn::cross_entropy_loss(dot(x, w, Embed), Vocab, ids));
  };
  return chunked_reduce("batch", {.chunk = 2}, losses)(in[0], in[1], in[2]);
}

const std::vector<Program> programs{
    {"data_parallel",
     data,
     {{"batch", "data"}},
     {},
     {{"x", {Batch, Embed}, {{"batch", "data"}}}, {"up", {Embed, Mlp}}, {"down", {Mlp, Embed}}},
     [](const Leaves& in) {
       return with_gradients(mlp, in, {1, 2});
     }},
    {"fully_sharded_layers",
     data,
     {{"batch", "data"}},
     {{"embed", "data"}},
     {{"x", {Batch, Embed}, {{"batch", "data"}}},
      {"w", {Layers, Embed, Axis("next", 16)}, {{"embed", "data"}}}},
     [](const Leaves& in) { return with_gradients(layers, in, {1}); }},
    {"tensor_parallel",
     both,
     {{"batch", "data"}, {"mlp", "model"}},
     {{"mlp", "model"}},
     {{"x", {Batch, Embed}, {{"batch", "data"}}},
      {"up", {Embed, Mlp}, {{"mlp", "model"}}},
      {"down", {Mlp, Embed}, {{"mlp", "model"}}}},
     [](const Leaves& in) {
       return with_gradients(mlp, in, {1, 2});
     }},
    {"chunked_loss",
     data,
     {{"batch", "data"}},
     {{"embed", "data"}},
     {{"x", {Batch, Embed}, {{"batch", "data"}}},
      {"w", {Vocab, Embed}, {{"embed", "data"}}},
      {"ids", {Batch}, {{"batch", "data"}}, DType::i32}},
     [](const Leaves& in) {
       return with_gradients(loss_in_chunks, in, {0, 1});
     }},
    {"ring",
     data,
     {{"batch", "data"}},
     {{"batch", "data"}},
     {{"x", {Axis("batch", 4096), Embed}, {{"batch", "data"}}},
      {"w", {Embed, Axis("mlp", 4096)}, {{"embed", "data"}}}},
     [](const Leaves& in) { return Leaves{dot(in[0], in[1], Embed)}; },
     {.ring = true}},
};

}  // namespace

TEST_CASE("dumps: plans and Programs match the stored ones") {
  setenv("HALIAX_POISON", "0", 1);  // because poison adds steps in a debug build
  for (auto& p : programs) {
    auto [plan, program] = p.text();
    const auto path = golden_dir() + "/../compile/dumps/" + p.name;
    test::matches_file(path + ".plan.txt", plan);
    test::matches_file(path + ".program.txt", program);
  }
  unsetenv("HALIAX_POISON");
}
