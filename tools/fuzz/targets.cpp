// Targets that read external input: files, specs, sizes and names.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "fuzz.h"
#include "haliax/haliax.h"
#include "haliax/io.h"
#include "haliax/policy.h"
#include "haliax/state_dict.h"

namespace fuzz {
namespace {

using namespace haliax;

std::string own_file() {
  return (std::filesystem::temp_directory_path() /
          ("haliax-fuzz-" + std::to_string(getpid()) + ".safetensors"))
      .string();
}
void safetensors(std::span<const std::uint8_t> bytes) {
  const auto path = own_file();
  struct Remover {
    const std::string& path;
    ~Remover() { std::filesystem::remove(path); }
  } remover{path};
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
  auto file = read_safetensors(path);
  write_safetensors(path, file);  // a file that was read can be written, and is read back unchanged
  if (read_safetensors(path).tensors.size() != file.tensors.size())
    throw std::logic_error("a file that was written is read back differently");
}
std::string header(const std::string& json, std::size_t data) {
  std::string size(8, '\0');
  for (int k = 0; k < 8; ++k) size[std::size_t(k)] = char(json.size() >> 8 * k);
  return size + json + std::string(data, '\1');
}

struct Layer {
  NamedArray weight;
  std::optional<NamedArray> bias;
};
struct Model {
  nn::Linear first;
  nn::Stacked<Layer> layers;
  std::vector<Layer> heads;
};
void state_dict(std::span<const std::uint8_t> bytes) {
  Choices c(bytes);
  const Axis In("in", 2), Out("out", 3), L("layers", 2);
  Model model{nn::Linear::init(In, Out, random::key(0)),
              {{zeros({L, Out}), zeros(L)}, L},
              {{zeros(In), {}}, {zeros(In), zeros(Out)}}};
  auto file = to_state_dict(model);
  for (auto changes = c.below(6); changes > 0 && !file.tensors.empty(); --changes) {
    auto& t = file.tensors[std::size_t(c.below(std::int64_t(file.tensors.size())))];
    switch (c.below(7)) {
      case 0:
        t.name += char('a' + c.below(26));
        break;
      case 1:
        t.name = c.any<std::string>({"", ".", "layers.9.weight", "layers.-1.weight", "layers.x",
                                     "layers.0.weight", "first.weight.", "heads.1"});
        break;
      case 2:
        t.shape.push_back(c.below(4));
        break;
      case 3:
        if (!t.shape.empty())
          t.shape.back() = c.any<std::int64_t>({0, 1, -1, 3, std::int64_t(1) << 62});
        break;
      case 4:
        t.dtype = DType(c.below(13));
        break;
      case 5:
        t.data.resize(std::size_t(c.below(40)));
        break;
      default:
        file.tensors.erase(file.tensors.begin() + (&t - file.tensors.data()));
    }
  }
  if (c.below(2))
    from_state_dict(
        file, model,
        {.allow_missing = true, .allow_other_shape = true, .convert = ConvertDtypes::all});
  else
    from_state_dict(file, model);
}

const Axis A("a", 2), B("b", 3), C("c", 4);
void einsum_spec(std::span<const std::uint8_t> bytes) {
  Choices c(bytes);
  const auto shape = c.below(3);
  auto x = zeros({A, B}), y = shape == 0   ? zeros({B, C})
                              : shape == 1 ? zeros({A, B})
                                           : zeros(Axes{});
  auto spec = c.rest();
  (shape == 2 ? einsum(spec, {x}) : einsum(spec, {x, y})).eval();
}
void rearrange_spec(std::span<const std::uint8_t> bytes) {
  Choices c(bytes);
  const bool bound = c.below(2);
  auto x = zeros({A, B, C});
  auto spec = c.rest();
  (bound ? rearrange(x, spec, {{"p", Axis("q", 2)}, {"r", "s"}}) : rearrange(x, spec)).eval();
}
void policy(std::span<const std::uint8_t> bytes) { Policy(Choices(bytes).rest()); }

void meshes(std::span<const std::uint8_t> bytes) {
  Choices c(bytes);
  const bool strange = c.below(4) == 0;  // otherwise names and sizes are plausible
  auto name = [&] {
    return strange ? c.any<std::string>({"a", "b", "c", "data", "model", "", "x y", "a"})
                   : c.any<std::string>({"a", "b", "a", "c"});
  };
  auto of_mesh = [&] { return strange ? name() : c.any<std::string>({"data", "model", "x"}); };
  std::vector<std::pair<std::string, int>> axes;
  for (auto* own : {"data", "model", "x"})
    axes.push_back({strange ? name() : own, strange ? c.any<int>({1, 2, 0, -1, -2, 7, 1 << 30})
                                                    : c.any<int>({1, 2, 3, 4, 5})});
  std::vector<Mapping::Entry> entries;
  for (auto n = c.below(5); n > 0; --n) {
    std::vector<std::string> to;
    for (auto m = c.below(3); m > 0; --m) to.push_back(of_mesh());
    entries.push_back({Name(name()), to});
  }
  const Mapping mapping = Mapping::of(entries);
  const Mesh mesh(axes);
  const Axis rows("a", c.any<std::int64_t>({0, 1, 2, 3, 5, 8})),
      columns("b", c.any<std::int64_t>({1, 4, 7}));
  auto f = [&](const NamedArray& x, const NamedArray& y) {
    auto h = c.below(2) ? dot(x, y, columns) : x * y;
    return std::pair(sum(h), c.below(2) ? sort(x, rows) : shard(x, mapping));
  };
  named_jit(f, {.mesh = mesh, .axis_resources = mapping, .strict = c.below(2) != 0})
      .plan(zeros({rows, columns}), zeros({rows, columns}));
}

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all{
      {"safetensors",
       safetensors,
       {header(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"a":"b"}})",
               8),
        header(R"({"w":{"dtype":"BOOL","shape":[],"data_offsets":[0,1]},)"
               R"("v":{"dtype":"BF16","shape":[0,3],"data_offsets":[1,1]}})",
               1)}},
      {"state_dict", state_dict, {"abcdefgh"}},
      {"einsum",
       einsum_spec,
       {"00{a b}, {b c} -> a c", "00a b, b c -> c a", "10{...b} , {a ...} -> ...", "20x y -> y",
        "00a b, b c -> (a c)"}},
      {"rearrange",
       rearrange_spec,
       {"00{a b c} -> c b a", "00a b c -> (d: a b) c", "10{b: (p r)} -> p r", "00... c -> c ...",
        "10(a: p r) b c -> a b c"}},
      {"policy", policy, {"p=f32,c=bf16,o=f32", "half", "params=float32, compute=bfloat16,r=f32"}},
      {"mesh", meshes, {"abcdefghijklmnopqrstuvwxyz", "zyxwvutsrqponmlkjihgfedcba"}},
      {"ops", one_op, {std::string(200, '\7')}},
  };
  return all;
}

}  // namespace fuzz
