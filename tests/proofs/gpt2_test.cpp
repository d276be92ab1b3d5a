// Compares GPT-2, trained in four variants and in all of them at once, with values that Haliax
// computed: logits, loss, gradients, 20 AdamW steps, final weights and greedy tokens. The cpu
// backend runs every case in every variant. The reference backend is slow: it runs one case in all
// variants at once, for a few steps; the golden runner covers the plain cases.
#include <doctest/doctest.h>

#include "golden_runner/gpt2.h"
#include "support/golden_dir.h"

namespace {

void passes(const golden::Group& g, const golden::Value& c, const golden::Variant& v,
            const char* backend) {
  CAPTURE(c["id"].as_text());
  CAPTURE(std::string(v.name));
  CAPTURE(std::string(backend));
  haliax::set_default_backend(backend);
  auto run = golden::run_gpt2(g, c, v, backend);
  haliax::set_default_backend("cpu");
  for (auto& problem : run.problems) FAIL_CHECK(problem);
  CHECK(run.step.traces == 1);
  CHECK((run.step.sent_bytes > 0) == v.layout.has_value());
}

}  // namespace

TEST_CASE("proof: golden gpt2 on cpu: plain, vmap, fsdp, fsdp under vmap, chunked, all") {
  auto g = golden::read_group(golden_dir(), "gpt2");
  REQUIRE(g.cases.size() == 3);
  for (auto& c : g.cases) {
    passes(g, c, golden::plain, "cpu");
    for (auto& v : golden::variants) passes(g, c, v, "cpu");
  }
}

TEST_CASE("proof: golden gpt2 on reference: all at once") {
  auto g = golden::read_group(golden_dir(), "gpt2");
  auto few = golden::variants[4];
  few.most_steps = 3;
  passes(g, g.cases[0], few, "reference");
}
