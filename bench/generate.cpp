// GPT-2 generating one token at a time, and the bound by memory bandwidth: a token reads all
// weights, and the keys and values so far.
#include <nlohmann/json.hpp>

#include "bench.h"
#include "examples/models/gpt2.h"

namespace bench {
namespace {

using namespace haliax;

constexpr std::int64_t kTokens = 16, kBefore = 512;

struct Continued {
  NamedArray id;
  nn::KVCache cache;
};

class Generation {
 public:
  explicit Generation(DType dtype) : dtype_(dtype) {
    models::GPT2Config c;  // 124 M
    model_ = jit([=](const Key& k) {
      auto m = models::GPT2LMHeadModel::init(c, k);
      return tree_map([=](const NamedArray& a) { return a.empty() ? a : a.astype(dtype); }, m);
    })(random::key(0));
    auto next = [](const models::GPT2LMHeadModel& m, const NamedArray& ids,
                   const nn::KVCache& cache) {
      auto count = full({}, double(ids.resolve_axis("pos").size), DType::i32);
      auto [hidden, after] = m.transformer(ids, cache, count);
      auto logits = dot(at(hidden, "pos", count - 1), m.head(), "embed");
      return Continued{argmax(logits.astype(DType::f32), "vocab"), after};
    };
    auto first = jit([=](const models::GPT2LMHeadModel& m, const NamedArray& ids) {
      return next(m, ids, m.cache({}, dtype));
    });
    text_ = first(*model_, random::randint(random::key(1), Axis("pos", kBefore), 0, 50257));
    decode_ = jit(
        [=](const models::GPT2LMHeadModel& m, const NamedArray& id, const nn::KVCache& cache) {
          return next(m, broadcast_axis(id, Axis("pos", 1)), cache);
        },
        {.donate = {2}});
    auto n = std::int64_t(1) << 27;  // 512 MiB: more than the caches hold
    matrix_ = ones({Axis("rows", n / 1024), Axis("columns", 1024)}).eval();
    read_ = jit([](const NamedArray& w) { return dot(w, ones(Axis("columns", 1024)), "columns"); });
  }
  // Generates tokens, always from the same position, and measures the memory bandwidth right after.
  double run() {
    text_.cache.lengths = full(text_.cache.lengths.axes(), double(kBefore), DType::i32).eval();
    auto seconds = timed([&] {
      for (std::int64_t k = 0; k < kTokens; ++k) text_ = decode_(*model_, text_.id, text_.cache);
    })();
    best_read_ = std::min(best_read_, timed([&] { read_(matrix_); })());
    return seconds;
  }
  nlohmann::json facts() const {
    double bytes = 0;
    for (auto& a : flatten(*model_)) bytes += a.empty() ? 0 : double(a.size()) * bytes_of(dtype_);
    // A token reads only one row of the position embeddings.
    bytes -= double(model_->transformer.wpe.weight.size()) * bytes_of(dtype_);
    auto& c = text_.cache;
    bytes += 2. * double(c.keys.size()) * bytes_of(dtype_) * double(kBefore) / double(c.Pos.size);
    auto bound = double(kTokens) * bytes / (double(matrix_.size()) * 4 / best_read_);
    return {{"bound_s", bound},
            {"read_bytes_per_s", double(matrix_.size()) * 4 / best_read_},
            {"planned_bytes", decode_.report().peak_bytes}};
  }

 private:
  DType dtype_;
  std::optional<models::GPT2LMHeadModel> model_;
  Continued text_;
  NamedArray matrix_;
  Jitted<Continued(const models::GPT2LMHeadModel&, const NamedArray&, const nn::KVCache&)> decode_;
  Jitted<NamedArray(const NamedArray&)> read_;
  double best_read_ = 1e9;
};

}  // namespace

std::vector<Case> generate_cases(DType dtype) {
  auto prepare = [=] {
    auto g = std::make_shared<Generation>(dtype);
    return Prepared{[=] { return g->run(); }, [=] { return g->facts(); }};
  };
  return {{"generate", "L12,H12,E768,T512,B1", dtype, double(kTokens), "tokens/s", prepare}};
}

}  // namespace bench
