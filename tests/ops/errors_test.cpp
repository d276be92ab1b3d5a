// Invalid calls raise one kind of exception. Its message names the op, the array, the mistake, a
// similar name, and the source location.
#include <doctest/doctest.h>

#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include "haliax/haliax.h"
#include "support/golden_dir.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 4), Embed("embed", 8), Mlp("mlp", 16);

// Checks that the message contains all words, starts with the op, and ends with the location.
void check_message(const std::string& message, const char* op,
                   std::initializer_list<const char*> words, int line) {
  CAPTURE(message);
  CHECK(message.rfind("[" + std::string(op) + "] ", 0) == 0);
  for (auto* w : words)
    CHECK_MESSAGE(message.find(w) != std::string::npos, "it does not say " << std::string(w));
  CHECK_MESSAGE(message.find("errors_test.cpp:" + std::to_string(line)) != std::string::npos,
                "it does not say line " << line);
}
#define CHECK_ERROR(op, call, ...) \
  check_message(message_of([&] { (void)(call); }), op, {__VA_ARGS__}, __LINE__)

struct Block {
  nn::Linear up;
};

}  // namespace

TEST_CASE("errors: a size mismatch reports both sizes and both arrays") {
  auto x = zeros({Batch, Embed}), w = zeros({Embed.resize(9), Mlp});
  CHECK_ERROR("dot", dot(x, w, "embed"), "embed", "8", "9", "(batch=4, embed=8)",
              "(embed=9, mlp=16)");
  CHECK_ERROR("add", x + w, "embed", "8", "9");
  CHECK_ERROR("multiply", x * zeros({Batch, Mlp}), "cannot broadcast", "(batch=4, embed=8)",
              "(batch=4, mlp=16)", "mlp");
  CHECK_ERROR("sum", sum(x, Axis("embed", 7)), "embed", "8", "7");
  CHECK_ERROR("array", array({1, 2, 3}, Batch), "3 values", "(batch=4)");
  CHECK_ERROR("concatenate", concatenate("batch", {x, zeros({Batch, Embed.resize(7)})}), "embed");
  CHECK_ERROR("unflatten_axis", unflatten_axis(x, "embed", {{"heads", 3}, {"size", 2}}), "embed=8",
              "(heads=3, size=2)");
  CHECK_ERROR("where", where(zeros({Batch}, DType::boolean), x, zeros({Mlp})), "mlp");
}

TEST_CASE("errors: a negative power of integers raises for every exponent") {
  auto x = arange(Embed);
  for (int n : {-1, -16, -17, -20})
    CHECK_ERROR("power", power(x, n), "to the power", std::to_string(n).c_str());
}

TEST_CASE("errors: a misspelled axis suggests the nearest name") {
  auto x = zeros({Batch, Embed});
  CHECK_ERROR("sum", sum(x, "embd"), "embd", "(batch=4, embed=8)", "did you mean embed?");
  CHECK_ERROR("softmax", softmax(x, "bath"), "did you mean batch?");
  CHECK_ERROR("take", take(x, "Embed", zeros(Mlp, DType::i32)), "did you mean embed?");
  CHECK_ERROR("dot", dot(x, x, "embe"), "did you mean embed?");
  CHECK_ERROR("rename", rename(x, {{"embd", "e"}}), "did you mean embed?");
  CHECK_ERROR("rearrange", rearrange(x, "{batch embd} -> embd batch"), "embd");
  CHECK_ERROR("slice", slice(x, "batc", 0, 1), "did you mean batch?");
  CHECK_ERROR("unbind", unbind(x, "batches"), "did you mean batch?");
  CHECK_ERROR("index", index(x, {{"embedd", 0}}), "did you mean embed?");
  for (auto* far : {"vocabulary", "n"})
    CHECK_FALSE(has(message_of([&] { sum(x, far); }), "did you mean"));
  // Any name of one letter is near another one.
  auto short_names = zeros({Axis("b", 2), Axis("n", 3)});
  CHECK_FALSE(has(message_of([&] { sum(short_names, "x"); }), "did you mean"));
  CHECK_ERROR("sum", sum(short_names, "N"), "did you mean n?");
}

