// The table op -> function(inputs, args) -> outputs, and conversions of args to the library's
// argument types.
#pragma once
#include <optional>

#include "case.h"
#include "haliax/ops.h"
#include "haliax/random.h"

namespace golden {

void add_elementwise_ops(Table&);
void add_array_ops(Table&);  // reductions, shapes, indexing, vmap
void add_nn_ops(Table&);
void add_random_ops(Table&);
void add_scan_ops(Table&);
const Table& table();  // all ops

// ---- args ----
haliax::Arr number_of(const Value&);                      // 2 is an integer, 2.0 is not
haliax::Arr operand(const Value&, const Arrays& inputs);  // a scalar, or {"input": n}
haliax::AxisSelector selector_of(const Value&);           // a name or [name, size]
haliax::AxisSelection selection_of(const Value&);         // a list, a name, or null for all axes
haliax::Names names_of(const Value&);                     // a list, or one name
haliax::Axis axis_of(const Value&);                       // [name, size]
haliax::AxisSpec spec_of(const Value&);                   // [[name, size], ...]
std::optional<haliax::DType> dtype_of(const Value&);      // nullopt for null
haliax::DType dtype_or(const Value&, haliax::DType);
const haliax::NamedArray& input(const Arrays&, std::size_t);  // raises BadData if there is none

}  // namespace golden
