// Arrays as parts on devices: the parts that this process has, and new arrays that are created part
// by part without a full copy.
#pragma once
#include <memory>
#include <vector>

#include "graph/node.h"
#include "io/process_group.h"
#include "devices/shards.h"

namespace haliax {

// A part of a value, row-major in memory of its own.
struct PartValue {
  Part part;
  BufferPtr data;
  // the full value; a second owner prevents that its blocks are overwritten
  BufferPtr of = nullptr;
};
// Returns the parts of which this process has the first copy: that of the device with the lowest
// number. The parts of all processes together cover each element once. Copies nothing. Must not be
// called in a GraphWriter. Raises if the array has no value.
std::vector<PartValue> first_copies(const Node&, const ProcessGroup&);

// A new array, of which this process fills the parts on its devices.
class ArrayByParts {
 public:
  // Sharded as `placed` specifies; null: unsharded.
  ArrayByParts(Axes, DType, std::shared_ptr<const Placement> placed, const ProcessGroup&);
  // The distinct parts to be filled, row-major.
  struct PartToFill {
    Part part;
    std::byte* data;
  };
  const std::vector<PartToFill>& parts_to_fill() const { return parts_to_fill_; }
  NamedArray finish();  // call after filling: copies equal parts to their devices

 private:
  struct Same {  // an equal part on another device
    BufferPtr from, to;
  };
  Axes axes_;
  DType dtype_;
  std::shared_ptr<const Placement> placed_;
  Sharding at_;
  BufferPtr full_;                 // null if the array has blocks
  int first_ = 0;                  // first device of this process
  std::vector<BufferPtr> blocks_;  // one per device of this process
  std::vector<PartToFill> parts_to_fill_;
  std::vector<Same> same_;
};
// Returns the placement of a new array that replaces `like`: that of `like`, or else the mesh and
// mapping in scope; null: unsharded.
std::shared_ptr<const Placement> placement_like(const NamedArray& like);

}  // namespace haliax