TEST_CASE("errors: an axis with the wrong size is reported by the op that was called") {
  auto x = zeros({Batch, Embed});
  CHECK_ERROR("glu", nn::glu(x, Axis("embed", 6)), "(batch=4, embed=8)", "not 6");
  auto total = [](const NamedArray& part) { return sum(part); };
  CHECK_ERROR("chunked_reduce", chunked_reduce(Axis("batch", 6), {.chunk = 2}, total)(x),
              "(batch=4, embed=8)", "not 6");
  auto on_mesh = [&](auto f) {
    return shard_map(f, {.mesh = Mesh{{{"data", 1}}}, .axis_resources = Mapping{}})(x);
  };
  const Axis Six("batch", 6);
  CHECK_ERROR("all_gather",
              on_mesh([=](const NamedArray& part) { return all_gather(part, Six, "data"); }),
              "not 6");
  CHECK_ERROR("psum_scatter",
              on_mesh([=](const NamedArray& part) { return psum_scatter(part, Six, "data"); }),
              "not 6");
}

TEST_CASE("errors: wrong dtypes and values name the actual ones") {
  auto x = zeros({Batch, Embed});
  CHECK_ERROR("bitwise_and", x & x, "f32");
  CHECK_ERROR("take", take(x, "embed", zeros(Mlp)), "f32");
  CHECK_ERROR("one_hot", one_hot(x, Mlp), "f32", "integers", "astype(DType::i32)");
  CHECK_ERROR("sum", sum(x, "embed", {.where = zeros(Embed)}), "mask", "f32", "bool");
  CHECK_ERROR("negative", -zeros(Batch, DType::boolean), "bool");
  CHECK_ERROR("slice", slice(x, "embed", 0, 9), "9", "embed=8");
  CHECK_ERROR("at", at(x, "embed", 8), "8", "embed=8");
  CHECK_ERROR("index", index(x, {{"embed", -9}}), "-9", "embed=8");
  CHECK_ERROR("max", max(zeros({Batch, {"n", 0}}), "n"), "n=0");
  CHECK_ERROR("top_k", top_k(x, "embed", 9), "9", "embed=8");
  CHECK_ERROR("broadcast_axis", broadcast_axis(x, Embed.resize(7)), "embed", "7", "8");
  CHECK_ERROR("dot", dot(x, zeros(Batch), "embed"), "embed", "only one of the arrays");
  CHECK_ERROR("item", x.item(), "expected one value, got (batch=4, embed=8)");
  CHECK_ERROR("repeat", repeat(x, "embed", 1LL << 62), "embed=8");
  CHECK_ERROR("tile", tile(x, {{"embed", 1LL << 62}}), "embed=8");
  CHECK_ERROR("pad", pad(x, {{"embed", {1LL << 62, 1LL << 62}}}), "embed=8");
  const Axis N("n", 1LL << 40), M("m", 1LL << 40);
  CHECK_ERROR("zeros", zeros({N, M}), "more than 2^60 elements",
              "(n=1099511627776, m=1099511627776)");
  CHECK_ERROR("full", full({N, M}, 1), "more than 2^60 elements");
  CHECK_ERROR("arange", arange({N, M}), "more than 2^60 elements");
  CHECK_ERROR("random.normal", random::normal(random::key(0), {N, M}), "more than 2^60 elements");
  CHECK_ERROR("broadcast_axis", broadcast_axis(zeros(N), M), "more than 2^60 elements");
}

