// The source code of kernels. Kernels that are simulated on the host also compile for GPUs, if a
// compiler is installed; faults planted into them are found on the host.
#include <doctest/doctest.h>

#include <set>

#include "backends/cuda/api.h"
#include "backends/cuda/nvidia/nvrtc.h"
#include "backends/cuda/engine/sequence.h"
#include "support/left_out.h"
#include "support/programs.h"
#include "support/raises.h"

namespace {

using namespace haliax;
using namespace haliax::program;
using namespace haliax::testing;

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
  return text;
}
// The source code of many kernels.
class Texts {
 public:
  void add(const Program& p) {
    for (auto& s : p.steps)
      for (auto& l : cuda::launches_of(s))
        if (known_.insert(l.source).second)
          text_ += replaced(l.source, "NAME", "k" + std::to_string(known_.size()));
  }
  std::size_t count() const { return known_.size(); }
  std::string text() const { return cuda::prelude(false) + text_ + "}\n"; }

 private:
  std::set<std::string> known_;
  std::string text_;
};
void compiles(const Texts& texts, const char* test) {
  if (!cuda::has_nvrtc()) {
    left_out(test, "not compiled: no NVRTC here");
    return;
  }
  for (int sm : {80, 90, 100}) {
    CAPTURE(sm);
    auto log = cuda::compile_for_gpu(texts.text(), sm).log;
    for (std::size_t at = 0; (at = log.find("Compiling entry function", at)) != std::string::npos;
         ++at) {
      auto about = log.substr(at, log.find("Compile time", at) - at);
      CAPTURE(about);
      CHECK(about.find(" 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads") !=
            std::string::npos);
    }
  }
}

}  // namespace

TEST_CASE("cuda: kernels of fused steps compile for GPUs, without spills") {
  Texts texts;
  for (unsigned seed = 0; seed < 24; ++seed) {
    Case c(seed);
    auto dims = random_dims(c.random, 4, 40);
    random_fused(c, dims, static_cast<int>(c.random.below(std::int64_t(dims.size()) + 1)),
                 all_dtypes[c.random.below(12)], 6);
    texts.add(c.program);
  }
  CHECK(texts.count() > 20);
  compiles(texts, "fused steps");
}
TEST_CASE("cuda: every code compiles for GPUs") {
  Texts texts;
  Case c(1);
  auto& f = c.add(Kind::fused).fused;
  f.dims = {64};
  f.outer = 1;
  for (int k = int(Code::exp); k <= int(Code::shift_right); ++k) {
    auto code = Code(k);
    // Handwritten functions have tables and tails, which need a stack.
    if (code == Code::bitcast || code == Code::lgamma || code == Code::digamma ||
        code == Code::erfinv)
      continue;
    bool integers = is_bitwise(code) || code == Code::popcount;
    auto d = integers ? DType::i32 : DType::f32;
    auto from = int(f.code.size());
    f.code.push_back(load(c.view(false, d, {64}, Case::dense)));
    f.code.push_back(load(c.view(false, d, {64}, Case::dense)));
    const auto result = yields_bool(code) ? DType::boolean : d;
    f.code.push_back(operands_of(code) == 1 ? op(code, result, {from})
                                            : op(code, result, {from, from + 1}));
    f.code.push_back(store(c.view(true, result, {64}, Case::dense), from + 2));
    texts.add(c.program);
    f.code.clear();
  }
  compiles(texts, "every code");
}
TEST_CASE("cuda: the condition of a graph node is linked with the toolkit's own device code") {
  Case c(1);
  c.add(Kind::conditional).conditional.flag = c.view(false, DType::boolean, {}, Case::dense);
  const auto sequence = cuda::sequence_of(c.program, 0, {.conditional_nodes = true});
  REQUIRE(sequence.items.size() == 1);
  const auto text = cuda::source_for_gpu(cuda::named(sequence.items[0].launch.source));
  CHECK(text.find(cuda::kSetCondition) != text.npos);
  if (!cuda::has_nvrtc() || !cuda::can_link()) {
    left_out("what tells a graph", "not linked: no NVRTC, nvJitLink or libcudadevrt.a here");
    return;
  }
  for (int sm : {80, 90, 100}) {
    const auto cubin = cuda::compile_for_gpu(text, sm);
    CHECK(cubin.bytes.substr(0, 4) ==
          "\x7f"
          "ELF");
    CHECK(cubin.log.find("0 bytes stack frame") != cubin.log.npos);
  }
}
