// Each pass of the list, by an example: a small program just before and just
// after the pass, as HALIAX_PRINT prints it. Review a change of
// tests/compile/passes as you review code: `build/tests/compile --update`
// writes the files and the blocks of docs/internals/passes.md.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <regex>
#include <stdexcept>

#include "compile/traced.h"
#include "haliax/conv.h"
#include "support/golden_dir.h"

using namespace haliax;

namespace {

const Axis A{"a", 2}, B{"b", 4}, N{"n", 4}, D{"d", 2}, Q{"q", 4}, K{"k", 4}, L{"layers", 3};
const Mesh two{{{"data", 2}}};

// The facts about a device that passes query, equal on every machine.
class FixedDevice : public program::Device {
 public:
  const char* name() const override { return "fixed"; }
  bool supports(const program::Step&) const override { return true; }
  program::Machine machine() const override {
    return {.max_parallel_slot_bytes = 1 << 18, .mask_block = 64};
  }
  std::int64_t scratch_bytes(const program::Step& s, int) const override {
    return s.kind == program::Kind::contract ? 256 : 0;
  }
  int parallel_slots(const program::Step&, std::int64_t, std::int64_t, int) const override {
    return 2;
  }
  std::unique_ptr<program::Executable> compile(std::shared_ptr<const program::Program>) override {
    throw std::logic_error("this device runs no Program");
  }
};

struct ExampleOptions {
  std::optional<Mesh> mesh = {};
  Mapping compute = {}, out = {};  // mapping of contractions, and of results
  PartitionOptions partition = {};
  DebugOptions debug = {};
  std::int64_t scores_budget = most_bytes;  // all scores are materialized
  bool has_device = false;                  // FixedDevice; otherwise the passes know no device
  int chunk_depth = 0;
};
struct PassExample {
  // The pass. A further example of a pass has a dot and a name of its own after it.
  std::string_view name;
  const char* program;
  std::vector<test::TracedArgument> arguments;
  Leaves (*f)(const Leaves&);
  ExampleOptions options = {};

  std::string description() const {
    std::string out = program;
    for (auto& a : arguments) {
      out += std::string("\n") + a.name + " " + std::string(name_of(a.dtype)) + to_string(a.axes);
      if (options.mesh && !(a.at == Mapping{})) out += ", " + to_string(a.at);
    }
    if (options.mesh) out += "\nmesh " + to_string(*options.mesh);
    return out + "\n";
  }
  // Returns the graph, plan or Program just before and just after the pass.
  std::pair<std::string, std::string> texts() const {
    std::optional<use_mesh> on;
    std::optional<axis_mapping> by;
    if (options.mesh) {
      on.emplace(*options.mesh);
      by.emplace(options.compute);
    }
    detail::Tracing tracing;
    FixedDevice device;
    auto list = passes();
    const auto pass = name.substr(0, name.find('.'));
    auto at = std::find_if(list.begin(), list.end(), [&](auto& p) { return pass == p.name; });
    REQUIRE(at != list.end());
    const auto previous = at == list.begin() ? Stage::graph : std::prev(at)->stage;

    auto c = traced();
    if (options.has_device) c.options.device = &device;
    c.options.until = pass;
    run(c, Stage::graph, Stage::sharding);
    if (at->stage > Stage::sharding) {
      c = on_device(c, 0);
      run(c, Stage::device, Stage::program);
    }
    auto before = to_string(c, previous);
    c.options.from = pass;
    c.options.until = std::next(at) == list.end() ? "" : std::next(at)->name;
    run(c, at->stage, at->stage);
    return {plain(before), plain(to_string(c, at->stage))};
  }

