// Named tensors whose data is read in pieces: those of a TensorFile in memory, or of files.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "haliax/io.h"
#include "io/safetensors.h"

namespace haliax {

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // The tensors, sorted by name.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* find(std::string_view name) const;  // null: none
  // Reads bytes of the data from `offset`. Thread safe.
  virtual void read(const StoredTensor&, std::int64_t offset, void* to,
                    std::int64_t bytes) const = 0;
  // Returns the data if it is in memory, otherwise null.
  virtual const std::byte* data(const StoredTensor&) const { return nullptr; }

 protected:
  void sort();
  std::vector<StoredTensor> tensors_;
};

// The tensors of a file that is in memory, and outlives this object.
class TensorsInMemory final : public TensorSource {
 public:
  explicit TensorsInMemory(const TensorFile&);
  void read(const StoredTensor&, std::int64_t offset, void* to, std::int64_t bytes) const override;
  const std::byte* data(const StoredTensor&) const override;

 private:
  const TensorFile& file_;
};

}  // namespace haliax
