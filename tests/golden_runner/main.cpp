// golden DIR [GROUP ...] compares the public API with recorded results of Haliax. --help prints the
// options.
#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <variant>

#include "chunked.h"
#include "errors.h"
#include "examples/command_line.h"
#include "gpt2.h"
#include "haliax/error.h"
#include "haliax/jit.h"
#include "haliax/ranks.h"
#include "mesh.h"
#include "table.h"

namespace golden {
namespace {

const char* const all_groups[] = {"ops",  "grads",   "nn",     "random",
                                  "scan", "chunked", "errors", "gpt2"};

struct Options {
  std::string dir;
  std::vector<std::string> groups, backends{"reference", "cpu"};
  std::string only;  // runs only cases whose id contains this string
  bool list_skipped = false, variants = false;
  bool ranks = false;  // runs the group gpt2 on meshes of all ranks that mpirun started
  // Runs each case once, on a mesh drawn from this seed. The backend is drawn too, unless it is an
  // option.
  std::optional<std::uint64_t> mesh;
};

std::uint64_t seed_of(const std::string& text) {
  if (text.empty() || text.size() > 18 || text.find_first_not_of("0123456789") != text.npos)
    throw BadData("--mesh is " + text + "; expected a seed: digits, at most 18");
  return std::stoull(text);
}

// Returns the exit status instead if the program ends after the arguments, as after --help.
std::variant<Options, int> parse(int argc, char** argv) {
  Options o;
  std::string backend = "both", seed;
  examples::CommandLine line("Compares the library with recorded results of Haliax.");
  line.option("dir", o.dir, "folder of the recorded results: tests/golden").required();
  line.option("groups", o.groups,
              "ops, grads, nn, random, scan, chunked, errors or gpt2; default: all");
  line.option("--backend", backend,
              "cpu, reference, both of these, separate-memory, cuda or cuda-sim; with --mesh, "
              "`both` draws a backend per case; with --ranks, `both` is cpu");
  line.option("--case", o.only, "run only cases whose id contains this text; default: all cases");
  line.flag("--list-skipped", o.list_skipped, "print skipped cases");
  line.flag("--variants", o.variants, "train GPT-2 in all variants; default: only the plain one");
  line.option("--mesh", seed,
              "run each case on a mesh that is drawn from this seed; default: none");
  line.flag("--ranks", o.ranks, "run the group gpt2 on the ranks that mpirun starts");
  if (auto status = line.parse(argc, argv)) return *status;
  if (backend != "both") o.backends = {backend};
  if (!seed.empty()) o.mesh = seed_of(seed);
  for (const auto& group : o.groups)
    if (std::find(std::begin(all_groups), std::end(all_groups), group) == std::end(all_groups))
      throw BadData("there is no group " + group +
                    "; the groups are ops, grads, nn, random, scan, chunked, errors and gpt2");
  if (o.groups.empty()) o.groups.assign(std::begin(all_groups), std::end(all_groups));
  if (o.ranks) o.groups = {"gpt2"};
  if (o.ranks && o.backends.size() > 1) o.backends = {"cpu"};
  return o;
}

class Runner {
 public:
  explicit Runner(Options o) : options_(std::move(o)) {}

  int run() {
    if (options_.mesh) haliax::set_devices(12);
    for (const std::string& name : options_.groups) {
      const Group g = read_group(options_.dir, name);
      for (const Value& c : g.cases)
        if (c["id"].as_text().find(options_.only) != std::string::npos) one(g, c);
    }
    if (options_.mesh) {
      std::printf("on meshes of seed %s: %d trials", seed_text().c_str(), tally_.trials);
      for (const auto& [words, count] : tally_.refused)
        std::printf(", %d drawn anew as axes %s", count, words.c_str());
      std::printf("\n");
    }
    if (options_.list_skipped)
      for (const auto& [what, count] : skips_)
        std::printf("skipped: %s x%d\n", what.c_str(), count);
    if (!options_.ranks || haliax::this_rank() == 0)
      std::printf("%d passed, %d failed, %d skipped\n", passed_, failed_, skipped_);
    return failed_ ? 1 : 0;
  }

