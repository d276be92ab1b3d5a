// Computes the losses of the tokens inside nested chunked_reduce calls. Checks a case once for each
// of its lists of chunk sizes.
#include "chunked.h"

#include "haliax/chunked.h"
#include "haliax/error.h"
#include "table.h"

namespace golden {

using namespace haliax;

namespace {

// Returns the losses of the tokens, unchunked: x (tokens..., Embed), w (Embed, Vocab), ids and mask
// (tokens...).
Arrays losses_of(const Value& args, const Arrays& in) {
  const NamedArray &x = input(in, 0), &w = input(in, 1), &ids = input(in, 2);
  const Axis Vocab = w.resolve_axis(selector_of(args["Vocab"]));
  auto option = [&](const char* name) { return args[name] ? args[name].as_real() : 0; };
  NamedArray logits = dot(x, w, selection_of(args["Embed"]));
  if (const Value& dtype = args["logit_dtype"])
    logits = astype(logits, haliax::dtype_of(dtype.as_text()));
  if (const double cap = option("soft_cap")) logits = cap * tanh(logits / cap);

  const NamedArray lse = logsumexp(logits, Vocab);
  const NamedArray picked = sum(logits * one_hot(ids, Vocab, logits.dtype()), Vocab);
  const double e = option("label_smoothing"), z = option("z_loss");
  NamedArray loss = e ? lse - (1 - e) * picked - e * mean(logits, Vocab) : lse - picked;
  if (z) loss = loss + z * lse * lse;
  NamedArray average;
  if (args["mask"].as_flag(false)) {
    const NamedArray& mask = input(in, 3);
    loss = where(mask, loss, 0.);
    average = sum(loss) / maximum(sum(astype(mask, DType::f32)), 1.);
  } else {
    average = mean(loss);
  }
  return {loss, average, lse, argmax(logits, Vocab)};
}

using Splits = std::vector<std::pair<std::string, std::int64_t>>;

// Nests one chunked region in another; the first split is the outermost.
Arrays in_chunks(const Splits& splits, std::size_t depth, const Value& args, const Arrays& in) {
  if (depth == splits.size()) return losses_of(args, in);
  auto f = [&](const Arrays& xs) { return in_chunks(splits, depth + 1, args, xs); };
  return chunked_reduce(splits[depth].first, {.chunk = splits[depth].second}, f)(in);
}

}  // namespace

Problems check_chunked(const Group& g, const Value& c, const Check& check) {
  Problems problems;
  for (const Value& chunks : c["args"]["chunks"].items) {
    Splits splits;
    std::string shown;
    for (std::size_t i = 0; i < chunks.keys.size(); ++i) {
      splits.push_back({chunks.keys[i], chunks.items[i].as_integer()});
      shown += (i ? " x " : "") + std::to_string(splits[i].second) + " along " + splits[i].first;
    }
    auto op = [&](const Arrays& in, const Value& args) { return in_chunks(splits, 0, args, in); };
    Problems found;
    try {
      found = check(g, c, op);
    } catch (const Error& e) {
      found = {std::string("raised: ") + e.what()};
    }
    for (const std::string& p : found) problems.push_back("in chunks of " + shown + ", " + p);
  }
  return problems;
}

}  // namespace golden
