// What belongs to a query alone, taken out of sums over its keys, so that these are walked once
// forward and once backward:
//
//     sum_k (e_qk / s_q) v_kd                     =  sum_k e_qk v_kd  /  s_q             (w = e /
//     s, o_qd: weighted values) sum_k w_qk (sum_d g_qd v_kd)                =  sum_d g_qd o_qd
//
// where e = exp(x - max x) of which s is the sum. Masks and dropout are factors of w like others.
//
// In: scores between borders, whose keys are to be walked. Out: the same values.
#pragma once
#include "compile/chunk/region.h"

namespace haliax {

// Of all regions: where keys go round (see cut_chunks). Weighted values are looked for, not made.
Nodes defer_normalization(const Nodes& roots);
// Of these regions, in one level; what is not there is made.
Nodes defer_normalization(const Nodes& roots, const Nodes& level, const Node* index,
                          const Regions&);

}  // namespace haliax
