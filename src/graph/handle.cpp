// The copies and moves of NamedArray. Defined here rather than in the header, so that modules with
// many arrays compile quickly.
#include "haliax/array.h"
#include "haliax/tree.h"

namespace haliax {

// in the static TLS block, since every copy counts
[[gnu::tls_model("initial-exec")]] static thread_local std::uint64_t copied = 0;
std::uint64_t detail::arrays_copied() { return copied; }

NamedArray::NamedArray() noexcept = default;
NamedArray::NamedArray(NodePtr node) : node_(std::move(node)) {}
NamedArray::NamedArray(const NamedArray& a) : node_(a.node_) { ++copied; }
NamedArray::NamedArray(NamedArray&&) noexcept = default;
NamedArray& NamedArray::operator=(const NamedArray& a) & {
  node_ = a.node_;
  ++copied;
  return *this;
}
NamedArray& NamedArray::operator=(NamedArray&&) & noexcept = default;
NamedArray::~NamedArray() = default;

}  // namespace haliax