TEST_CASE("errors: empty arrays, invalid names and invalid shapes raise") {
  CHECK_ERROR("add", NamedArray() + 1, "empty");
  CHECK_THROWS_AS(NamedArray().axes(), Error);
  CHECK_THROWS_AS(NamedArray().dtype(), Error);
  CHECK_ERROR("eval", NamedArray().floats(), "empty");
  CHECK_ERROR("Axis", Axis("", 3), "needs a name");
  CHECK_ERROR("Axis", Axis("n", -1), "negative size -1");
  CHECK_ERROR("Axis", Axis("n", 1LL << 61), "too large");
  CHECK_ERROR("Axis", Batch.resize(-2), "negative size -2");
  CHECK_ERROR("Axis", Batch.alias(""), "needs a name");
  CHECK_ERROR("zeros", zeros({Batch, Batch}), "twice");
  CHECK_ERROR("dtype", dtype_of("float33"), "did you mean float32?");
  CHECK_ERROR("policy", Policy("p=f32,c=bf17"), "there is no dtype bf17");
  CHECK_ERROR("concat_axes", concat_axes({Batch}, {Batch}), "batch");
  CHECK_ERROR("from_bytes", from_bytes(std::vector<std::byte>(7), DType::f32, Axis("n", 2)),
              "7 bytes");
  auto x = zeros({Batch, Embed});
  CHECK_ERROR("sum", sum(x, {"embed", "embed"}), "given twice");
  CHECK_ERROR("dot", dot(x, x, {"embed", "embed"}), "given twice");
  CHECK_ERROR("flatten_axes", flatten_axes(x, {"embed", "embed"}, "n"), "given twice");
  CHECK_ERROR("rename", rename(x, {{"embed", ""}}), "renamed to an empty name");
  CHECK_ERROR("rearrange", rearrange(x, Names{"embed", "batch", "embed"}), "named twice");
  CHECK_ERROR("rearrange", rearrange(x, Names{"embed"}), "batch is missing");
  CHECK_ERROR("rearrange", dot(x, x, "embed", {.out_axes = Names{"embd"}}), "embd");
  CHECK_ERROR("axis_size", x.axis_size("embd"), "did you mean embed?");
  CHECK_ERROR("resolve_axis", x.resolve_axis(Embed.resize(9)), "8", "9");
  CHECK_THROWS_AS(set_default_backend("gpu"), Error);
}

TEST_CASE("errors: creation ops and transforms report the source location, too") {
  auto x = zeros({Batch, Embed});
  auto key = random::key(0);
  CHECK_ERROR("random.split", random::split(key, -1), "-1");
  CHECK_ERROR("random.split", random::split<2>(random::split(key, Batch)), "array of keys");
  CHECK_ERROR("random.key", random::key(x), "f32");
  CHECK_ERROR("random.normal", random::normal(Key{zeros(Axis("key_word", 2))}, Batch), "two u32");
  CHECK_ERROR("random.permutation", random::permutation(Key(), Batch), "empty");
  auto draw = [](const Key& k, const AxisSpec& axes) { return random::normal(k, axes); };
  CHECK_ERROR("eliminate_axes", random::generate_sharded(draw, "embd")(key, {Batch, Embed}),
              "did you mean embed?");
  CHECK_ERROR("linear", nn::Linear::init(Embed, Embed, key), "both in (embed=8) and in (embed=8)");
  CHECK_ERROR("embedding", nn::Embedding::init(Embed, Embed, key),
              "axis embed is both in (embed=8) and in (embed=8); rename one");
  CHECK_ERROR("causal_mask", nn::causal_mask(Embed, Embed), "the same axis embed");
  CHECK_ERROR("prefix_lm_mask", nn::prefix_lm_mask(Embed, Embed, 2), "the same axis embed");
  CHECK_ERROR("random.truncated_normal", nn::Linear::init(Embed, Mlp, Key()), "empty");
  CHECK_ERROR("random.truncated_normal", nn::Embedding::init(Embed, Mlp, Key()), "empty");
  CHECK_ERROR("mlp", nn::Mlp::init(Embed, Batch, 4, -1, key), "depth");
  CHECK_ERROR("ones", nn::LayerNorm::init({Embed, Embed}), "twice");
  CHECK_ERROR("activation", nn::activation("relux"), "did you mean relu?");
  CHECK_ERROR("glu", nn::glu(zeros(Axis("n", 3)), "n"), "even");
  auto block = [](const Key& k) { return Block{nn::Linear::init(Embed, Mlp, k)}; };
  CHECK_ERROR("vmap",
              nn::Stacked<Block>::init(Batch, block, random::split(key, Embed.alias("batch"))), "8",
              "4");
  CHECK_ERROR("vmap", vmap([](const NamedArray& v) { return v; }, "emb")(x),
              "no argument has axis emb");
  CHECK_ERROR("eval", vmap([](const NamedArray& v) { return v * v.item(); }, "embed")(x),
              "inside vmap over embed");
  CHECK_ERROR("eval", jit([](const NamedArray& v) { return v * v.floats()[0]; })(x), "inside jit");
  CHECK_ERROR("checkpoint", ScanCheckpoint("nestd"), "there is no policy nestd",
              "none, save_all, carries, full, recompute, offload, nested", "did you mean nested?");
  CHECK_ERROR("eval", eval_shape([](const NamedArray& v) { return v; }, x).floats(), "no");
  auto trees = std::vector<NamedArray>{x, x};
  auto one = std::vector<NamedArray>{x},
       odd = std::vector<NamedArray>{x, zeros({Batch, Embed.resize(9)})};
  auto adam = optim::adamw();
  auto state = adam.init(trees);
  CHECK_ERROR("optim", adam.update(one, state, one), "2 moments, but 1 gradients");
  CHECK_ERROR("add", adam.update(odd, state, trees), "8", "9");
  CHECK_ERROR("optim", optim::apply_updates(trees, one), "2 params, but 1 updates");
  CHECK_ERROR("add", optim::apply_updates(trees, odd), "8", "9");
}

