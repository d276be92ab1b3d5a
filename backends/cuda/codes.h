// Codes of fused steps as text.
#pragma once
#include <string>

#include "kernel_source.h"

namespace haliax::cuda {

inline bool is_store(program::Code c) { return c >= program::Code::store; }
inline bool is_fold(program::Code c) {
  return c >= program::Code::reduce_sum && c <= program::Code::reduce_argmin;
}
inline bool is_arg(program::Code c) { return finds_position(c); }
// Much work: what it has made is rather kept than made again.
bool is_long(program::Code);
program::Monoid monoid_of(program::Code);  // of a fold; what a position is searched by
// kernel.h's, of a fold or of a store that adds to what lies there
std::string fold_of(program::Code);
// What it makes of its operands, numbers that are called x[0], x[1], ...; first: the dtype of x[0].
// Of leaves, folds and stores only their writer knows more.
std::string value_source(const program::Instr&, const std::string* x, DType first);

}  // namespace haliax::cuda
