// The group `errors`: calls that must be refused, in words that name what is wrong.
#pragma once
#include "case.h"

namespace golden {

// How the op of a case is called.
using Call = std::function<Arrays(const Op&, const Arrays& inputs, const Value& args)>;
Arrays call_directly(const Op&, const Arrays& inputs, const Value& args);

Problems check_error(const Value& c, const Call& = call_directly);

}  // namespace golden