 private:
  Compilation traced() const {
    CompileOptions to{.workers = 2,
                      .chunk_depth = options.chunk_depth,
                      .scores_budget = options.scores_budget,
                      .mesh = options.mesh ? &*options.mesh : nullptr,
                      .partition = options.partition,
                      .debug = options.debug};
    to.debug.verify = true;
    return test::traced(arguments, f, std::move(to), options.out);
  }
  // Removes source locations, which other tests check.
  static std::string plain(const std::string& text) {
    static const std::regex place(" *# .*| \\(\\w+\\.cpp:\\d+\\)");
    return std::regex_replace(text, place, "");
  }
};

const std::vector<test::TracedArgument> heads{{"q", {Q, D}}, {"k", {K, D}}, {"v", {K, D}}};

// Returns the last state of tanh(c * w), one layer after the other.
NamedArray recurrent(const NamedArray& x, const NamedArray& w) {
  return fold([](const NamedArray& c, const NamedArray& w) { return tanh(c * w); }, L)(x, w);
}

const std::vector<PassExample> examples{
    {"strip_wraps",
     "y = exp(x), with a gradient by custom_vjp",
     {{"x", {A}}},
     [](const Leaves& in) {
       using In = const NamedArray&;
       auto f = custom_vjp([](In x) { return exp(x); }, [](const std::tuple<NamedArray>&, In y,
                                                           In g) { return std::tuple(g * y); });
       return Leaves{f(in[0])};
     }},
    {"window_sums",
     "a depthwise convolution of x with w, with kernels of 2 positions",
     {{"x", {A, Axis("t", 5)}}, {"w", {Axis("out", 2), Axis("a", 1), Axis("t", 2)}}},
     [](const Leaves& in) {
       nn::Conv layer{in[1], {}, {"t"}, A, Axis("out", 2), 2, 1, {}, 1, 2};
       return Leaves{layer(in[0])};
     }},
    {"scores",
     "e = exp(dot(q, k, \"d\")); dot(e, v, \"k\") / sum(e, \"k\"), with a "
     "scores budget of 0 bytes",
     heads,
     [](const Leaves& in) {
       auto e = exp(dot(in[0], in[1], D));
       return Leaves{dot(e, in[2], K) / sum(e, K)};
     },
     {.scores_budget = 0}},
    {"merge_carried",
     "y = fold(tanh(c * w)) over layers, and the gradient of sum(y) by x",
     {{"x", {A}}, {"w", {L, A}}},
     [](const Leaves& in) {
       auto loss = [&](const NamedArray& x) {
         auto y = recurrent(x, in[1]);
         return std::pair{sum(y), y};
       };
       auto [out, g] = value_and_grad(loss)(in[0]);
       return Leaves{out.second, g};
     }},
    {"f32_matmuls",
     "dot(x, y, \"n\") of bf16 arrays in chunks of 2, read as f32",
     {{"x", {N, A}, {}, DType::bf16}, {"y", {N, D}, {}, DType::bf16}},
     [](const Leaves& in) {
       auto f = [](const NamedArray& x, const NamedArray& y) { return dot(x, y, N); };
       return Leaves{chunked_reduce("n", {.chunk = 2}, f)(in[0], in[1]).astype(DType::f32)};
     }},
    {"defer_normalization",
     "dot(softmax(dot(q, k, \"d\"), \"k\"), v, \"k\") with a scores budget of "
     "0, for ring "
     "attention",
     heads,
     [](const Leaves& in) { return Leaves{dot(softmax(dot(in[0], in[1], D), K), in[2], K)}; },
     {.partition = {.ring_attention = true}, .scores_budget = 0}},
    {"chunk",
     "sum(tanh(dot(x, w, \"d\"))) in chunks of 2 along n",
     {{"x", {N, D}}, {"w", {D, B}}},
     [](const Leaves& in) {
       auto f = [](const NamedArray& x, const NamedArray& w) { return sum(tanh(dot(x, w, D))); };
       return Leaves{chunked_reduce("n", {.chunk = 2}, f)(in[0], in[1])};
     }},
    {"drop_dead",
     "the last state of a scan whose stacked results are not read",
     {{"x", {A}}, {"w", {L, A}}},
     [](const Leaves& in) {
       auto f = [](const NamedArray& c, const NamedArray& w) {
         return std::pair{tanh(c * w), exp(c)};
       };
       return Leaves{scan(f, L)(in[0], in[1]).first};
     }},
    {"merge_loops",
     "map(exp) and map(tanh) of one array",
     {{"x", {L, A}}},
     [](const Leaves& in) {
       return Leaves{map([](const NamedArray& x) { return exp(x); }, L)(in[0]),
                     map([](const NamedArray& x) { return tanh(x); }, L)(in[0])};
     }},
    {"accumulate_sums",
     "g + sum(tanh(x), \"n\"), with the sum in chunks of 2",
     {{"x", {N, A}}, {"g", {A}}},
     [](const Leaves& in) {
       auto f = [](const NamedArray& x) { return sum(tanh(x), N); };
       return Leaves{in[1] + chunked_reduce("n", {.chunk = 2}, f)(in[0])};
     }},
    {"plan",
     "dot(x, w, \"d\") * 2, with d sharded over two devices",
     {{"x", {N, D}, {{"d", "data"}}}, {"w", {D, B}, {{"d", "data"}}}},
     [](const Leaves& in) { return Leaves{dot(in[0], in[1], D) * 2.}; },
     {.mesh = two}},
    {"rematerialize",
     "the gradient of fold(tanh(c * sum(w, \"d\"))) by x, with rematerialized "
     "layers",
     {{"x", {A}}, {"w", {L, D}, {{"d", "data"}}}},
     [](const Leaves& in) {
       auto layer = [](const NamedArray& c, const NamedArray& w) { return tanh(c * sum(w, D)); };
       auto loss = [&](const NamedArray& x) {
         return sum(fold(layer, L, {.checkpoint = "carries"})(x, in[1]));
       };
       return Leaves{grad(loss)(in[0])};
     },
     {.mesh = two}},
    {"rematerialize.weights",
     "the gradient of sum(dot(dot(dot(x, u), v), w) ** 2) by u, with weights "
     "of 64 MiB",
     {{"x", {N, Axis("a", 4096)}, {{"n", "data"}}},
      {"u", {Axis("a", 4096), Axis("b", 4096)}, {{"b", "data"}}},
      {"v", {Axis("b", 4096), Axis("c", 4096)}, {{"c", "data"}}},
      {"w", {Axis("c", 4096), Axis("d", 4096)}, {{"d", "data"}}}},
     [](const Leaves& in) {
       auto loss = [&](const NamedArray& u) {
         return sum(square(dot(dot(dot(in[0], u, "a"), in[2], "b"), in[3], "c")));
       };
       return Leaves{grad(loss)(in[1])};
     },
     {.mesh = two, .compute = {{"n", "data"}}, .out = {{"b", "data"}}}},
    {"ring",
     "dot(x, w, \"d\") with a sharded weight and JitOptions::ring",
     {{"x", {Axis("n", 4096), Axis("d", 16)}, {{"n", "data"}}},
      {"w", {Axis("d", 16), Axis("m", 4096)}, {{"d", "data"}}}},
     [](const Leaves& in) { return Leaves{dot(in[0], in[1], "d")}; },
     {.mesh = two,
      .compute = {{"n", "data"}},
      .out = {{"n", "data"}},
      .partition = {.ring = true}}},
    {"bucket",
     "tanh of the sum of x, and of the sum of y, over a sharded axis",
     {{"x", {N, A}, {{"n", "data"}}}, {"y", {N, B}, {{"n", "data"}}}},
     [](const Leaves& in) {
       return Leaves{tanh(sum(in[0], N)), tanh(sum(in[1], N))};
     },
     {.mesh = two}},
    {"emit",
     "tanh of the sum of x over a sharded axis",
     {{"x", {N, A}, {{"n", "data"}}}},
     [](const Leaves& in) { return Leaves{tanh(sum(in[0], N))}; },
     {.mesh = two}},
    {"lazy_selects",
     "where(flag, dot(x, y, \"d\"), 0) for a scalar flag",
     {{"flag", {}, {}, DType::boolean}, {"x", {N, D}}, {"y", {D, A}}},
     [](const Leaves& in) { return Leaves{where(in[0], dot(in[1], in[2], D), 0.f)}; }},
    {"batch_loops",
     "dot(tanh(dot(q, k, \"d\")), v, \"k\") of 16 heads, on a device with "
     "parallel slots",
     {{"q", {Axis("heads", 16), Axis("q", 128), Axis("d", 16)}},
      {"k", {Axis("heads", 16), Axis("k", 128), Axis("d", 16)}},
      {"v", {Axis("heads", 16), Axis("k", 128), Axis("d", 16)}}},
     [](const Leaves& in) { return Leaves{dot(tanh(dot(in[0], in[1], "d")), in[2], "k")}; },
     {.has_device = true}},
    {"softmax_matmuls",
     "dot(softmax(x, \"k\"), v, \"k\") with many more logits than values",
     {{"x", {Axis("n", 128), Axis("k", 128)}}, {"v", {Axis("k", 128), D}}},
     [](const Leaves& in) { return Leaves{dot(softmax(in[0], "k"), in[1], "k")}; }},
    {"row_dots",
     "dot(x, y, \"d\") of arrays with the same axes",
     {{"x", {N, D}}, {"y", {N, D}}},
     [](const Leaves& in) { return Leaves{dot(in[0], in[1], D)}; }},
    {"masked_matmuls",
     "dot(where(mask, w, 0), v, \"k\") on a device that skips blocks of 64 "
     "positions",
     {{"mask", {Axis("q", 256), Axis("k", 256)}, {}, DType::boolean},
      {"w", {Axis("q", 256), Axis("k", 256)}},
      {"v", {Axis("k", 256), Axis("d", 64)}}},
     [](const Leaves& in) { return Leaves{dot(where(in[0], in[1], 0.f), in[2], "k")}; },
     {.has_device = true}},
    {"first_positions",
     "the first two positions of argsort(x, \"n\") on a device that runs functions",
     {{"x", {B, Axis("n", 16)}}},
     [](const Leaves& in) { return Leaves{slice(argsort(in[0], "n"), "n", 0, 2)}; },
     {.has_device = true}},
    {"split_carries",
     "four steps of (x, v) -> (x + v, v - x), stacked along s",
     {{"state", {A, Axis("s", 2)}}},
     [](const Leaves& in) {
       auto step = [](const NamedArray& state, const NamedArray&) {
         auto x = state[{"s", 0}], v = state[{"s", 1}];
         return state + stack("s", {v, -x});
       };
       return Leaves{fold(step, "time")(in[0], arange(Axis("time", 4)))};
     }},
    {"accumulate_updates",
     "g plus the gradient of sum(take(table, \"n\", ids)) by the table",
     {{"table", {N, A}}, {"ids", {B}, {}, DType::i32}, {"g", {N, A}}},
     [](const Leaves& in) {
       auto f = [&](const NamedArray& t) { return sum(square(take(t, N, in[1]))); };
       return Leaves{in[2] + grad(f)(in[0])};
     }},
    {"early_exit",
     "sum(where(id >= 0, tanh(x), 0), \"n\") in chunks of 2",
     {{"x", {N, Axis("a", 16)}}, {"id", {N}, {}, DType::i32}},
     [](const Leaves& in) {
       auto f = [](const NamedArray& x, const NamedArray& id) {
         return sum(where(id >= 0, tanh(x), 0.f), N);
       };
       return Leaves{chunked_reduce("n", {.chunk = 2}, f)(in[0], in[1])};
     }},
    {"layout",
     "dot(sum(x, \"m\"), k, \"d\") of two heads",
     {{"x", {Q, Axis("heads", 2), Axis("m", 3), D}}, {"k", {Axis("heads", 2), K, D}}},
     [](const Leaves& in) { return Leaves{dot(sum(in[0], "m"), in[1], D)}; }},
    {"lower",
     "softmax(x, \"n\")",
     {{"x", {A, N}}},
     [](const Leaves& in) { return Leaves{softmax(in[0], N)}; }},
    {"check_finite",
     "log(x), with HALIAX_NANS=1",
     {{"x", {N}}},
     [](const Leaves& in) { return Leaves{log(in[0])}; },
     {.debug = {.check_finite = true}}},
    {"parallel_slots",
     "map(tanh(cumsum(x, \"n\"))) over layers, on a device with two parallel "
     "slots",
     {{"x", {L, N, A}}},
     [](const Leaves& in) {
       return Leaves{map([](const NamedArray& x) { return tanh(cumsum(x, N)); }, L)(in[0])};
     },
     {.has_device = true}},
    {"reuse_matmuls",
     "y = dot(x, w, \"d\"); dot(y * sum(y, \"v\"), x, \"n\"), in chunks of 16 "
     "along v",
     {{"x", {Axis("n", 32), Axis("d", 128)}}, {"w", {Axis("v", 128), Axis("d", 128)}}},
     [](const Leaves& in) {
       auto f = [](const NamedArray& x, const NamedArray& w) {
         auto y = dot(x, w, "d");
         return dot(y * sum(y, "v"), x, "n");
       };
       return Leaves{chunked_reduce("v", {.chunk = 16}, f)(in[0], in[1])};
     }},
    {"overlap",
     "dot(dot(x, u, \"a\"), w, \"d\") with a sharded weight w and "
     "JitOptions::overlap",
     {{"x", {Axis("n", 64), A}, {{"n", "data"}}},
      {"u", {A, Axis("d", 32)}},
      {"w", {Axis("d", 32), B}, {{"d", "data"}}}},
     [](const Leaves& in) { return Leaves{dot(dot(in[0], in[1], A), in[2], "d")}; },
     {.mesh = two,
      .compute = {{"n", "data"}},
      .out = {{"n", "data"}},
      .partition = {.overlap = true}}},
    {"plan_memory",
     "cumsum(exp(cumsum(tanh(x), \"n\")), \"n\")",
     {{"x", {N}}},
     [](const Leaves& in) { return Leaves{cumsum(exp(cumsum(tanh(in[0]), N)), N)}; }},
    {"poison",
     "dot(x, w, \"d\") with a sharded weight and HALIAX_POISON=1",
     {{"x", {N, Axis("d", 4)}, {{"n", "data"}}}, {"w", {Axis("d", 4), A}, {{"d", "data"}}}},
     [](const Leaves& in) { return Leaves{dot(in[0], in[1], "d")}; },
     {.mesh = two, .compute = {{"n", "data"}}, .out = {{"n", "data"}}, .debug = {.poison = true}}},
    // ---- for docs/internals/tiling.md ----
    {"chunk.softmax",
     "e = exp(dot(x, w, \"d\")); e / sum(e, \"n\"), in chunks of 2 along n",
     {{"x", {N, D}}, {"w", {D}}},
     [](const Leaves& in) {
       auto f = [](const NamedArray& x, const NamedArray& w) {
         auto e = exp(dot(x, w, D));
         return e / sum(e, N);
       };
       return Leaves{chunked_reduce("n", {.chunk = 2}, f)(in[0], in[1])};
     }},
    {"chunk.scores",
     "e = exp(dot(q, k, \"d\")); dot(e, v, \"k\") / sum(e, \"k\") of 2 heads, with a scores budget "
     "of 0",
     {{"q", {Axis("heads", 2), Axis("q", 6), D}},
      {"k", {Axis("heads", 2), K, D}},
      {"v", {Axis("heads", 2), K, D}}},
     [](const Leaves& in) {
       auto e = exp(dot(in[0], in[1], D));
       return Leaves{dot(e, in[2], K) / sum(e, K)};
     },
     {.scores_budget = 0}},
};

const std::string folder = "tests/compile/passes/";
std::string in_repository(const std::string& path) { return golden_dir() + "/../../" + path; }

// ---- the pages ----
// The first block of docs/internals/passes.md is the list of passes. In all pages below, the block
// after `<!-- from: FILE -->` is the text of the file, or parts of it, with a line "..." for the
// lines between them. `--update` writes the full text in place of a block that is neither.

const char* const kPages[] = {"docs/internals/passes.md", "docs/internals/tiling.md",
                              "docs/internals/sharding.md"};

bool is_shortened(const std::string& block) { return ("\n" + block).find("\n...\n") != block.npos; }
// Returns true if the parts of the block are in the text, in order.
bool is_excerpt(const std::string& block, const std::string& text) {
  static const std::regex gap("(^|\n)\\.\\.\\.\n");
  std::size_t at = 0;
  for (std::sregex_token_iterator part(block.begin(), block.end(), gap, -1), end; part != end;
       ++part) {
    auto found = text.find(part->str(), at);
    if (found == text.npos) return false;
    at = found + std::size_t(part->length());
  }
  return true;
}
// Writes the text in place of the first block after `at`, unless the block is an excerpt of it.
void set_block(std::string& page, std::size_t at, const std::string& text) {
  const std::string opens = "```text\n";
  auto begin = page.find(opens, at) + opens.size(), end = page.find("```\n", begin);
  REQUIRE(end != page.npos);
  auto block = page.substr(begin, end - begin);
  if (!is_shortened(block) || !is_excerpt(block, text)) page.replace(begin, end - begin, text);
}
void set_blocks(std::string& page) {
  const std::string mark = "<!-- from: ";
  for (auto at = page.find(mark); at != page.npos; at = page.find(mark, at)) {
    at += mark.size();
    set_block(page, at, test::file_text(in_repository(page.substr(at, page.find(' ', at) - at))));
  }
}
// Returns the headings of sections, and the marks of the first example of each pass, in order.
std::string outline(const std::string& page) {
  static const std::regex line("\n(### .*|<!-- from: [a-z0-9_/]*\\.txt -->)(?=\n)");
  std::string out;
  for (std::sregex_iterator at(page.begin(), page.end(), line), end; at != end; ++at)
    out += at->str(1) + "\n";
  return out;
}

}  // namespace

