// The group `errors`: calls that must be refused, in words that name what is wrong.
#pragma once
#include "case.h"

namespace golden {

Problems check_error(const Value& c);

}  // namespace golden
