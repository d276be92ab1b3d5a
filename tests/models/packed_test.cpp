// Packed sequences: the loss of several documents in one sequence is that of the documents alone.
#include <doctest/doctest.h>

#include "examples/models/gpt2.h"
#include "examples/models/llama.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 2), Pos("pos", 12);

NamedArray ids_of(int seed, const Axes& axes) {
  return random::randint(random::key(std::uint64_t(seed)), axes, 0, 50).eval();
}
// Documents of 5, 3 and 4 tokens in the first sequence, and one of 12 in the second.
NamedArray segments() {
  return array(std::vector<std::int32_t>{0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2,  //
                                         2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2},
               {Batch, Pos});
}
template <class Model> void check_packed(const Model& model) {
  auto ids = ids_of(1, {Batch, Pos});
  double sum = 0, tokens = 0;
  auto add = [&](int row, std::int64_t from, std::int64_t size) {
    auto document = slice(at(ids, "batch", row), "pos", from, size);
    sum += model.loss(document).item() * double(size - 1);
    tokens += double(size - 1);
  };
  add(0, 0, 5);
  add(0, 5, 3);
  add(0, 8, 4);
  add(1, 0, 12);
  CHECK(model.loss(ids, segments()).item() == doctest::Approx(sum / tokens).epsilon(1e-5));
}

}  // namespace

TEST_CASE("packed: positions and targets restart with each document") {
  CHECK(at(models::packed_positions(segments()), "batch", 0).integers() ==
        std::vector<std::int64_t>{0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3});
  auto targets = models::packed_targets(arange(Pos), at(segments(), "batch", 0));
  CHECK(targets.integers() ==
        std::vector<std::int64_t>{1, 2, 3, 4, -100, 6, 7, -100, 9, 10, 11, -100});
}

TEST_CASE("packed: the loss is that of the documents alone") {
  check_packed(models::GPT2LMHeadModel::init(
      {.vocab_size = 50, .n_positions = 16, .n_embd = 16, .n_layer = 2, .n_head = 2},
      random::key(0)));
  check_packed(models::LlamaForCausalLM::init({.vocab_size = 50,
                                               .hidden_size = 16,
                                               .intermediate_size = 24,
                                               .num_hidden_layers = 2,
                                               .num_attention_heads = 4,
                                               .num_key_value_heads = 2,
                                               .head_dim = 4},
                                              random::key(0)));
}