TEST_CASE("passes: each pass of the list changes its example, as the stored text shows") {
  std::string listed, shown;
  for (auto& p : passes()) listed += std::string(p.name) + "\n";
  for (auto& e : examples)
    if (e.name.find('.') == e.name.npos) shown += std::string(e.name) + "\n";
  CHECK(listed == shown);
  for (auto& e : examples) {
    CAPTURE(e.name);
    auto [before, after] = e.texts();
    CHECK_MESSAGE(before != after, "the pass changes nothing in its example");
    auto text = e.description() + "before\n" + before + "after\n" + after;
    test::matches_file(in_repository(folder + std::string(e.name) + ".txt"), text);
  }
}

TEST_CASE("passes: a page shows the list of passes, and a section with an example per pass") {
  std::string sections;
  for (auto& p : passes()) {
    sections += "### " + std::string(p.name) + "\n<!-- from: " + folder + p.name + ".txt -->\n";
    const std::string_view does = p.description;
    CHECK_MESSAGE(std::count(does.begin(), does.end(), ' ') < 10,
                  p.name << " takes more than ten words");
  }
  CHECK(outline(test::file_text(in_repository(kPages[0]))) == sections);
}

TEST_CASE("passes: blocks of pages are stored files, or parts of them") {
  for (std::string name : kPages) {
    CAPTURE(name);
    auto expected = test::file_text(in_repository(name));
    if (name == kPages[0]) set_block(expected, 0, table_of_passes());
    set_blocks(expected);
    test::matches_file(in_repository(name), expected);
  }
}
