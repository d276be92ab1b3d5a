// Loading a state from named tensors: the parts of each array that this process needs are read into
// the memory of the new array.
#pragma once
#include <string>
#include <vector>

#include "haliax/state_dict.h"
#include "io/process_group.h"
#include "io/tensor_source.h"

namespace haliax {

// Replaces the arrays of the entries by new arrays with the values of the tensors. Raises before
// it reads any data if the options do not allow a difference; raises if a read fails. The arrays
// are replaced after all of them are complete.
void load_entries(const char* op, const std::vector<StateEntry>&, const TensorSource&,
                  const StateOptions&, const ProcessGroup&);

}  // namespace haliax
