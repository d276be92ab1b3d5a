// NamedArray as a handle; kept out of the header, so that modules of many arrays compile quickly.
#include "haliax/array.h"

namespace haliax {

NamedArray::NamedArray() noexcept = default;
NamedArray::NamedArray(NodePtr node) : node_(std::move(node)) {}
NamedArray::NamedArray(const NamedArray&) = default;
NamedArray::NamedArray(NamedArray&&) noexcept = default;
NamedArray& NamedArray::operator=(const NamedArray&) & = default;
NamedArray& NamedArray::operator=(NamedArray&&) & noexcept = default;
NamedArray::~NamedArray() = default;

}  // namespace haliax
