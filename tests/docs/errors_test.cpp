// Each message that docs/reference/errors.md shows is raised by its mistake, or is in the list of
// executed mistakes (tests/mistakes/README.md).
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <regex>
#include <sstream>

#include "haliax/haliax.h"
#include "haliax/state_dict.h"
#include "support/golden_dir.h"
#include "support/raises.h"

using namespace haliax;

namespace {

std::string file_text(const std::string& path) {
  std::ifstream file(golden_dir() + "/../../" + path);
  REQUIRE(file);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Pair {
  nn::Linear up, down;
};
struct Renamed {
  nn::Linear up, dwn;
};

const Axis N("n", 3), M("m", 2);
nn::Linear layer() { return nn::Linear::init(N, M, random::key(0)); }

// The messages of the mistakes that a program makes when it runs.
std::string raised_messages() {
  const auto x = arange(N, {.dtype = DType::f32}), y = x + 1;
  auto condition = [](const NamedArray& v) {
    if (sum(v) > 1.) return v;
    return v * 0.;
  };
  auto fold_twice = [&] {
    auto step = [&](const NamedArray& c, const NamedArray& v) { return c + v * y; };
    return fold(step, "n")(zeros({}), x);
  };
  auto read_donated = [&] {
    auto f = jit([](const NamedArray& v) { return v + 1.; }, {.donate = {0}});
    auto a = ones(N).eval();
    f(a);
    return a.floats();
  };
  auto retrace = [&] {
    struct Model {
      NamedArray w;
      double rate;
    };
    auto step = jit([](const Model& m) { return m.w * m.rate; }, {.refuse_retraces = true});
    for (int i = 0; i < 8; ++i) step(Model{y, 0.01 * i});
  };
  auto leak = [&] {
    NamedArray leaked;
    jit([&](const NamedArray& v) {
      leaked = v * 2.;
      return v;
    })(x);
    return leaked.floats();
  };
  struct Lora {
    NamedArray lora, base;
  };
  auto wrong_path = [&] {
    return value_and_grad([](const Lora& m) { return sum(m.lora * m.base); }, "lroa")(Lora{x, y});
  };
  auto print_in_region = [&] {
    return chunked_reduce(N, {}, [](const NamedArray& v) {
      debug::print("{}", v);
      return sum(v);
    })(x);
  };
  auto wrong_mesh_axis = [] {
    use_mesh mesh(Mesh{{{"data", 1}}});
    axis_mapping mapping({{"n", "dat"}});
  };
  auto one = [](const NamedArray& v) { return v; };
  auto reduced = [](const NamedArray& v) { return sum(v); };
  auto more_devices = [&] {
    return named_jit(one,
                     {.mesh = Mesh{{{"data", 4096}}}, .axis_resources = Mapping{{"n", "data"}}})(x);
  };
  auto truncated_file = [] {
    auto path = std::filesystem::temp_directory_path() / "haliax_docs_errors.safetensors";
    write_safetensors(path.string(), to_state_dict(layer()));
    std::filesystem::resize_file(path, 20);
    auto text = error_of([&] { return read_safetensors(path.string()); });
    std::filesystem::remove(path);
    throw Error(text);
  };
  auto layers = [](int n) {
    const Axis depth("layers", n);
    auto make = [](const Key& k) { return nn::Linear::init(N, M, k); };
    return nn::Stacked<nn::Linear>::init(depth, make, random::split(random::key(0), depth));
  };
  const std::vector<std::function<void()>> mistakes{
      [&] { (void)(y > 1.5 ? y : x); },
      [&] { (void)std::max(x, y); },
      [&] { (void)bool(x == y); },
      [&] { jit(condition)(x); },
      [&] { (void)bool(NamedArray()); },
      [&] { cond(x > 0., one, one)(x); },
      [&] {
        sum(ones({Axis("embed", 2), M}), "embd");
      },
      [&] { x + ones(Axis("n", 4)); },
      [&] { x* ones(M); },
      [&] {
        zeros({N, N});
      },
      [&] { layer()(ones(M)); },
      [&] { x& y; },
      [&] { full(N, 300, DType::u8); },
      [&] {
        x[{"n", 3}];
      },
      [&] {
        array(std::vector<float>{1, 2}, N);
      },
      [&] { jit([](const NamedArray& v) { return v * v.item(); })(sum(x)); },
      [&] { leak(); },
      [&] { read_donated(); },
      [&] { jit(one, {.donate = {1}})(x); },
      [&] { Jitted<NamedArray(const NamedArray&)>()(x); },
      [&] { retrace(); },
      [&] { grad([](const NamedArray& v) { return v * v; })(x); },
      [&] { fold_twice(); },
      [&] { cond(sum(x) > 1., one, reduced)(x); },
      [&] { wrong_path(); },
      [&] { print_in_region(); },
      [&] { set_default_backend("gpu"); },
      [&] { wrong_mesh_axis(); },
      [&] {
        shard(ones({N, M}), {{"n", "data"}, {"m", "data"}});
      },
      [&] { Policy("p=f32,c=bf61"); },
      [&] { more_devices(); },
      [&] {
        from_state_dict(to_state_dict(Renamed{layer(), layer()}), Pair{layer(), layer()});
      },
      [&] { from_state_dict(to_state_dict(layers(3)), layers(2)); },
      [&] { truncated_file(); },
      [&] { read_safetensors("nothing.safetensors"); },
  };
  std::string out;
  for (auto& mistake : mistakes) {
    auto text = error_of([&] {
      mistake();
      return 0;
    });
    CAPTURE(&mistake - mistakes.data());
    CHECK(text.starts_with("["));
    out += text + "\n";
  }
  return out;
}

}  // namespace

TEST_CASE("errors: each message of the page is raised, or is in the list of executed mistakes") {
  const auto known = raised_messages() + file_text("tests/mistakes/README.md");
  const std::regex row(R"(^\| (.*) \| (.*) \| (.*) \|$)"), quoted("`([^`]+)`");
  std::istringstream page(file_text("docs/reference/errors.md"));
  int rows = 0;
  bool in_table = false;
  for (std::string line; std::getline(page, line);) {
    std::smatch cells;
    if (!line.starts_with("|")) in_table = false;
    if (!std::regex_match(line, cells, row)) {
      continue;  // prose, or the line under a header
    } else if (cells[2] == "message contains") {
      in_table = true;
    } else if (in_table) {
      ++rows;
      const std::string cell = cells[2];
      for (std::sregex_iterator part(cell.begin(), cell.end(), quoted), end; part != end; ++part)
        CHECK_MESSAGE(known.find((*part)[1]) != std::string::npos, line);
    }
  }
  CHECK(rows >= 50);
}
