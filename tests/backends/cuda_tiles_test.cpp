// Rows as tiles, on a simulated GPU: a handwritten iteration of attention, forward and backward,
// with flags that skip blocks of columns. Counts passes, and plants faults that must be found and
// must name their step.
#include <doctest/doctest.h>

#include <limits>

#include "backends/cuda/kernels/nest.h"
#include "backends/cuda/kernels/tiles.h"
#include "support/raises.h"
#include "support/simulated.h"

using namespace haliax;
using namespace haliax::testing;

namespace {

// Columns in blocks of `width`.
// - across: the terms of a key are far apart in memory
// - beyond: no mask includes columns from here on, so that the blocks after it need not be computed
// - gap: elements between lines; with 4, no line is aligned to 16 bytes
// - fill: the score where the mask does not hold
// - guarded: replaces an infinite maximum by 0
// - wide: operands of matmuls and sums after the softmax are f32
// - follows: the blocks to compute follow from the mask and from the weight of the fill, as in
//   compiled programs
// - from: row r sees columns from 2 r on, not up to 2 r
struct Shape {
  std::int64_t rows = 64, columns = 160, terms = 40, width = 32, beyond = 90, gap = 0;
  bool across = false;
  DType dtype = DType::bf16;
  double fill = -3e4;
  int blind = 3;  // a row that sees nothing
  bool guarded = false, wide = false, follows = false, from = false;
};
View at(int slot, DType d, Dims strides, std::int64_t offset = 0, std::vector<Term> terms = {}) {
  return {slot, d, offset, std::move(strides), std::move(terms)};
}
Instr iota(int dim, int stride) {
  return {.code = Code::iota, .dtype = DType::i32, .inner = dim > 0, .dim = dim, .stride = stride};
}
Instr number(DType d, double x) {
  return {.code = Code::constant, .dtype = d, .number = x, .integer = std::int64_t(x)};
}

// In each of 2 iterations: s = q k^T, p = softmax(s under a mask), o = p v, ds = p * (do v^T -
// rowsum(p * do v^T)), dk += ds^T q.
class AttentionLoop {
 public:
  explicit AttentionLoop(const Shape& shape) : c(11), n_(shape), d_(shape.dtype) {
    const auto line = n_.terms + n_.gap;
    const int q = c.slot(false, d_, 2 * n_.rows * line), k = c.slot(false, d_, n_.columns * line),
              v = c.slot(false, d_, n_.columns * line), seen = c.slot(false, DType::boolean, 64),
              o = c.slot(true, DType::f32, 2 * n_.rows * n_.terms),
              all_sums = c.slot(true, DType::f32, 2 * n_.rows),
              dk = c.slot(true, DType::f32, 2 * n_.columns * n_.terms),
              grad_sums = n_.wide ? c.slot(true, DType::f32, 2 * n_.rows) : -1;
    for (std::size_t g = 0; g < 64; ++g)
      c.arguments[3][g] = std::byte(std::int64_t(g) * n_.width < n_.beyond);
    const auto wide = n_.rows * n_.columns;
    const int s = own(wide * 2), e = own(wide * 4), p32 = own(wide * 4), ds = own(wide * 2),
              weights = own(n_.rows * 4), sums = own(n_.rows * 4), none = own(64), made = own(64),
              variable = 0;
    p().loops = 8;
    Step outer{.kind = Kind::loop};
    auto& l = outer.loop;
    l.variable = variable;
    l.trips = 2;
    l.parallel_slots = 1;
    q_ = at(q, d_, {line, 0, 1}, 0, {{.loop = variable, .stride = n_.rows * line}});
    const Dims of_keys = n_.across ? Dims{1, n_.columns} : Dims{line, 1};
    auto& b = outer.body;
    products(b, seen, {n_.rows, 0, n_.terms}, q_, at(k, d_, {0, of_keys[0], of_keys[1]}),
             at(s, d_, {n_.columns, 1, 0}), false);
    b.push_back(softmax(s, e, sums, weights, p32));
    b.push_back(
        sums_out(sums, at(all_sums, DType::f32, {1}, 0, {{.loop = variable, .stride = n_.rows}})));
    const int later = n_.follows ? made : seen;
    if (n_.follows) {
      b.push_back(no_weight(weights, none));
      b.push_back(made_too(seen, none, made));
    }

    const View out = at(o, DType::f32, {n_.terms, 1, 0}, 0,
                        {{.loop = variable, .stride = n_.rows * n_.terms}}),
               keys = at(dk, DType::f32, {n_.terms, 1, 0}, 0,
                         {{.loop = variable, .stride = n_.columns * n_.terms}});
    b.push_back(zero(out, {n_.rows, n_.terms}, DType::f32));
    b.push_back(zero(keys, {n_.columns, n_.terms}, DType::f32));
    products(b, n_.follows ? made : -1, {n_.rows, n_.terms, 0}, at(s, d_, {n_.columns, 0, 1}),
             at(v, d_, {0, 1, line}), out, true);
    b.push_back(zero(at(ds, d_, {n_.columns, 1}), {n_.rows, n_.columns}, d_));
    products(b, later, {n_.rows, 0, n_.terms}, q_, at(v, d_, {0, line, 1}),
             at(ds, d_, {n_.columns, 1, 0}), false);
    b.push_back(n_.wide ? gradient_of_wide(p32, sums, ds, grad_sums) : gradient(s, ds));
    View q_terms = q_;
    q_terms.strides = {0, 1, line};
    products(b, later, {0, n_.terms, n_.rows}, at(ds, d_, {1, 0, n_.columns}), q_terms, keys, true);
    l.parallel_slot_start = 64;
    l.parallel_slot_bytes = p().arena_bytes - 64;
    p().steps.push_back(std::move(outer));
  }
  Case c;
  const Step& loop() { return p().steps[0]; }
  std::string source() { return cuda::nest_launch(loop(), p(), cuda::shared_limit_of(90)).source; }

