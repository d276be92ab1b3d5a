// Arrays by the parts that lie on devices: what of them this process has, and new ones made part by
// part, never whole.
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
  BufferPtr of = nullptr;  // held too: who alone holds a value may write over its blocks
};
// The parts of which this process has the first copy (that of the device with the lowest number),
// so that those of all processes together are each element once. Nothing is copied. Not inside a
// GraphWriter; raises for an array without a value.
std::vector<PartValue> first_copies(const Node&, const ProcessGroup&);

// An array that is made part by part: those of the devices that this process has.
class ArrayByParts {
 public:
  // Cut as `placed` says; null: in one piece.
  ArrayByParts(Axes, DType, std::shared_ptr<const Placement> placed, const ProcessGroup&);
  // The different ones among them, to be written, row-major.
  struct PartToFill {
    Part part;
    std::byte* data;
  };
  const std::vector<PartToFill>& parts_to_fill() const { return parts_to_fill_; }
  NamedArray finish();  // when they are written: gives each device its own

 private:
  struct Same {  // as the part of another device
    BufferPtr from, to;
  };
  Axes axes_;
  DType dtype_;
  std::shared_ptr<const Placement> placed_;
  Sharding at_;
  BufferPtr whole_;                // or blocks
  int first_ = 0;                  // of the devices that this process has
  std::vector<BufferPtr> blocks_;  // of those
  std::vector<PartToFill> parts_to_fill_;
  std::vector<Same> same_;
};
// How a new array lies that stands for `like`: as that one, else by mesh and mapping in scope;
// null: in one piece.
std::shared_ptr<const Placement> placement_like(const NamedArray& like);

}  // namespace haliax