TEST_CASE("errors: the location is the caller's, and inside a model also the module's") {
  auto x = zeros({Batch, Embed});
  auto layer = nn::Linear::init(Embed.resize(9), Mlp, random::key(0));
  int line = __LINE__ + 1;
  auto text = message_of([&] { layer(x); });
  CAPTURE(text);
  CHECK(text.find("embed") != std::string::npos);
  CHECK(text.find("errors_test.cpp:" + std::to_string(line)) != std::string::npos);
  Block block{layer};
  auto inside = message_of(
      [&] { grad([&](const Block& b, const NamedArray& v) { return sum(b.up(v)); })(block, x); });
  CAPTURE(inside);
  CHECK(inside.find("in up") != std::string::npos);
}

TEST_CASE("errors: options that are set one by one report the line of the call") {
  auto x = zeros({Batch, Embed});
  auto same = [](const NamedArray& v) { return v; };
  auto changes = [](const NamedArray& c, const NamedArray& v) { return c + v; };
  auto pairs = [=](const NamedArray& c, const NamedArray& v) { return std::pair(c + v, v); };
  auto start = zeros({});
  JitOptions jitted;
  jitted.donate = {3};
  CHECK_ERROR("jit", jit(same, jitted)(x), "3");
  CHECK_ERROR("jit", Jitted(same, jitted)(x), "3");
  CHECK_ERROR("jit", named_jit(same, jitted)(x), "3");
  CHECK_ERROR("jit", fsdp(same, Mapping{}, Mapping{}, jitted)(x), "3");
  CHECK_ERROR("shard_map", shard_map(same, JitOptions(JitOptions{}))(x), "no mesh");
  ScanOptions options;
  options.reverse = true;
  CHECK_ERROR("scan", scan(pairs, "batch", options)(start, x), "changes from () to (embed=8)");
  CHECK_ERROR("fold", fold(changes, "batch", options)(start, x), "changes from () to (embed=8)");
  CHECK_ERROR("map", haliax::map(same, "emb", options)(x), "no argument has axis emb");
  CHECK_ERROR("reduce", reduce(changes, "batch", start, x), "changes from () to (embed=8)");
  auto big = [](const NamedArray& v) { return v > 1.; };
  CHECK_ERROR("while_loop", while_loop(big, same, Axis("step", 3), options)(x),
              "the condition must be a scalar, but has axes (batch=4, embed=8)", "all");
  auto sums = [](const NamedArray& v) { return sum(v); };
  auto any_big = [](const NamedArray& v) { return any(v > 1.); };
  CHECK_ERROR("while_loop", while_loop(any_big, sums, Axis("step", 3), options)(x),
              "the state changes from f32 (batch=4, embed=8) to f32 ()");
  // A location in the options has precedence.
  jitted.at = SourceLocation::current("train.cpp", "main", 12);
  CHECK(has(message_of([&] { jit(same, jitted)(x); }), "train.cpp:12"));
}

TEST_CASE("errors: an op inside a trace reports its own line, not the transform's") {
  auto x = zeros({Batch, Embed});
  int line = 0;
  auto bad = [&](const NamedArray& v) {
    line = __LINE__ + 1;
    return sum(v, "emb");
  };
  auto place = [&] { return "errors_test.cpp:" + std::to_string(line); };
  CHECK(message_of([&] { vmap(bad, "batch")(x); }).find(place()) != std::string::npos);
  CHECK(message_of([&] { grad(bad)(x); }).find(place()) != std::string::npos);
  CHECK(message_of([&] { jit(bad)(x); }).find(place()) != std::string::npos);
  CHECK(message_of([&] { map(bad, "batch")(x); }).find(place()) != std::string::npos);
  CHECK(message_of([&] { checkpoint(bad)(x); }).find(place()) != std::string::npos);
  CHECK(sum(ones({Batch, Embed})).item() == 32);  // the failed trace leaves no state
}
