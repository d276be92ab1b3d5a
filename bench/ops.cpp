// Memory-bound ops. GB counts each input read once and each output written once, whatever the
// actual traffic is.
#include <array>

#include "bench.h"

namespace bench {
namespace {

using namespace haliax;

constexpr double kCount = 1 << 24;                                    // elements: 64 MiB of f32
const Axis Row("row", 16384), Col("col", 1024);                       // (row, col)
const Axis Outer("outer", 16), Mid("mid", 1024), Last("last", 1024);  // (outer, mid, last)
const Axis Left("left", 4096), Right("right", 4096);                  // (left, right)
const Axis Vocab("vocab", 50257), Embed("embed", 768), Ids("ids", 16384), Token("token", 1024);

const char* const kFlat = "[[16384, 1024]]";
const char* const kCube = "[[16, 1024, 1024]]";

struct Draw {
  DType dtype;
  NamedArray operator()(const AxisSpec& axes, int seed = 0) const {
    auto x = random::normal(random::key(seed), axes, dtype);
    x.eval();
    return x;
  }
};
NamedArray ids(const Axis& axis) {
  return random::randint(random::key(9), axis, 0, Vocab.size).eval();
}

struct Ops {
  DType dtype;
  Draw draw = {dtype};
  std::vector<Case> cases = {};

  // A case with one array in and one array out.
  template <class F> static std::function<Prepared()> of(Draw draw, Axes axes, F f) {
    return [=] { return jitted(f, draw(axes)); };
  }

  // `elements` is the total number of elements read and written.
  void add(const char* name, const char* shape, double elements,
           std::function<Prepared()> prepare) {
    cases.push_back(
        {name, shape, dtype, elements * bytes_of(dtype) / 1e9, "GB/s", std::move(prepare)});
  }

  void elementwise() {
    add("add", kFlat, 3 * kCount, [draw = draw] {
      return jitted(haliax::add, draw({Row, Col}), draw({Row, Col}, 1));
    });
    add("fma", kFlat, 4 * kCount, [draw = draw] {
      auto f = [](const NamedArray& x, const NamedArray& y, const NamedArray& z) {
        return x * y + z;
      };
      return jitted(f, draw({Row, Col}), draw({Row, Col}, 1), draw({Row, Col}, 2));
    });
    add("gelu", kFlat, 2 * kCount,
        of(draw, {Row, Col}, [](const NamedArray& x) { return nn::gelu(x); }));
    add("exp", kFlat, 2 * kCount, of(draw, {Row, Col}, [](const NamedArray& x) { return exp(x); }));
    add("transpose_add", "[[4096, 4096]]", 3 * kCount, [draw = draw] {
      return jitted(haliax::add, draw({Left, Right}), draw({Right, Left}, 1));
    });
    add("add_row", kFlat, 2 * kCount, [draw = draw] {
      return jitted(haliax::add, draw({Row, Col}), draw(Col, 1));
    });
    add("add_col", kFlat, 2 * kCount, [draw = draw] {
      return jitted(haliax::add, draw({Row, Col}), draw(Row, 1));
    });
    add("where_tril", kCube, 2 * kCount, [draw = draw] {
      auto f = [](const NamedArray& x) { return where(nn::causal_mask(Mid, Last), x, -1e9); };
      return jitted(f, draw({Outer, Mid, Last}));
    });
    add("adamw", kFlat, 7 * kCount, [draw = draw] {
      using State = optim::State<optim::AdamW, NamedArray>;
      auto optimizer = optim::adamw({.learning_rate = 1e-3, .weight_decay = 0.1});
      auto step = jit(
          [=](const NamedArray& p, const State& s, const NamedArray& g) {
            auto [updates, next] = optimizer.update(g, s, p);
            return std::pair{optim::apply_updates(p, updates), next};
          },
          {.donate = {0, 1}});
      auto p = draw({Row, Col}), g = draw({Row, Col}, 1);
      return Prepared{
          timed([step, p, s = optimizer.init(p), g]() mutable { std::tie(p, s) = step(p, s, g); })};
    });
  }

  // Causal attention, 12 heads of 64, one sequence: forward and backward.
  void attention() {
    for (auto [name, positions] :
         {std::pair{"attention_1k", 1024}, {"attention_4k", 4096}, {"attention_16k", 16384}}) {
      const Axis Heads("heads", 12), Pos("pos", positions), KeyPos = Pos.alias("key_pos"),
                                                            Size("size", 64);
      using Three = std::array<NamedArray, 3>;  // queries, keys, values
      auto shape = "[[1, 12, " + std::to_string(positions) + ", 64]]";
      add(name, shape.c_str(), 8. * 12 * 64 * positions, [=, draw = draw] {
        auto f = [=](const Three& in, const NamedArray& cotangent) {
          auto [y, pull] = vjp(
              [=](const Three& t) {
                return nn::dot_product_attention(KeyPos, Size, t[0], t[1], t[2],
                                                 {.mask = nn::causal_mask(Pos, KeyPos)});
              },
              in);
          return pull(cotangent);
        };
        return jitted(f,
                      Three{draw({Heads, Pos, Size}), draw({Heads, KeyPos, Size}, 1),
                            draw({Heads, KeyPos, Size}, 2)},
                      draw({Heads, Pos, Size}, 3));
      });
    }
  }

