// Compares the table of docs/how-to/parallelism.md about ops along a sharded axis with plans.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <functional>
#include <iterator>

#include <haliax/haliax.h>

#include "support/golden_dir.h"

using namespace haliax;

namespace {

using A = NamedArray;
struct Row {
  const char* what;
  std::function<A(const A& x, const A& y, const A& z)> f;
  A x, y = zeros({}, DType::i32), z = zeros({});
};

// Returns the bytes that a device sends, relative to x. Arguments and results are sharded.
double part_of(const Row& r, int devices, bool strict = false) {
  const bool by_ids = !r.y.axes().empty();
  // Strict mode rejects mappings that name an axis of no array.
  const Mapping sharded = by_ids ? Mapping{{"n", "data"}, {"b", "data"}} : Mapping{{"n", "data"}};
  auto in = [&](const A& a) { return a.axes().empty() ? Mapping{} : sharded; };
  auto step = named_jit(r.f, {.mesh = Mesh{{{"data", devices}}},
                              .axis_resources = Mapping{},
                              .in = Mappings::of_each({in(r.x), in(r.y), in(r.z)}),
                              .out = Mappings(sharded),
                              .strict = strict});
  return step.plan(r.x, r.y, r.z).sent_bytes / double(r.x.size() * 4);
}
A sum_by(const A& y, const A& u) { return sum(square(y) * u); }

std::vector<Row> rows() {
  const Axis N("n", 24000), T("n", 4000), M("m", 8), B("b", 4000), Few("b", 400), Part("n", 400);
  auto x = zeros({N}), table = zeros({T, M}), ids = zeros({B}, DType::i32),
       few = zeros({Few}, DType::i32);
  auto rows = zeros({B, M}), some = zeros({Few, M}), part = zeros({Part, M});
  auto pick = [](const A& x, const A& i, const A&) { return take(x, "n", i); };
  auto add = [](const A& x, const A& i, const A& u) { return at_add(x, {{"n", Index(i)}}, u); };
  return {
      {"`sort`", [](const A& x, const A&, const A&) { return sort(x, "n"); }, x},
      {"`argsort`", [](const A& x, const A&, const A&) { return argsort(x, "n"); }, x},
      {"`roll` by an array", [](const A& x, const A& by, const A&) { return roll(x, by, "n"); }, x},
      {"`random::permutation`",
       [](const A& x, const A&, const A&) { return random::permutation(random::key(0), x, "n"); },
       x},
      {"`take`", pick, table, ids},
      {"gradient of `take`",
       [](const A& x, const A& i, const A& u) {
         return at_add(zeros(x.axes()), {{"n", Index(i)}}, u);
       },
       table, ids, rows},
      {"`take` and its gradient",
       [](const A& x, const A& i, const A& u) {
         return grad([&](const A& x) { return sum_by(take(x, "n", i), u); })(x);
       },
       table, ids, rows},
      {"`at_add`", add, table, ids, rows},
      {"`at_set`",
       [](const A& x, const A& i, const A& u) {
         return at_set(x, {{"n", Index(i)}}, u);
       },
       table, ids, rows},
      {"`take` by 400 ids", pick, table, few},
      {"`at_add` by 400 ids", add, table, few, some},
      {"`slice` of 400, start in an array",
       [](const A& x, const A& at, const A&) { return slice(x, "n", at, 400); }, table},
      {"`updated_slice` of 400, start in an array",
       [](const A& x, const A& at, const A& u) {
         return updated_slice(x, {{"n", at}}, u);
       },
       table, zeros({}, DType::i32), part},
      {"`at_set` of `Slice{5, 405}`",
       [](const A& x, const A&, const A& u) {
         return at_set(x, {{"n", Slice{5, 405}}}, u);
       },
       table, zeros({}, DType::i32), part},
      {"`top_k` of 100", [](const A& x, const A&, const A&) { return top_k(x, "n", 100).first; },
       x},
      {"`top_k` of 100 and its gradient",
       [](const A& x, const A&, const A&) {
         return grad([](const A& x) { return sum(square(top_k(x, "n", 100).first)); })(x);
       },
       x},
  };
}

}  // namespace

TEST_CASE("docs/how-to/parallelism.md: communication of ops along a sharded axis") {
  std::ifstream file(golden_dir() + "/../../docs/how-to/parallelism.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  for (auto& r : rows()) {
    auto line = fmt::format("| {} | {:.3f} | {:.3f} | {:.3f} |", r.what, part_of(r, 2),
                            part_of(r, 3), part_of(r, 4));
    CHECK_MESSAGE(page.find(line) != page.npos, line);
  }
}

TEST_CASE("docs/how-to/parallelism.md: ops along a sharded axis that strict mode refuses") {
  std::ifstream file(golden_dir() + "/../../docs/how-to/parallelism.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> refused;
  for (auto& r : rows()) {
    std::vector<int> on;
    for (int devices : {2, 3, 4}) {
      try {
        auto sent =
            fmt::format("`take` on 2 devices then communicates {:.3f}.", part_of(r, devices, true));
        if (devices == 2 && std::string(r.what) == "`take`")
          CHECK_MESSAGE(page.find(sent) != page.npos, sent);
      } catch (const Error& e) {
        const std::string why = e.what();
        CHECK_MESSAGE(why.find("without a request for it") != why.npos, why);
        on.push_back(devices);
      }
    }
    if (!on.empty()) refused.push_back(fmt::format("- {}: {}", r.what, fmt::join(on, ", ")));
  }
  auto line = fmt::format("\n\n{}\n\n", fmt::join(refused, "\n"));
  CHECK_MESSAGE(page.find(line) != page.npos, line);
}
