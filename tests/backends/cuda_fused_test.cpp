// Fused steps as kernels: vectors of a few elements at any address, rows that stay in registers,
// reductions in two passes. Results are compared with the reference, and memory reads are counted.
#include <doctest/doctest.h>

#include <set>

#include "backends/cuda/nvidia/nvrtc.h"
#include "support/left_out.h"
#include "support/programs.h"
#include "support/simulated.h"

using namespace haliax;
using namespace haliax::program;
using namespace haliax::testing;

namespace {

// Plans the scratch that the device requires, after everything else in the arena.
void plan_scratch(Case& c, Device& device) {
  for (auto& s : c.program.steps) {
    s.scratch_bytes = device.scratch_bytes(s, 0);
    s.scratch = c.program.arena_bytes;
    c.program.arena_bytes += aligned(s.scratch_bytes);
  }
}
void compare_there(Case& c, double scale = 4) {
  const auto device = cuda::make_simulated_device();
  plan_scratch(c, *device);
  const auto got = c.run(*device), expected = c.run(*reference::make_reference_device());
  for (std::size_t r = 0; r < expected.size(); ++r)
    CHECK(difference(c.result_dtypes[r], got[r], expected[r],
                     scale * tolerance(c.result_dtypes[r])) == "");
  CHECK(c.run(*device) == got);  // bitwise identical in every run
}
// Rows of (rows, n), from an offset, with a gap after each row.
View rows_of(Case& c, bool result, DType d, std::int64_t rows, std::int64_t n, std::int64_t offset,
             std::int64_t gap) {
  return {c.slot(result, d, offset + rows * (n + gap)), d, offset, {n + gap, 1}, {}};
}
std::size_t times(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(what, at)) != text.npos; at += what.size()) ++n;
  return n;
}
std::string text_of(const Case& c) { return cuda::launches_of(c.program.steps[0])[0].source; }
// out = exp(x - max(x)) / sum(exp(x - max(x))), of rows.
Case softmax(std::int64_t rows, std::int64_t n, std::int64_t offset, std::int64_t gap,
             DType d = DType::f32) {
  Case c(5);
  const auto x = rows_of(c, false, d, rows, n, offset, gap),
             out = rows_of(c, true, d, rows, n, offset, gap);
  auto& f = c.add(Kind::fused).fused;
  f.dims = {rows, n};
  f.outer = 1;
  f.code = {load(x, true),
            op(Code::reduce_max, d, {0}),
            op(Code::sub, d, {0, 1}, true),
            op(Code::exp, d, {2}, true),
            op(Code::reduce_sum, d, {3}),
            op(Code::div, d, {3, 4}, true),
            store(out, 5, true)};
  return c;
}
// A reduction over the first or the last dim of (rows, n), by any monoid.
Case fold(Code code, DType d, std::int64_t rows, std::int64_t n, bool first, unsigned seed) {
  Case c(seed);
  const auto x = rows_of(c, false, d, rows, n, c.random.below(3), c.random.below(2));
  const auto out = c.view(true, d, {first ? n : rows}, Case::dense);
  auto& f = c.add(Kind::fused).fused;
  f.dims = {first ? n : rows, first ? rows : n};
  f.outer = 1;
  View in = x, of_row = out;
  if (first) std::swap(in.strides[0], in.strides[1]);
  of_row.strides = {1, 0};
  f.code = {load(in, true), op(code, d, {0}), store(of_row, 1)};
  return c;
}

}  // namespace

