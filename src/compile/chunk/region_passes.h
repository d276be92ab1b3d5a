// The pass over the tiles in which each node of a region is computed.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <unordered_map>

#include "compile/chunk/region_members.h"

namespace haliax {

class RegionPasses {
 public:
  // In: a region without a refusal.
  explicit RegionPasses(std::shared_ptr<const RegionMembers>);

  int count() const { return count_; }
  bool is_reversed(int pass) const;  // last tile first
  // The nodes that pass `at` computes: reductions, and nodes that carry a state from tile to tile.
  const Nodes& reductions(int at) const { return nodes_of(reductions_, at); }
  const Nodes& stateful(int at) const { return nodes_of(stateful_, at); }
  Nodes all_reductions() const;
  // The nodes whose tiles are stacked along the axis, by pass: results of the region, and those
  // that later passes read from a stacked result instead of rematerializing them.
  using NodesByPass = std::map<int, Nodes>;
  NodesByPass stacked() const;
  Nodes values_between_passes() const;  // see Region

  // Describes a node that is linear in exp(x - max x). Its reduction is computed in the pass that
  // computes the max: with the running max, and scaled whenever the running max grows.
  struct Streamed {
    const Node* top = nullptr;  // the max
    int ready = 0;              // number of passes before everything but the max is ready
    // true: the exponential replaces an infinite max by 0; false: the result is NaN there
    bool guarded = true;
    // A select may drop this NaN, for example a select by the mask of the scores.
    bool drops_nan = false;
  };
  Streamed streamed(const NodePtr&) const;
  struct Order {
    int pass = -1;  // index of the pass; -1: the node is not computed on a tile
    int ready = 0;  // number of passes that must finish before the full value is available
    Streamed streamed = {};
    Nodes rescaled = {};  // for a max: the reductions that are computed with the running max
    Nodes gathers = {};   // for positions (argmax, top_k): the gathers at these positions
  };
  const Order& order_of(const Node& n) const {
    static const Order nothing;
    auto i = orders_.find(&n);
    return i == orders_.end() ? nothing : i->second;
  }

 private:
  static const Nodes& nodes_of(const NodesByPass& all, int pass) {
    static const Nodes nothing;
    auto i = all.find(pass);
    return i == all.end() ? nothing : i->second;
  }
  void assign(const NodePtr&);
  void assign_reduction(const NodePtr&, int at);
  void stack(const NodePtr&, int at);
  // Returns the pass that computes the tiles of x.
  int tile_pass(const NodePtr& x) const { return std::max(order_of(*x).pass, 0); }
  // Returns the number of passes that must finish before the full x is available.
  int passes_before(const NodePtr& x) const { return order_of(*x).ready; }
  int first_pass(const NodePtr&) const;
  int pass_in_direction(bool reverse, int at);
  std::int64_t largest_bytes() const;

  std::shared_ptr<const RegionMembers> members_;
  int count_ = 0;
  std::unordered_map<const Node*, Order> orders_;
  std::unordered_map<const Node*, int> pass_of_reduction_;
  NodesByPass reductions_, stacked_, stateful_;
  std::map<int, bool> directions_;  // true: last tile first; for passes with a node of stateful_
};

}  // namespace haliax