 private:
  Program& p() { return c.program; }
  int own(std::int64_t bytes) {
    p().arena_bytes = std::max<std::int64_t>(p().arena_bytes, 64);
    p().slots.push_back({.bytes = bytes, .offset = p().arena_bytes});
    p().arena_bytes += aligned(bytes);
    return int(p().slots.size()) - 1;
  }
  // Adds the matmul of a and b over blocks of columns, which are the dim of size 0. Each block has
  // a flag unless `flags` is negative.
  void products(std::vector<Step>& to, int flags, std::array<std::int64_t, 3> mnk, const View& a,
                const View& b, const View& out, bool adds) {
    const auto full_blocks = n_.columns / n_.width, rest = n_.columns % n_.width;
    const auto dim = std::size_t(std::find(mnk.begin(), mnk.end(), 0) - mnk.begin());
    auto block = [&](std::int64_t first, std::int64_t size, std::int64_t trips) {
      Step s{.kind = Kind::contract, .op = adds ? "sum" : "dot", .where = "model.cpp:5"};
      auto sizes = mnk;
      sizes[dim] = size;
      const int variable = trips > 1 ? ++variables_ : -1;
      auto moved = [&](View v) {
        const auto next = v.strides[dim];
        v.offset += first * next;
        if (trips > 1 && next != 0) v.terms.push_back({.loop = variable, .stride = size * next});
        return v;
      };
      s.contract = {{}, {sizes[0]}, {sizes[1]}, {sizes[2]}, moved(a), moved(b), moved(out), adds};
      if (flags >= 0) {
        Step conditional{.kind = Kind::conditional, .body = {s}};
        auto& flag = conditional.conditional.flag;
        flag = at(flags, DType::boolean, {}, first / n_.width);
        if (trips > 1) flag.terms.push_back({.loop = variable, .stride = 1});
        s = conditional;
      }
      if (trips > 1)
        s = {.kind = Kind::loop, .loop = {.variable = variable, .trips = trips}, .body = {s}};
      to.push_back(s);
    };
    block(0, n_.width, full_blocks);
    if (rest > 0) block(full_blocks * n_.width, rest, 1);
  }
  static Step zero(const View& to, Dims dims, DType d) {
    Step s{.kind = Kind::fused};
    s.fused.dims = dims;
    s.fused.outer = 2;
    s.fused.code = {number(d, 0), store(to, 0)};
    s.fused.code[1].view.strides.resize(2);
    return s;
  }
  // Row r sees columns up to 2 r, except columns from `beyond` on. The row `blind` sees nothing.
  Step softmax(int s, int e, int sums, int weights, int p32) {
    Step out{.kind = Kind::fused, .op = "softmax", .where = "model.cpp:7"};
    auto& f = out.fused;
    f.dims = {n_.rows, n_.columns};
    f.outer = 1;
    constexpr auto f32 = DType::f32, i32 = DType::i32, flag = DType::boolean;
    f.code = {iota(0, 2),
              iota(1, 1),
              op(Code::less_equal, flag, {n_.from ? 0 : 1, n_.from ? 1 : 0}, true),
              number(i32, double(n_.beyond)),
              op(Code::less, flag, {1, 3}, true),
              op(Code::bit_and, flag, {2, 4}, true),
              number(i32, 2 * n_.blind),
              op(Code::not_equal, flag, {0, 6}),
              op(Code::bit_and, flag, {5, 7}, true),
              load(at(s, d_, {n_.columns, 1}), true),
              number(d_, n_.fill),
              op(Code::select, d_, {8, 9, 10}, true),
              op(Code::cast, f32, {11}, true),
              op(Code::reduce_max, f32, {12})};
    auto add = [&](Instr i) {
      f.code.push_back(std::move(i));
      return int(f.code.size()) - 1;
    };
    int top = 13;
    if (n_.guarded) {
      const int is_infinite = add(op(Code::is_inf, flag, {top})), zero = add(number(f32, 0));
      top = add(op(Code::select, f32, {is_infinite, zero, top}));
    }
    const int x = add(op(Code::sub, f32, {12, top}, true)),
              exp = add(op(Code::exp, f32, {x}, true));
    add(store(at(e, f32, {n_.columns, 1}), exp, true));
    const int sum = add(op(Code::reduce_sum, f32, {exp}));
    add(store(at(sums, f32, {1, 0}), sum));
    const int p = add(op(Code::div, f32, {exp, sum}, true)),
              rounded = add(op(Code::cast, d_, {p}, true));
    add(store(at(s, d_, {n_.columns, 1}), rounded, true));
    add(store(at(p32, f32, {n_.columns, 1}), exp, true));
    const int fill = add(op(Code::cast, f32, {10})),
              least = add(op(Code::exp, f32, {add(op(Code::sub, f32, {fill, top}))}));
    add(store(at(weights, f32, {1, 0}), add(op(Code::div, f32, {least, sum}))));
    return out;
  }
  Step sums_out(int sums, const View& to) {
    Step out{.kind = Kind::fused};
    out.fused.dims = {n_.rows};
    out.fused.outer = 1;
    out.fused.code = {load(at(sums, DType::f32, {1})), store(to, 0)};
    return out;
  }
  // Computes a flag: the fill has weight 0 in all rows.
  Step no_weight(int weights, int none) {
    Step out{.kind = Kind::fused};
    out.fused.dims = {1, n_.rows};
    out.fused.outer = 1;
    constexpr auto f32 = DType::f32, flag = DType::boolean;
    out.fused.code = {load(at(weights, f32, {0, 1}), true), number(f32, 0),
                      op(Code::equal, flag, {0, 1}, true), op(Code::reduce_min, flag, {2}),
                      store(at(none, flag, {0, 0}), 3)};
    return out;
  }
  Step made_too(int seen, int none, int made) {
    Step out{.kind = Kind::fused};
    constexpr auto flag = DType::boolean;
    out.fused.dims = {(n_.columns + n_.width - 1) / n_.width};
    out.fused.outer = 1;
    out.fused.code = {load(at(seen, flag, {1})), load(at(none, flag, {0})),
                      op(Code::logical_not, flag, {1}), op(Code::bit_or, flag, {0, 2}),
                      store(at(made, flag, {1}), 3)};
    return out;
  }
  // Divides the stored exponentials by sums that are read from memory.
  Step gradient_of_wide(int p32, int sums, int ds, int grad_sums) {
    Step out{.kind = Kind::fused, .op = "gradient", .where = "model.cpp:9"};
    auto& f = out.fused;
    f.dims = {n_.rows, n_.columns};
    f.outer = 1;
    constexpr auto f32 = DType::f32;
    f.code = {load(at(p32, f32, {n_.columns, 1}), true),
              number(f32, 1),
              load(at(sums, f32, {1, 0})),
              op(Code::div, f32, {1, 2}),
              op(Code::mul, f32, {0, 3}, true),
              load(at(ds, d_, {n_.columns, 1}), true),
              op(Code::cast, f32, {5}, true),
              op(Code::mul, f32, {4, 6}, true),
              op(Code::reduce_sum, f32, {7}),
              op(Code::sub, f32, {6, 8}, true),
              op(Code::mul, f32, {4, 9}, true),
              op(Code::cast, d_, {10}, true),
              store(at(ds, d_, {n_.columns, 1}), 11, true),
              store(at(grad_sums, f32, {1, 0}, 0, {{.loop = 0, .stride = n_.rows}}), 8)};
    return out;
  }
  Step gradient(int s, int ds) {
    Step out{.kind = Kind::fused, .op = "gradient", .where = "model.cpp:9"};
    auto& f = out.fused;
    f.dims = {n_.rows, n_.columns};
    f.outer = 1;
    constexpr auto f32 = DType::f32;
    f.code = {load(at(s, d_, {n_.columns, 1}), true),  op(Code::cast, f32, {0}, true),
              load(at(ds, d_, {n_.columns, 1}), true), op(Code::cast, f32, {2}, true),
              op(Code::mul, f32, {1, 3}, true),        op(Code::reduce_sum, f32, {4}),
              op(Code::sub, f32, {3, 5}, true),        op(Code::mul, f32, {1, 6}, true),
              op(Code::cast, d_, {7}, true),           store(at(ds, d_, {n_.columns, 1}), 8, true)};
    return out;
  }

