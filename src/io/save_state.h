// The tensors of an array of a state, one at a time.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "haliax/state_dict.h"

namespace haliax {

// The host memory of an array, from which tensors are copied one at a time. An array that is not on
// the host is copied to memory of this object.
class EntryBytes {
 public:
  explicit EntryBytes(const StateEntry&);  // computes the array if it has no value
  // Returns the data of the tensor at these positions of the split axes. Valid until the next call.
  std::span<const std::byte> of(const std::vector<std::int64_t>& index);

 private:
  const StateEntry& entry_;
  BufferPtr value_;
  std::unique_ptr<Buffer> copy_;
  std::span<const std::byte> bytes_;
  int width_;
  std::vector<std::int64_t> strides_;                // element strides of the array
  std::vector<std::int64_t> sizes_, order_strides_;  // merged dims of a tensor
  bool in_order_ = true;
  std::size_t each_ = 0;  // bytes
  std::vector<std::byte> scratch_;
};

}  // namespace haliax
