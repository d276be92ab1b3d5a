// The code of docs/how-to/checkpoints.md, compiled and run.
#include <doctest/doctest.h>

#include <fstream>

#include <haliax/checkpoint.h>
#include <haliax/data.h>
#include <haliax/haliax.h>

#include "support/folder.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 4), Pos("position", 8), Embed("embed", 16), Vocab("vocab", 256);
struct Model {
  nn::Embedding table;
  nn::Linear head;
  static Model init(const Key& key) {
    auto [k_table, k_head] = random::split<2>(key);
    return {nn::Embedding::init(Vocab, Embed, k_table), nn::Linear::init(Embed, Vocab, k_head)};
  }
  NamedArray operator()(const NamedArray& ids) const { return head(table(ids)); }
};
using State = optim::State<optim::AdamW, Model>;

struct Training {
  Model model;
  State state;  // optimizer state
  Key key;      // random key of the next step
};
Training init() {
  auto model = Model::init(random::key(0));
  return {model, optim::adamw().init(model), random::key(2)};
}
auto step = jit(
    [](const Training& t, const NamedArray& ids) {
      auto keys = random::split<2>(t.key);
      auto noisy = [&](const Model& m) {
        return nn::next_token_loss(
            "position", Vocab, m(ids) + random::normal(keys[0], {Batch, Pos, Vocab}) * 0.01, ids);
      };
      auto [loss, grads] = value_and_grad(noisy)(t.model);
      auto [updates, state] = optim::adamw().update(grads, t.state, t.model);
      return std::pair(Training{optim::apply_updates(t.model, updates), state, keys[1]}, loss);
    },
    {.donate = {0}});

Training train(const std::string& folder, const std::string& tokens_file, std::int64_t steps) {
  auto training = init();
  TokenLoader batches(Tokens({tokens_file}, DType::u16), Batch, Pos,
                      {.key = random::key(1), .vocab = 256});
  Checkpoints checkpoints(folder, {.keep = 3});
  std::int64_t done = 0;
  if (auto found = latest_checkpoint(folder, training)) {
    training = found->state;
    done = found->step;
    batches.seek(found->number("position"));
  }
  for (std::int64_t n = done + 1; n <= steps; ++n) {
    NamedArray loss;
    std::tie(training, loss) = step(training, batches.next());
    if (n % 10 == 0) checkpoints.save(n, training, {{"position", batches.position()}});
  }
  checkpoints.wait();
  return training;
}

}  // namespace

TEST_CASE("docs/how-to/checkpoints.md: a training run resumes bitwise identical and on a mesh") {
  Folder temporary(memory_folder());
  const std::string folder = temporary / "run", tokens_file = temporary / "tokens.bin";
  std::ofstream tokens(tokens_file, std::ios::binary);
  for (int i = 0; i < 5000; ++i) tokens.put(char(i * i % 251)).put(0);
  tokens.close();
  train(folder, tokens_file, 10);
  train(folder, tokens_file, 20);
  auto resumed = train(folder, tokens_file, 30),
       at_once = train(temporary / "other", tokens_file, 30);
  CHECK(checkpoint_steps(folder) == std::vector<std::int64_t>{10, 20, 30});
  auto a = flatten(resumed), b = flatten(at_once);
  for (std::size_t k = 0; k < a.size(); ++k) CHECK(a[k].bytes() == b[k].bytes());

  const Mesh mesh{{{"data", 4}}};
  const Mapping params{{"embed", "data"}};
  use_mesh on(mesh);
  axis_mapping scope(params);
  auto loaded = load_checkpoint(folder, 20, eval_shape(init));
  CHECK(placement(loaded.state.model.head.weight)->mapping == params);

  std::filesystem::current_path(temporary.path);
  // the arrays of the field `model`, without the prefix
  write_one_file(folder, 20, "model.safetensors", "model.");
  auto model = from_state_dict(read_safetensors("model.safetensors"), Model::init(random::key(5)));
  std::filesystem::current_path("/");
  CHECK(model.head.weight.bytes() == loaded.state.model.head.weight.bytes());
}
