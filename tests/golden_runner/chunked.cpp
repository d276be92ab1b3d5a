#include "chunked.h"

#include "haliax/chunked.h"
#include "table.h"

namespace golden {

using namespace haliax;

namespace {

struct Losses {
  NamedArray loss, logsumexp, best, total, count;
};

// The loss of the tokens at hand: x (tokens..., Embed), w (Embed, Vocab), ids and mask (tokens...).
Losses losses_of(const Value& args, const NamedArray& x, const NamedArray& w, const NamedArray& ids,
                 const std::optional<NamedArray>& mask) {
  const Axis Vocab = w.resolve_axis(selector_of(args["Vocab"]));
  auto option = [&](const char* name) { return args[name] ? args[name].as_real() : 0; };
  NamedArray logits = dot(x, w, selection_of(args["Embed"]));
  if (const Value& dtype = args["logit_dtype"]) logits = astype(logits, haliax::dtype_of(dtype.as_text()));
  if (const double cap = option("soft_cap")) logits = cap * tanh(logits / cap);

  const NamedArray lse = logsumexp(logits, Vocab);
  const NamedArray picked = sum(logits * one_hot(ids, Vocab, logits.dtype()), Vocab);
  const double e = option("label_smoothing"), z = option("z_loss");
  NamedArray loss = e ? lse - (1 - e) * picked - e * mean(logits, Vocab) : lse - picked;
  if (z) loss = loss + z * lse * lse;
  if (mask) loss = where(*mask, loss, 0.);
  return {loss, lse, argmax(logits, Vocab), sum(loss), mask ? sum(astype(*mask, DType::f32)) : NamedArray()};
}

struct Cut {
  std::string axis;
  std::int64_t size;
};  // no axis: all tokens in one

NamedArray tokens_in_one(const NamedArray& a, const Names& tokens) { return flatten_axes(a, tokens, "tokens"); }

Arrays chunked_ce(const Cut& cut, const Arrays& in, const Value& args) {
  const bool masked = args["mask"].as_flag(false), flat = cut.axis.empty();
  const NamedArray &x = input(in, 0), &w = input(in, 1), &ids = input(in, 2);
  const Axes tokens = eliminate_axes(x.axes(), selection_of(args["Embed"]));
  Names names;
  for (const Axis& a : tokens) names.push_back(a.name);

  auto cut_from = [&](const NamedArray& a) { return flat ? tokens_in_one(a, names) : a; };
  Arrays walked{cut_from(x), cut_from(ids)};
  if (masked) walked.push_back(cut_from(input(in, 3)));
  auto f = [&](const Arrays& xs, const NamedArray& weight) {
    const Losses l = losses_of(args, xs[0], weight, xs[1], masked ? std::optional(xs[2]) : std::nullopt);
    Arrays out{l.loss, l.logsumexp, l.best, l.total};
    if (masked) out.push_back(l.count);
    return out;
  };
  Arrays out = chunked_reduce(flat ? AxisSelector("tokens") : AxisSelector(cut.axis), {.chunk = cut.size}, f)(walked, w);
  if (flat)
    for (int i : {0, 1, 2}) out[std::size_t(i)] = unflatten_axis(out[std::size_t(i)], "tokens", tokens);
  const NamedArray mean = masked ? out[3] / maximum(out[4], 1.) : out[3] / double(axis_size(tokens));
  return {out[0], mean, out[1], out[2]};
}

bool cuts_vocabulary(const Value& c, const Value& chunks) { return chunks.has(c["args"]["Vocab"].as_text()); }

}  // namespace

int cuts_of_vocabulary(const Value& c) {
  int n = 0;
  for (const Value& chunks : c["args"]["chunks"].items) n += cuts_vocabulary(c, chunks);
  return n;
}

Problems check_chunked(const Group& g, const Value& c) {
  Problems problems;
  for (const Value& chunks : c["args"]["chunks"].items) {
    Cut cut{"", 1};
    const std::string& vocab = c["args"]["Vocab"].as_text();
    int walked = 0;
    for (std::size_t i = 0; i < chunks.keys.size(); ++i) {
      if (chunks.keys[i] == vocab) continue;
      cut.size *= chunks.items[i].as_integer();
      cut.axis = ++walked == 1 && chunks.keys.size() == 1 ? chunks.keys[i] : "";
    }
    if (!walked) continue;
    auto op = [&](const Arrays& in, const Value& args) { return chunked_ce(cut, in, args); };
    for (const std::string& p : check(g, c, op))
      problems.push_back("in chunks of " + std::to_string(cut.size) + (cut.axis.empty() ? " tokens" : " along " + cut.axis) +
                         ", " + p);
  }
  return problems;
}

}  // namespace golden
