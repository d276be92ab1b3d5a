// The group `errors`: calls that must raise, with messages that name the mistake.
#pragma once
#include "case.h"

namespace golden {

// The function that calls the op of a case.
using Call = std::function<Arrays(const Op&, const Arrays& inputs, const Value& args)>;
Arrays call_directly(const Op&, const Arrays& inputs, const Value& args);

Problems check_error(const Value& c, const Call& = call_directly);

}  // namespace golden
