// Windows: a view of overlapping slices of axes, which convolutions contract with their weights.
#pragma once
#include "ops/prim.h"

namespace haliax::prim {

// The windows along some axes. Position (p, k) of the result, along an axis and a kernel axis of
// it, is position p * stride + k * dilation of the operand. Several kernel axes of one axis add.
struct WindowAttr {
  struct WindowedAxis {
    Name axis;
    std::int64_t size = 0;  // number of windows
    std::int64_t stride = 1;
  };
  struct KernelAxis {
    Axis axis;             // the kernel axis, which the operand lacks
    std::size_t side = 0;  // index of its windowed axis
    std::int64_t dilation = 1;
  };
  std::vector<WindowedAxis> sides;
  std::vector<KernelAxis> kernels;
  Attr attr() const;
  static WindowAttr of(const Attr&);
  static WindowAttr of(const Node& n) { return of(n.attr); }
  // Returns the windowed axis with a name, or null.
  const WindowedAxis* side(Name axis) const;
  const KernelAxis* kernel(Name axis) const;
  // Returns the distance of the first and the last position of a window of a side.
  std::int64_t reach(std::size_t side) const;
};
// Returns the windows of x, with the axes of x in their new sizes, then the kernel axes. Costs
// nothing: the result reads the memory of x.
NodePtr window(NodeRef x, const WindowAttr&);
// Returns contract(window(x, ...), weight, remaining, dtype). If several axes are adjacent in x,
// their windows have a stride of 1, and those of two or more axes overlap, these axes are flattened
// for matmuls, which then have one long axis of positions. The positions at the end of each row,
// whose windows wrap around, are computed and sliced off.
NodePtr contract_windows(NodeRef x, NodeRef weight, const WindowAttr&, const Axes& remaining,
                         DType);
// The adjoint of `window`: adds the windows g at their places in an array with the axes `full`. If
// g is a contraction of an array that has the windows and a weight that has the kernel axes, the
// result is a contraction as well, and no window is materialized, unless the windows are smaller
// than that array.
NodePtr unwindow(NodeRef g, const WindowAttr&, const Axes& full);
// Returns unwindow(contract(y, weight), ...), where y has the windows and the weight has the kernel
// axes: a transposed convolution. Contracts over the axes of both that `full` lacks.
NodePtr unwindow_contraction(NodeRef y, NodeRef weight, const WindowAttr&, const Axes& full, DType);
// Returns a contraction of windows over their kernel axes as a sum of elementwise products, one per
// kernel position, if the weight has one number per position and channel (a depthwise
// convolution). Such a sum is one kernel without a matmul. Returns null for other nodes.
NodePtr sum_over_positions(const Node&);
extern const Op kWindow;

}  // namespace haliax::prim
