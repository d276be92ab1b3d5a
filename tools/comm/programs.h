// The 70 programs of tests/golden/comm: the computation, the mesh, the mappings, and the minimal
// bytes of the strategy.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "haliax/haliax.h"
#include "haliax/jit.h"

namespace comm {

struct Sizes {
  std::int64_t batch = 16, position = 128, embed = 128, mlp = 512, heads = 8, head_size = 16,
               vocab = 1024, layers = 2;
};
struct Program {
  std::string name;
  haliax::Mesh mesh;
  // Bytes sent per device on a ring, by the named strategy. It need not be optimal: a gathered
  // weight may be larger than the other operand.
  double min_bytes = 0;
  // The same with the weights of the layers gathered again in the backward pass.
  std::optional<double> min_regather_bytes;
  bool regathers = false;  // min_bytes already includes that
  std::function<haliax::JitReport(bool regather)> plan;
  // The losses of a training run, on the mesh and on one device.
  std::function<std::vector<double>(int steps)> losses = {}, unsharded = {};
};
std::vector<Program> programs(const Sizes&);

// Bytes sent per device on a ring of g, for a buffer of n bytes. For uneven blocks this is the
// average over the devices, as in reports. The averages of sent and received bytes are equal.
inline double all_reduce(double n, double g) { return 2 * (g - 1) / g * n; }
inline double all_gather(double n, double g) { return (g - 1) / g * n; }
inline double reduce_scatter(double n, double g) { return all_gather(n, g); }

// Returns true if one of the 8 devices has, or needs, a position of an axis.
using Holds = std::function<bool(std::int64_t device, std::int64_t position)>;
struct Along {
  std::int64_t size;
  Holds has, needs;
};
// Returns the average number of elements that a device needs and does not have. Any resharding
// communicates at least as much.
double lacking(const std::vector<Along>&);
// Splits a size into `blocks` of ceil(size / blocks). A device has the block of its number, or of
// its `coordinate`.
Holds in_blocks(std::int64_t size, std::int64_t blocks = 8,
                std::function<std::int64_t(std::int64_t device)> coordinate = {});
Holds everywhere();

// ---- for the files that define programs ----
struct Axes {
  haliax::Axis B, S, E, F, H, D, V, Q, L;
  explicit Axes(const Sizes&);
};
using haliax::Mapping;
using haliax::NamedArray;
inline const Mapping dp{{"batch", "data"}}, fs{{"embed", "data"}},
    tp{{"mlp", "model"}, {"heads", "model"}};
Mapping operator+(const Mapping&, const Mapping&);
const haliax::Mesh& mesh_of(const std::string&);  // 8d, 8m, 42, 24

// Shapes replace the arguments, so nothing is computed.
inline NamedArray shape(const haliax::AxisSpec& axes, haliax::DType d = haliax::DType::f32) {
  return haliax::eval_shape([&] { return haliax::zeros(axes, d); });
}
struct How {
  // One mapping for each argument, and one for each part of the result.
  std::vector<std::optional<Mapping>> in, out;
  Mapping inside;  // the mapping that f sees
};
template <class F, class... A>
Program program(std::string name, const haliax::Mesh& mesh, How how, double min, F f,
                const A&... args) {
  auto plan = [=](bool regather) {
    haliax::JitOptions options{.mesh = mesh,
                               .axis_resources = how.inside,
                               .in = haliax::Mappings(how.in),
                               .out = haliax::Mappings(how.out),
                               .regather = regather};
    return haliax::named_jit(f, options).plan(args...);
  };
  return {.name = std::move(name),
          .mesh = mesh,
          .min_bytes = min,
          .min_regather_bytes = {},
          .plan = plan};
}
void add_layers(std::vector<Program>&, const Sizes&);  // matmuls, blocks, norms, embeddings
// Resharding, ops along a sharded axis, random draws.
void add_moves(std::vector<Program>&, const Sizes&);
void add_gpt2(std::vector<Program>&, const Sizes&);

}  // namespace comm