 private:
  Options options_;
  MeshTally tally_;
  int passed_ = 0, failed_ = 0, skipped_ = 0;
  std::map<std::string, int> skips_;

  // Runs one case on all backends. The case passes if it passes on each of them.
  template <class F> void attempt(const std::string& id, F check) {
    attempt(id, options_.backends, check);
  }
  template <class F>
  void attempt(const std::string& id, const std::vector<std::string>& backends, F check) {
    bool good = true;
    for (const std::string& backend : backends) {
      Problems problems;
      try {
        haliax::set_default_backend(backend);
        problems = check(backend);
      } catch (const Skip& s) {
        return skip(s.what);
      } catch (const BadData&) {
        throw;
      } catch (const std::exception& e) {
        problems = {std::string("raised: ") + e.what()};
      }
      good &= problems.empty();
      for (const std::string& p : problems)
        std::printf("FAIL %s [%s] %s\n", id.c_str(), backend.c_str(), p.c_str());
    }
    good ? ++passed_ : ++failed_;
    std::fflush(stdout);
  }
  std::string seed_text() const { return std::to_string(*options_.mesh); }
  void skip(const std::string& what) {
    ++skipped_;
    ++skips_[what];
  }

  void one(const Group& g, const Value& c) {
    const std::string id = g.name + "/" + c["id"].as_text();
    if (options_.mesh) return on_mesh(g, c, id);
    if (options_.ranks)
      return attempt(id,
                     [&](const std::string& backend) { return run_gpt2_on_ranks(g, c, backend); });
    if (g.name == "errors") {
      attempt(id, [&](const std::string&) { return check_error(c); });
    } else if (g.name == "gpt2") {
      attempt(id,
              [&](const std::string& backend) { return run_gpt2(g, c, plain, backend).problems; });
      if (options_.variants)
        for (const Variant& v : variants)
          attempt(id + "/" + v.name,
                  [&](const std::string& backend) { return run_gpt2(g, c, v, backend).problems; });
    } else if (g.name == "chunked") {
      attempt(id, [&](const std::string&) { return check_chunked(g, c); });
    } else {
      attempt(id, [&](const std::string&) { return check(g, c, op_of(c)); });
    }
  }

  void on_mesh(const Group& g, const Value& c, const std::string& id) {
    MeshCase mesh(*options_.mesh, id, tally_);
    std::vector<std::string> backends = options_.backends;
    // The reference backend trains slowly.
    if (backends.size() > 1) backends = {g.name == "gpt2" ? "cpu" : mesh.backend()};
    const int failed = failed_;
    attempt(id, backends, [&](const std::string& backend) -> Problems {
      const auto check = [&](const Group& g, const Value& c, const Op& op) {
        return mesh.check(g, c, op);
      };
      const auto call = [&](const Op& op, const Arrays& in, const Value& args) {
        return mesh.call(op, in, args);
      };
      if (g.name == "errors") return check_error(c, call);
      if (g.name == "gpt2") return mesh.train(g, c, backend);
      if (g.name == "chunked") return check_chunked(g, c, check);
      return check(g, c, op_of(c));
    });
    if (failed_ > failed)
      std::printf("     on %s\n     again: build/tests/golden %s %s --case %s --mesh %s\n",
                  mesh.how().c_str(), options_.dir.c_str(), g.name.c_str(),
                  c["id"].as_text().c_str(), seed_text().c_str());
  }

  static const Op& op_of(const Value& c) {
    const auto found = table().find(c["op"].as_text());
    if (found == table().end()) throw Skip{c["op"].as_text()};
    return found->second;
  }
};

}  // namespace
}  // namespace golden

int main(int argc, char** argv) try {
  auto parsed = golden::parse(argc, argv);
  if (auto* status = std::get_if<int>(&parsed)) return *status;
  return golden::Runner(std::get<golden::Options>(std::move(parsed))).run();
} catch (const std::exception& e) {
  std::fprintf(stderr, "golden: %s\n", e.what());
  return 2;
}
