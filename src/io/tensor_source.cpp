// Tensors by name, in memory.
#include "io/tensor_source.h"

#include <algorithm>
#include <cstring>

namespace haliax {

const StoredTensor* TensorSource::find(std::string_view name) const {
  auto at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                             [](auto& t, std::string_view n) { return t.name < n; });
  return at != tensors_.end() && at->name == name ? &*at : nullptr;
}
void TensorSource::sort() {
  std::stable_sort(tensors_.begin(), tensors_.end(),
                   [](auto& a, auto& b) { return a.name < b.name; });
}

TensorsInMemory::TensorsInMemory(const TensorFile& file) : file_(file) {
  for (std::size_t k = 0; k < file.tensors.size(); ++k) {
    auto& t = file.tensors[k];
    tensors_.push_back({{t.name, t.dtype, t.shape}, k, 0, std::int64_t(t.data.size())});
  }
  sort();
}
void TensorsInMemory::read(const StoredTensor& t, std::int64_t offset, void* to,
                           std::int64_t bytes) const {
  if (bytes > 0) std::memcpy(to, data(t) + offset, std::size_t(bytes));
}
const std::byte* TensorsInMemory::data(const StoredTensor& t) const {
  return file_.tensors[t.file].data.data();
}

}  // namespace haliax