TEST_CASE("cuda fused: vectors of all widths match at any address and of any length") {
  for (unsigned seed = 0; seed < 48; ++seed) {
    CAPTURE(seed);
    Case c(seed);
    const std::int64_t rows = 1 + c.random.below(5), n = 16 + c.random.below(300),
                       gap = c.random.below(2) * 4;
    const auto narrow = all_dtypes[c.random.below(13)];
    auto offset = [&] { return c.random.below(3) * 4 + c.random.below(2); };
    const auto x = rows_of(c, false, DType::f32, rows, n, offset(), gap),
               y = rows_of(c, false, narrow, rows, n, offset(), gap),
               out = rows_of(c, true, DType::f32, rows, n, offset(), 0),
               more = rows_of(c, true, narrow, rows, n, offset(), gap);
    View all = c.view(false, DType::f32, {rows}, Case::dense);
    all.strides = {1, 0};
    auto position = leaf(Code::iota, DType::f32);
    position.dim = 1;
    position.stride = 3;
    auto& f = c.add(Kind::fused).fused;
    f.dims = {rows, n};
    f.outer = 2;
    f.code = {load(x),
              load(y),
              op(Code::cast, DType::f32, {1}),
              op(Code::add, DType::f32, {0, 2}),
              load(all),
              op(Code::mul, DType::f32, {3, 4}),
              position,
              op(Code::add, DType::f32, {5, 6}),
              store(out, 7),
              store(more, 1, false,
                    c.random.coin() || narrow == DType::boolean ? Code::store : Code::store_add)};
    CHECK(times(text_of(c), "load_few<") >= 2);
    compare_there(c, 1);
  }
}
TEST_CASE(
    "cuda fused: a row is read once if it fits in the registers or the shared memory of a block") {
  for (int n : {40, 1000, 4096, 16384, 20000, 30000}) {
    CAPTURE(n);
    const auto c = softmax(20, n, 0, 0);
    CHECK(times(text_of(c), "= load_few<") == (n > 25000 ? 3 : 1));
    CHECK(times(text_of(c), "std::exp(") == (n > 16384 ? 2 : 1));
    CHECK(times(text_of(c), "= near0[") == (n > 16384 && n < 25000 ? 2 : 0));
  }
  // an H100
  CHECK(cuda::launches_of(softmax(2, 50257, 0, 0).program.steps[0], nullptr, 227 << 10)[0].shared >
        50257 * 4);

  for (auto& how : {std::array{5, 0, 0},
                    {40, 1, 0},
                    {333, 0, 3},
                    {768, 4, 0},
                    {1000, 0, 1},
                    {2049, 2, 2},
                    {4096, 0, 0},
                    {16000, 3, 0},
                    {20001, 0, 0},
                    {30001, 0, 2}}) {
    const int n = how[0], offset = how[1], gap = how[2];
    CAPTURE(n);
    for (auto d : {DType::f32, DType::bf16}) {
      auto c = softmax(n > 3000 ? 3 : 7, n, offset, gap, d);
      compare_there(c);
    }
  }
}
TEST_CASE("cuda fused: long reductions to few elements run in two passes, and request scratch") {
  const auto device = cuda::make_simulated_device();
  auto of = [&](Code code, DType d, std::int64_t rows, std::int64_t n, bool first) {
    Step s;  // not run
    s.fused.dims = {first ? n : rows, first ? rows : n};
    s.fused.outer = 1;
    const View x{0, d, 0, first ? Dims{1, n} : Dims{n, 1}, {}}, out{1, d, 0, {1, 0}, {}};
    s.fused.code = {load(x, true), op(code, d, {0}), store(out, 1)};
    s.scratch_bytes = device->scratch_bytes(s, 0);
    s.scratch = 0;
    return cuda::launches_of(s);
  };
  CHECK(of(Code::reduce_sum, DType::f32, 65536, 4096, true).size() == 2);
  CHECK(of(Code::reduce_sum, DType::f32, 65536, 4096, true)[0].blocks == 264);
  // enough rows for one pass
  CHECK(of(Code::reduce_sum, DType::f32, 65536, 4096, false).size() == 1);
  CHECK(of(Code::reduce_sum, DType::bf16, 2, 1 << 20, false).size() == 2);
  CHECK(of(Code::reduce_sum, DType::f32, 20, 300, true).size() == 1);  // little work
  CHECK(of(Code::reduce_argmax, DType::f32, 2, 1 << 20, false).size() == 1);
  CHECK(device->scratch_bytes({.kind = Kind::fused}, 0) == 0);
}
TEST_CASE(
    "cuda fused: two-pass reductions match the reference, for all dtypes and monoids, over the "
    "first and the last dim") {
  unsigned seed = 0;
  for (auto d : all_dtypes)
    for (bool first : {true, false}) {
      CAPTURE(name_of(d));
      CAPTURE(first);
      const auto code = std::array{Code::reduce_sum, Code::reduce_max, Code::reduce_min,
                                   Code::reduce_prod}[++seed % 4];
      auto c = first ? fold(code, d, 3001 + seed, 45 + seed, true, seed)
                     : fold(code, d, 3, 44001 + seed, false, seed);
      compare_there(c);
    }
}
TEST_CASE("cuda fused: two-pass sums of 16-bit floats are rounded once") {
  Case c(9);
  const std::int64_t n = 1 << 18;
  const auto x = c.view(false, DType::bf16, {n}, Case::dense),
             out = c.view(true, DType::bf16, {}, Case::dense);
  // Ones, with a 16 among each 4096 of them, and a first 1000. A partial sum of 4111 would be 4096
  // in bf16, and the total would differ.
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double one = i == 0 ? 1000 : i % 4096 == 5 ? 16 : 1;
    scalar::store(DType::bf16, &c.arguments[0][std::size_t(x.offset + i) * 2], {one, 0});
    sum += one;
  }
  auto& f = c.add(Kind::fused).fused;
  f.dims = {n};
  f.outer = 0;
  f.code = {load(x, true), op(Code::reduce_sum, DType::bf16, {0}), store(out, 1)};
  const auto device = cuda::make_simulated_device();
  plan_scratch(c, *device);
  REQUIRE(cuda::launches_of(c.program.steps[0]).size() == 2);
  const auto got = scalar::load(DType::bf16, &c.run(*device)[0][std::size_t(out.offset) * 2]).real;
  CHECK(got == scalar::rounded(DType::bf16, {sum, 0}).real);
}
TEST_CASE("cuda fused: memory-bound kernels compile to accesses of 16 bytes") {
  if (!cuda::has_nvrtc()) {
    left_out("accesses of 16 bytes", "not compiled: no NVRTC here");
    return;
  }
  for (auto d : {DType::f32, DType::bf16}) {
    const auto c = softmax(300, 4096, 0, 0, d);
    const auto ptx = cuda::compile_for_gpu(cuda::source_for_gpu(cuda::named(text_of(c))), 90).ptx;
    const auto type = d == DType::f32 ? "v4.f32" : "v4.u32";
    const std::size_t each =
        d == DType::f32 ? 4 : 2;  // accesses per thread, for a row of 4096 and 256 threads
    CAPTURE(ptx);
    CHECK(times(ptx, std::string("ld.") + type) == each);
    CHECK(times(ptx, std::string("st.") + type) == each);
  }
}
TEST_CASE(
    "cuda fused: rows in registers and two-pass reductions compile for GPUs without spills and "
    "without a stack") {
  std::vector<Step> steps;
  for (auto d : {DType::f32, DType::bf16, DType::f64, DType::i8}) {
    auto view = [&](int slot, Dims strides) { return View{slot, d, 0, std::move(strides), {}}; };
    // (x - mean) / sqrt(mean of squares) * gain + bias
    for (std::int64_t n : {768, 4096, 16384, 50257}) {
      auto& f = steps.emplace_back(Step{.kind = Kind::fused}).fused;
      f.dims = {1000, n};
      f.outer = 1;
      f.code = {load(view(0, {n, 1}), true),       op(Code::reduce_sum, d, {0}),
                op(Code::sub, d, {0, 1}, true),    op(Code::mul, d, {2, 2}, true),
                op(Code::reduce_sum, d, {3}),      load(view(1, {0, 1}), true),
                op(Code::div, d, {2, 4}, true),    load(view(2, {0, 1}), true),
                op(Code::fma, d, {5, 6, 7}, true), store(view(3, {n, 1}), 8, true)};
    }
    for (bool first : {true, false}) {
      auto& f = steps.emplace_back(Step{.kind = Kind::fused}).fused;
      f.dims = {first ? 768 : 4, 1 << 20};
      f.outer = 1;
      f.code = {load(view(0, first ? Dims{1, 768} : Dims{1 << 20, 1}), true),
                op(Code::mul, d, {0, 0}, true), op(Code::reduce_sum, d, {1}),
                store(view(1, {1, 0}), 2)};
    }
  }
  const auto device = cuda::make_simulated_device();
  std::set<std::string> known;  // rows of other lengths may have equal source code
  std::string text;
  int count = 0;
  for (auto& s : steps) {
    s.scratch_bytes = device->scratch_bytes(s, 0);
    s.scratch = 0;
    for (auto& l : cuda::launches_of(s)) {
      ++count;
      if (known.insert(l.source).second) text += cuda::named(l.source).source;
    }
  }
  CHECK(count == 4 * (4 + 2 * 2));
  if (!cuda::has_nvrtc()) {
    left_out("rows and folds", "not compiled: no NVRTC here");
    return;
  }
  for (int sm : {80, 90, 100}) {
    const auto log = cuda::compile_for_gpu(cuda::prelude(false) + text + "}\n", sm).log;
    CAPTURE(log);
    CHECK(times(log, "Compiling entry function") == known.size());
    CHECK(times(log, " 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads") ==
          known.size());
  }
}
