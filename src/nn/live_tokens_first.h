// An order of the tokens of a loss in which masked tokens come last. An iteration over tokens ends
// early if none of its tokens counts; in this order, masked tokens that are scattered among others
// fill such iterations.
#pragma once
#include <utility>
#include <vector>

#include "haliax/losses.h"

namespace haliax::nn {

// The arrays of `linear_cross_entropy`, all of which may be tiled; empty if not given.
struct LossArrays {
  // labels (Vocab): 0, 1, 2, ..., in a dtype that integer targets compare with.
  NamedArray x, weight, targets, labels, bias, mask, weights, class_weights;
  NamedArray teacher_x = {}, teacher_weight = {}, teacher_bias = {};
  // (tokens): order in which the rows of x, targets, mask and weights are processed.
  NamedArray order = {};
  NamedArray here = {};  // (tokens), bool, in this order: tokens of the current pass
};

struct LossProblem {
  const LinearCrossEntropyOptions& options;
  Axis Vocab;
  AxisSelection Embed;
  Axes tokens;  // axes of the logits except Vocab
  DType dtype;  // dtype of the logits
};

// Returns true if the selection names this axis.
bool is_named(const AxisSelection&, Name);

class LiveTokensFirst {
 public:
  // Keeps the original order if no mask is given, if a result per token is requested, or if the
  // tokens are sharded.
  LiveTokensFirst(const LossProblem&, const LossArrays&);

  // Returns the tiled axes and options, with one axis in place of the token axes.
  std::pair<AxisSelection, ChunkOptions> chunks_of(const LinearCrossEntropyOptions&,
                                                   const Axes& tokens) const;
  // Returns the axes of the tokens in this order.
  Axes in_order(const Axes& tokens) const;
  // Returns the arrays with one axis in place of the token axes, and the order.
  LossArrays ordered(LossArrays, const NamedArray& live) const;
  // Gathers the tokens of one iteration.
  LossArrays taken(LossArrays) const;
  // Returns a value per token in the original order.
  NamedArray put_back(const NamedArray&, const NamedArray& order) const;

  // Returns the positions of a large chunk in the default budget. Large chunks are the fastest, but
  // a mask only skips full chunks: live tokens that do not fill a large chunk are processed in
  // small ones. Returns 0 if all chunks have one size: the options specify it, the chunks would be
  // small, or more than tokens is tiled. Also 0 for a 16-bit head, whose gradient is summed in a
  // separate array that the budget seldom covers.
  std::int64_t large_chunk(const LossProblem&, const LossArrays&) const;
  static constexpr std::int64_t small_chunk = 128;  // tokens
  // (tokens), in this order: true for the tokens that fill large chunks.
  NamedArray filling(std::int64_t chunk, const NamedArray& live) const;

 private:
  NamedArray of_rows(const NamedArray& live) const;

  Axes rows_;        // tiled token axes; empty: the original order
  Axis tiled_axis_;  // all of these as one axis, live tokens first
  Name row_;         // the same axis in the original order
};

}  // namespace haliax::nn