  const Shape n_;
  const DType d_;
  View q_;
  int variables_ = 0;
};
std::string differ(const std::vector<Bytes>& got, const std::vector<Bytes>& expected,
                   double tolerance) {
  for (std::size_t k = 0; k < got.size(); ++k)
    if (auto d = difference(DType::f32, got[k], expected[k], tolerance); !d.empty())
      return std::to_string(k) + ": " + d;
  return "";
}

int passes(const std::string& text) {
  int n = 0;
  for (std::size_t at = 0; (at = text.find("tiles.from(0)", at)) != text.npos; ++at) ++n;
  return n;
}

}  // namespace

TEST_CASE("cuda tiles: an iteration of attention in blocks matches the reference") {
  for (const Shape& s :
       {Shape{}, Shape{.rows = 130, .columns = 164, .width = 48},
        Shape{.rows = 37, .columns = 70, .width = 33},
        Shape{.columns = 96, .terms = 128, .across = true},
        Shape{.terms = 37, .gap = 4, .across = true},
        Shape{.rows = 70, .terms = 64, .beyond = 160, .dtype = DType::f16}, Shape{.beyond = 1}}) {
    CAPTURE(s.rows);
    CAPTURE(s.columns);
    CAPTURE(s.terms);
    AttentionLoop t(s);
    const auto text = t.source();
    CHECK(has(text, "compute_tile("));
    CHECK_FALSE(has(text, "block_product<"));
    const auto got = t.c.run(*cuda::make_simulated_device()),
               expected = t.c.run(*reference::make_reference_device());
    CHECK(differ(got, expected, s.dtype == DType::bf16 ? 3e-2 : 4e-3) == "");
    CHECK(differ(t.c.run(*cuda::make_simulated_device()), got, 0) == "");
  }
}
TEST_CASE("cuda tiles: steps that depend on a maximum use the running maximum") {
  constexpr double inf = std::numeric_limits<double>::infinity();
  const Shape early{.wide = true, .follows = true};
  auto with = [&](auto change) {
    Shape s = early;
    change(s);
    return s;
  };
  for (const Shape& s :
       {early, with([](Shape& s) { s.blind = -1; }), with([](Shape& s) { s.fill = -1e9; }),
        with([](Shape& s) { s.fill = -inf; }), with([](Shape& s) {
          s.fill = -inf;
          s.guarded = true;
        }),
        with([](Shape& s) {
          s.fill = -inf;
          s.guarded = true;
          s.blind = -1;
        }),
        with([](Shape& s) {
          s.rows = 130;
          s.columns = 164;
          s.width = 48;
        }),
        with([](Shape& s) {
          s.rows = 37;
          s.columns = 70;
          s.width = 33;
          s.dtype = DType::f16;
        }),
        with([](Shape& s) {
          s.rows = 128;
          s.beyond = 160;
          s.blind = -1;
        }),
        with([](Shape& s) {
          s.from = true;
          s.beyond = 160;
        }),
        with([](Shape& s) {
          s.beyond = 1;
          s.blind = -1;
        })}) {
    CAPTURE(s.rows);
    CAPTURE(s.blind);
    CAPTURE(s.fill);
    CAPTURE(s.guarded);
    AttentionLoop t(s);
    const auto text = t.source();
    CHECK(passes(text) == 3);  // the values of a row; the rest of the row; gradients of keys
    const auto got = t.c.run(*cuda::make_simulated_device()),
               expected = t.c.run(*reference::make_reference_device());
    CHECK(differ(got, expected, s.dtype == DType::bf16 ? 3e-2 : 4e-3) == "");
    CHECK(differ({got[1]}, {expected[1]}, 1e-5) == "");
    CHECK(differ(t.c.run(*cuda::make_simulated_device()), got, 0) == "");
  }
  // Weights that are rounded before they are summed cannot use the pass with the running maximum.
  CHECK(passes(AttentionLoop({}).source()) == 3);
}
TEST_CASE("cuda tiles: planted faults are found") {
  const Shape shape;
  AttentionLoop t(shape);
  const auto right = planted(t.c, [](auto text) { return text; });
  CHECK(right.second == "");
  auto is_found = [&](const char* what, const char* by, const char* after) {
    CAPTURE(std::string(what));
    const auto wrong = planted(t.c, [&](auto text) { return changed(text, what, by, 0, after); });
    CHECK((wrong.second != "" || differ(wrong.first, right.first, 0) != ""));
  };
  is_found("copies.wait();", "", "if (iteration > 0)");
  is_found("__syncthreads();", "", "if (iteration > 0)");
  is_found("__syncthreads();", "", "publish(");
  // skipped blocks are summed, too
  is_found("if (visited < I(", "if (visited > I(", "Sum()(room");
  is_found("__syncthreads();", "", "fold_lanes(");
  is_found("(flags0 >>", "(~flags0 >>", "");
  is_found("half ? tile1 : tile0", "tile0", "");
}
TEST_CASE("cuda tiles: planted faults in steps with the running maximum are found") {
  for (int blind : {-1, 3}) {
    AttentionLoop t(
        blind < 0 ? Shape{.rows = 128, .beyond = 160, .blind = -1, .wide = true, .follows = true}
                  : Shape{.wide = true, .follows = true});
    const auto right = planted(t.c, [](auto text) { return text; });
    CHECK(right.second == "");
    auto is_found = [&](const char* what, const char* by, int n = 0) {
      CAPTURE(std::string(what));
      CAPTURE(n);
      const auto wrong =
          planted(t.c, [&](auto text) { return changed(text, what, by, n, "flags0 = block"); });
      CHECK((wrong.second != "" || differ(wrong.first, right.first, 1e-3) != ""));
    };
    if (blind < 0) {
      // Two sums are scaled while the maximum grows, at edges and elsewhere, and once it is final.
      for (int n = 0; n < 6; ++n) is_found("*= scale[h]", "*= 1", n);
      is_found("any_lane(edge)", "false");
      is_found("tile_columns - 1", "0");
      is_found(".scale(scale);", ".clear();");
      is_found("= scale[h] /", "= 1 /");
      is_found("exchanged(most, 1)", "most");  // a maximum for each lane
    } else {
      is_found("& ~(flags0)", "& ~(~0ull)");   // guards that the remaining blocks are added
      is_found("&& ((flags0)", "&& ((0ull)");  // guards that blocks are added only once
    }
  }
}
TEST_CASE("cuda tiles: an error names the step of the nest with HALIAX_CUDA=sync") {
  AttentionLoop t({});
  auto at = [&](const char* after, const char* words) {
    return planted(
               t.c,
               [&](auto text) {
                 return changed(text, "using I =", "if (threadIdx_x > 99) return;\n  using I =", 0,
                                after);
               },
               words)
        .second;
  };
  CHECK(has(at("mark = 5;", "sync"), "sum (model.cpp:5) has failed: "));
  CHECK(has(at("copies.wait();", ""), "HALIAX_CUDA=sync finds the step"));
  CHECK(has(at("mark = 3;", "sync"), "softmax (model.cpp:7) has failed: "));
}
