// Moves factors that depend on the query alone out of sums over its keys. Attention then needs one
// pass over the keys in the forward pass and one in the backward pass:
//
//     sum_k (e_qk / s_q) v_kd       =  (sum_k e_qk v_kd) / s_q
//     sum_k w_qk (sum_d g_qd v_kd)  =  sum_d g_qd o_qd
//
// Here e = exp(x - max x) are the shifted scores of a query, s is their sum, w = e / s are the
// weights, v the values of keys, o_qd = sum_k w_qk v_kd the weighted values, and g the cotangent of
// o. Masks and dropout are further factors of w.
//
// In      regions of scores whose keys are to be tiled.
// Out     the same values, up to rounding.
#pragma once
#include "compile/chunk/region.h"

namespace haliax {

// Rewrites all regions, for ring attention (see tile_regions). Uses only weighted values that the
// graph contains.
Nodes defer_normalization(const Nodes& roots);
// Rewrites these regions, which are in one level. Creates weighted values that the graph lacks.
Nodes defer_normalization(const Nodes& roots, const Nodes& level, const Node* index,
                          const Regions&);

}  // namespace haliax