  void rows() {
    auto layer_norm = [](const NamedArray& x, const NamedArray& g, const NamedArray& b) {
      return nn::LayerNorm{Col, g, b}(x);
    };
    add("softmax_last", kFlat, 2 * kCount,
        of(draw, {Row, Col}, [](const NamedArray& x) { return softmax(x, Col); }));
    add("softmax_mid", kCube, 2 * kCount,
        of(draw, {Outer, Mid, Last}, [](const NamedArray& x) { return softmax(x, Mid); }));
    add("layer_norm", kFlat, 2 * kCount, [layer_norm, dtype = dtype, draw = draw] {
      return jitted(layer_norm, draw({Row, Col}), ones(Col, dtype).eval(),
                    zeros(Col, dtype).eval());
    });
    add("layer_norm_grad", kFlat, 3 * kCount, [layer_norm, dtype = dtype, draw = draw] {
      using Three = std::tuple<NamedArray, NamedArray, NamedArray>;
      auto f = [=](const Three& in, const NamedArray& cotangent) {
        auto [y, pull] = vjp([=](const Three& t) { return std::apply(layer_norm, t); }, in);
        return pull(cotangent);
      };
      return jitted(f, Three(draw({Row, Col}), ones(Col, dtype).eval(), zeros(Col, dtype).eval()),
                    draw({Row, Col}, 1));
    });
    add("sum_last", kFlat, kCount,
        of(draw, {Row, Col}, [](const NamedArray& x) { return sum(x, Col); }));
    add("sum_first", kFlat, kCount,
        of(draw, {Row, Col}, [](const NamedArray& x) { return sum(x, Row); }));
    add("sum_mid", kCube, kCount,
        of(draw, {Outer, Mid, Last}, [](const NamedArray& x) { return sum(x, Mid); }));
    add("argmax_last", kFlat, kCount,
        of(draw, {Row, Col}, [](const NamedArray& x) { return argmax(x, Col); }));
    add("cumsum_last", kFlat, 2 * kCount,
        of(draw, {Row, Col}, [](const NamedArray& x) { return cumsum(x, Col); }));
    add("xent_grad", "[[1024, 50257]]", 2.0 * double(Token.size * Vocab.size), [draw = draw] {
      auto loss = [](const NamedArray& logits, const NamedArray& ids) {
        return nn::cross_entropy_loss(logits, Vocab, ids);
      };
      return jitted(value_and_grad(loss), draw({Token, Vocab}), ids(Token));
    });
  }

  void picking() {
    add("gather", "[[50257, 768]]", 2.0 * double(Ids.size * Embed.size), [draw = draw] {
      return jitted([](const NamedArray& t, const NamedArray& i) { return take(t, Vocab, i); },
                    draw({Vocab, Embed}), ids(Ids));
    });
    add("gather_grad", "[[16384, 768]]", double((Vocab.size + Ids.size) * Embed.size),
        [dtype = dtype, draw = draw] {
          auto f = [dtype](const NamedArray& g, const NamedArray& i) {
            return at_add(zeros({Vocab, Embed}, dtype), {{"vocab", i}}, g);
          };
          return jitted(f, draw({Ids, Embed}), ids(Ids));
        });
  }

  void random_numbers() {
    add("dropout_threefry", kFlat, 2 * kCount, [draw = draw] {
      return jitted([](const NamedArray& x, const Key& k) { return nn::Dropout{0.1}(x, k); },
                    draw({Row, Col}), random::key(0));
    });
    add("uniform_threefry", "[]", kCount, [d = dtype] {
      return jitted(
          [d](const Key& k) {
            return random::uniform(k, {Row, Col}, 0., 1., d);
          },
          random::key(0));
    });
    add("normal_threefry", "[]", kCount, [d = dtype] {
      return jitted([d](const Key& k) { return random::normal(k, {Row, Col}, d); }, random::key(0));
    });
    add("bits_threefry", "[]", kCount * 4 / bytes_of(dtype), [] {
      return jitted([](const Key& k) { return random::bits(k, {Row, Col}); }, random::key(0));
    });
  }
};

}  // namespace

std::vector<Case> op_cases(DType dtype) {
  Ops ops{dtype};
  ops.elementwise();
  ops.rows();
  ops.attention();
  ops.picking();
  ops.random_numbers();
  return std::move(ops.cases);
}

}  // namespace bench
