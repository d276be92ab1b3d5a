// Scores that grow with the square of a text are never whole where they are large: they get the
// borders that a chunked_reduce over their queries would have (transforms/chunked.h), before a
// gradient is taken and when a graph is compiled, so that both say the same. Scores are a product
// of queries and keys, or a fold of another function of both, that only ops along the queries read,
// a fold over the keys among them, and a product over the keys, or a fold of values times weights:
// attention, whoever wrote it. Without a fold (attention by a sigmoid) they are so many that they
// are no layer's hidden values. Nobody writes a gradient: it is that of what lies between the
// borders.
#pragma once
#include "transforms/rewrite.h"

namespace haliax {

// Scores of more bytes than the budget get borders; none: than 32 MiB, and than the arrays that
// they are made of. `of`: only what depends on these, if any are given, and nothing that they
// depend on. depth: loops around the roots. whole: lines for people, of scores that are weighed and
// stay whole.
Nodes with_score_boundaries(const Nodes& roots, std::optional<std::int64_t> budget, int depth,
                            const Nodes& of = {}, std::vector<std::string>* whole = nullptr);

}  // namespace haliax
