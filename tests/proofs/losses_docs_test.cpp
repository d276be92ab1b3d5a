// The code of docs/how-to/large-vocabularies.md, compiled and run. tests/docs_test.py checks that
// every code block of the page is in this file.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "examples/chunked_loss/methods.h"
#include "support/golden_dir.h"
#include "support/near.h"
#include "support/threads.h"
using namespace haliax;

namespace {

// Axes by name: each program runs with few tokens and is planned for many.
const AxisSelector Embed("embed"), Vocab("vocab"), Codes("codes"), Pos("position");
struct Inputs {
  NamedArray x, other_x;                 // (batch, position, embed)
  NamedArray head, codes_head, teacher;  // (vocab, embed), (codes, embed), (vocab, embed)
  NamedArray teacher_x, reference;       // (batch, position, embed), (batch)
};
struct Targets {
  NamedArray ids, other_ids, codes, is_text;  // (batch, position)
};
struct Sizes {
  std::int64_t batch, position, embed, vocab;
};
std::pair<Inputs, Targets> make(const Sizes& s, DType d) {
  const Axis Batch("batch", s.batch), Position("position", s.position);
  const Axis E("embed", s.embed), V("vocab", s.vocab), C("codes", s.vocab / 2);
  auto normal = [=](int seed, const AxisSpec& axes) {
    return random::normal(random::key(seed), axes, DType::f64).astype(d);
  };
  auto drawn = [&](int seed, std::int64_t below) {
    return random::randint(random::key(seed), {Batch, Position}, 0, int(below));
  };
  const AxisSpec hidden{Batch, Position, E};
  return {{normal(1, hidden), normal(2, hidden), normal(3, {V, E}), normal(4, {C, E}),
           normal(5, {V, E}), normal(6, hidden), normal(7, Batch)},
          {drawn(8, V.size), drawn(9, V.size), drawn(10, C.size), drawn(11, 3) > 0}};
}
NamedArray reference_losses(const NamedArray& x, const NamedArray& head, const AxisSelector& Ids,
                            const NamedArray& ids) {
  return nn::cross_entropy_loss(dot(x, head, Embed), Ids, ids, {.reduction = nn::Reduction::none});
}
template <class F> auto with_gradients(F f) {
  return jit([=](const Inputs& in, const Targets& t) {
    return value_and_grad([=](const Inputs& p) { return f(p, t); })(in);
  });
}

// Compares the value and the gradients with those of the reference. The default budget of 32 MiB
// makes the loss chunked.
template <class F, class G> void check_values(F f, G reference) {
  auto [in, t] = make({16, 32, 6, 10007}, DType::f64);
  auto got = flatten(with_gradients(f)(in, t)),
       expected = flatten(with_gradients(reference)(in, t));
  for (std::size_t k = 0; k < expected.size(); ++k)
    CHECK(difference(got[k], expected[k], 1e-12) == "");
}
// Checks the plan for a number of tokens whose logits exceed the budget.
constexpr Sizes many{128, 32, 64, 32768};
template <class F>
JitReport check_plan(F f, const Sizes& sizes, const std::string& form, int contractions) {
  const Threads two(2);
  auto shapes = eval_shape([=] { return make(sizes, DType::f32); });
  auto report = with_gradients(f).plan(shapes.first, shapes.second);
  REQUIRE(!report.chunked.empty());
  CHECK(report.chunked.back().form == form);  // the innermost loop
  CAPTURE(report.explain);
  CHECK(report.chunked[0].why.find(": " + std::to_string(contractions) + " contractions, ") !=
        std::string::npos);
  CHECK(report.arena_bytes <= 32 << 20);
  return report;
}

std::string page() {
  std::stringstream text;
  text << std::ifstream(golden_dir() + "/../../docs/how-to/large-vocabularies.md").rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("large vocabularies: a loss, its gradients and its plan") {
  auto program = [](const Inputs& in, const Targets& t) {
    auto &x = in.x, &head = in.head, &ids = t.ids;
    // x (batch, position, embed), head (vocab, embed)
    auto r = nn::linear_cross_entropy(x, head, ids, Embed, Vocab);
    auto loss = r.loss;  // the mean over all tokens
    return loss;
  };
  check_values(program, [](const Inputs& in, const Targets& t) {
    return mean(reference_losses(in.x, in.head, Vocab, t.ids));
  });
  check_plan(program, many, "sweep", 3);
}

TEST_CASE("large vocabularies: two heads with masks") {
  struct Model {
    NamedArray text_head, audio_head;
  };
  auto program = [](const Inputs& in, const Targets& t) {
    const Model model{in.head, in.codes_head};
    auto &x = in.x, &words = t.ids, &codes = t.codes, &is_text = t.is_text;
    auto text =
        nn::linear_cross_entropy(x, model.text_head, words, Embed, Vocab, {.mask = is_text});
    auto audio =
        nn::linear_cross_entropy(x, model.audio_head, codes, Embed, Codes, {.mask = ~is_text});
    auto loss = (text.total + audio.total).mean();
    return loss;
  };
  check_values(program, [](const Inputs& in, const Targets& t) {
    return mean(where(t.is_text, reference_losses(in.x, in.head, Vocab, t.ids),
                      reference_losses(in.x, in.codes_head, Codes, t.codes)));
  });
  CHECK(check_plan(program, many, "sweep", 3).chunked.size() > 1);  // each loss has its own loop
}

TEST_CASE("large vocabularies: distillation") {
  auto program = [](const Inputs& in, const Targets& t) {
    auto &x = in.x, &head = in.head, &ids = t.ids, &teacher_x = in.teacher_x,
         &teacher_head = in.teacher;
    auto r = nn::linear_cross_entropy(
        x, head, ids, Embed, Vocab,
        {.temperature = 2, .teacher = nn::LinearHead{teacher_x, teacher_head, Embed}});
    auto loss = r.loss + mean(r.kl);
    return loss;
  };
  check_values(program, [](const Inputs& in, const Targets& t) {
    auto logits = dot(in.x, in.head, Embed) / 2.;
    auto log_p = log_softmax(logits, Vocab),
         log_t = log_softmax(dot(in.teacher_x, in.teacher, Embed) / 2., Vocab);
    return nn::cross_entropy_loss(logits, Vocab, t.ids) +
           mean(sum(exp(log_t) * (log_t - log_p), Vocab));
  });
  check_plan(program, many, "sweep", 6);  // three contractions with each head
}

TEST_CASE("large vocabularies: a DPO loss") {
  const double beta = 0.1;
  auto program = [=](const Inputs& in, const Targets& t) {
    auto &x = in.x, &head = in.head, &ids = t.ids, &reference = in.reference;
    const nn::LinearCrossEntropyOptions o{.outputs = {.log_prob = true}};
    auto rejected =
        nn::linear_cross_entropy(in.other_x, head, t.other_ids, Embed, Vocab, o).log_prob;
    auto chosen =
        nn::linear_cross_entropy(x, head, ids, Embed, Vocab, {.outputs = {.log_prob = true}})
            .log_prob;
    auto loss = -mean(nn::log_sigmoid(beta * (sum(chosen, Pos) - sum(rejected, Pos) - reference)));
    return loss;
  };
  check_values(program, [=](const Inputs& in, const Targets& t) {
    auto gain = reference_losses(in.other_x, in.head, Vocab, t.other_ids) -
                reference_losses(in.x, in.head, Vocab, t.ids);
    return mean(log1p(exp(beta * (in.reference - sum(gain, Pos)))));
  });
  check_plan(program, many, "sweep", 6);
  check_plan(program, {4, 1024, 64, 32768}, "recompute", 8);
}

TEST_CASE("large vocabularies: a contrastive loss") {
  auto with = [](bool chunked) {
    return [=](const Inputs& in, const Targets&) {
      const auto n = in.x.size() / in.x.axes()[2].size;
      const Axis Images("images", n), Texts("texts", n);
      auto images = flatten_axes(in.x, {"batch", "position"}, Images);
      auto texts = flatten_axes(in.other_x, {"batch", "position"}, Texts);
      const double scale = 0.3;
      // (images, embed), (texts, embed)
      auto loss = [=](const NamedArray& images, const NamedArray& texts) {
        auto similarity = dot(images, texts, Embed) * scale;
        auto paired = broadcast_axis(arange(Images), Texts) == arange(Texts);
        return mean(logsumexp(similarity, Texts)) + mean(logsumexp(similarity, Images)) -
               2. * sum(where(paired, similarity, 0.)) / n;
      };
      auto contrastive = chunked_reduce(Images, {}, loss)(images, texts);
      return chunked ? contrastive : loss(images, texts);
    };
  };
  check_values(with(true), with(false));
  check_plan(with(true), many, "recompute", 4);
}

TEST_CASE("large vocabularies: the page shows the output of explain and the planned memory") {
  const auto text = page();
  const Threads two(2);
  struct Head {
    NamedArray x, w;  // (tokens, embed), (vocab, embed)
  };
  auto planned = [](std::int64_t tokens, std::int64_t embed, std::int64_t vocab,
                    const nn::LinearCrossEntropyOptions& o) {
    const Axis Tokens("tokens", tokens), E("embed", embed), V("vocab", vocab);
    auto shapes = eval_shape([=] {
      return std::pair{Head{zeros({Tokens, E}), zeros({V, E})}, zeros(Tokens, DType::i32)};
    });
    auto step = [=](const Head& h, const NamedArray& ids) {
      return value_and_grad([=](const Head& p) {
        return nn::linear_cross_entropy(p.x, p.w, ids, Embed, Vocab, o).loss;
      })(h);
    };
    return jit(step).plan(shapes.first, shapes.second);
  };
  auto explained = [=](const nn::LinearCrossEntropyOptions& o) {
    auto text = planned(256, 16, 2048, o).explain;
    return text.substr(0, text.find('\n') + 1);
  };
  const auto printed = explained({.chunks = {.chunk = 64}}) + explained({});
  CAPTURE(printed);
  // The scratch memory of matmuls depends on the machine.
  auto without_scratch = [](const std::string& s) {
    return std::regex_replace(s, std::regex("[0-9.]+ MiB of"), "some MiB of");
  };
  CHECK(without_scratch(text).find("```text\n" + without_scratch(printed) + "```") != text.npos);

  auto large = planned(16384, 256, 153600, {});  // its logits have 10 GB
  CHECK(large.argument_bytes + large.peak_bytes < 1 << 29);

  const std::map<std::string, std::string> rows{
      {"as is", "all logits"},
      {"scan", "`scan` or `fold` over blocks"},
      {"fold", "`scan` or `fold` over blocks"},
      {"scan, checkpoint", "`scan` with a checkpoint"},
      {"map", "`map` over blocks"},
      {"vmap", "`vmap`"},
      {"vmap, checkpoint", "`vmap` with a checkpoint"},
      {"chunked by tokens", "`linear_cross_entropy` by tokens"},
      {"chunked by vocabulary", "`linear_cross_entropy` by vocabulary"}};
  const chunked_loss::Sizes sizes;
  auto shapes = eval_shape([&] {
    return std::pair{chunked_loss::make_parameters(sizes), chunked_loss::make_ids(sizes)};
  });
  for (auto& way : chunked_loss::methods(sizes)) {
    if (way.name == "chunked by budget") continue;
    CAPTURE(way.name);
    auto step = [&](const chunked_loss::Parameters& p, const NamedArray& ids) {
      return value_and_grad(way.loss)(p, ids);
    };
    auto report = jit(step).plan(shapes.first, shapes.second);
    const auto start = "| " + rows.at(way.name) + " | ";
    auto row = text.find(start);
    REQUIRE(row != text.npos);
    CHECK(std::abs(std::stod(text.substr(row + start.size())) -
                   double(report.peak_bytes) / (1 << 20)) < 2);
    CHECK(text.substr(row, text.find('\n', row) - row)
              .ends_with(" | " + std::to_string(report.contractions) + " |"));
  }
}
