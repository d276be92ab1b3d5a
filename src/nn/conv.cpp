// Convolutions: padding, a view of all windows, and one contraction with the weight.
#include "haliax/conv.h"

#include <cmath>

#include "graph/fail.h"
#include "haliax/nn.h"
#include "ops/named.h"
#include "ops/window.h"

namespace haliax::nn {
namespace {

using prim::WindowAttr;
using Sizes = std::vector<std::int64_t>;

// One spatial axis of a convolution.
struct Spatial {
  Name axis;
  Name kernel;  // name of the axis of the weight, which differs from all axes of the input
  std::int64_t kernel_size = 1, stride = 1, dilation = 1, before = 0, after = 0;
  std::int64_t out = 0;  // positions of the result
  std::int64_t span() const { return dilation * (kernel_size - 1) + 1; }
};
using Spatials = std::vector<Spatial>;

std::size_t dim_of(const Axes& axes, Name n) {
  return std::size_t(find_axis(axes, n) - axes.data());
}
NodePtr padded(const NodePtr& x, Name axis, std::int64_t before, std::int64_t after) {
  return before || after ? prim::pad(x, axis, before, after, prim::number(0, x->dtype)) : x;
}
Name unused_name(Name like, const char* suffix, const Axes& taken) {
  auto text = std::string(like.text()) + suffix;
  while (has(taken, text)) text += "'";
  return text;
}

// Windows that do not overlap are a reshape, and a kernel of size 1 is a slice.
NodePtr convolution(NodePtr x, NodePtr w, const Spatials& all, const Axes& out) {
  WindowAttr attr;
  for (auto& s : all) x = padded(x, s.axis, s.before, s.after);
  for (auto& s : all) {
    if (s.kernel_size == 1) {
      x = prim::slice(x, s.axis, 0, s.out, s.stride);
      w = prim::at_position(w, s.kernel, 0);
    } else if (s.kernel_size == s.stride && s.dilation == 1) {
      x = prim::slice(x, s.axis, 0, s.out * s.stride);
      x = prim::unflatten(x, s.axis, {Axis(s.axis, s.out), Axis(s.kernel, s.stride)});
    } else {
      attr.kernels.push_back({Axis(s.kernel, s.kernel_size), attr.sides.size(), s.dilation});
      attr.sides.push_back({s.axis, s.out, s.stride});
    }
  }
  return prim::contract_windows(x, w, attr, out, x->dtype);
}
// One channel per group: the compiler computes the contraction elementwise. In `out`, the groups
// precede the channels of a group. A result of one channel lacks that axis. Sums of 16-bit floats
// are f32, and so is their result.
NodePtr depthwise(NodePtr x, NodePtr w, const Spatials& all, const Axes& out, Name channels) {
  const auto at = dim_of(out, channels);
  auto axes = out;
  if (out[at].size == 1) {
    axes.erase(axes.begin() + std::ptrdiff_t(at));
    w = prim::at_position(w, channels, 0);
  }
  WindowAttr attr;
  for (auto& s : all) {
    x = padded(x, s.axis, s.before, s.after);
    attr.kernels.push_back({Axis(s.kernel, s.kernel_size), attr.sides.size(), s.dilation});
    attr.sides.push_back({s.axis, s.out, s.stride});
  }
  const DType sums = bytes_of(x->dtype) == 2 ? DType::f32 : x->dtype;
  return prim::contract_windows(x, w, attr, axes, sums);
}

// The parts of a layer that both kinds of convolution share.
struct Layer {
  const char* op;
  const NamedArray& weight;
  const std::optional<NamedArray>& bias;
  const Names& Spatial;
  const Axis &In, &Out;
  std::int64_t groups;

  // Checks the input and the weight. Returns the spatial axes with their sizes in the weight.
  Spatials spatials(const Axes& x, const PerAxis& kernel, const PerAxis& stride,
                    const PerAxis& dilation) const {
    auto w = ops::visible(*ops::node_of(op, weight));
    Spatials all;
    const auto count = Spatial.size();
    auto sizes = kernel.of(op, "kernel_size", count), strides = stride.of(op, "stride", count),
         dilations = dilation.of(op, "dilation", count);
    for (std::size_t i = 0; i < count; ++i) {
      auto name = Spatial[i];
      if (!has(x, name))
        fail(op, "the spatial axis {} is not in the input {}{}", name, x, did_you_mean(name, x));
      auto* mine = find_axis(w, name);
      if (!mine || mine->size != sizes[i])
        fail(op, "the weight {} has no axis {}={}", w, name, sizes[i]);
      auto kernel_name = unused_name(name, " kernel", x);
      while (has(w, kernel_name)) kernel_name = std::string(kernel_name.text()) + "'";
      all.push_back({name, kernel_name, sizes[i], strides[i], dilations[i]});
    }
    auto* in = find_axis(x, In.name);
    if (!in) fail(op, "axis {} is not in the input {}{}", In.name, x, did_you_mean(In.name, x));
    if (in->size != In.size)
      fail(op, "axis {} has size {} in the input {}, but the layer expects {}", In.name, in->size,
           x, In);
    if (Out.name != In.name && has(x, Out.name))
      fail(op, "the input {} already has the output axis {}; rename it first", x, Out.name);
    if (auto* its = find_axis(w, In.name); !its || its->size * groups != In.size)
      fail(op, "the weight {} has no axis {}={}", w, In.name, In.size / groups);
    return all;
  }
  // Calls compute(x, weight, result axes), with channels split into groups, and adds the bias.
  template <class F> NamedArray run(const NodePtr& x, const Spatials& all, const F& compute) const {
    auto w = ops::node_of(op, weight);
    Names from, to;
    for (auto& s : all) {
      from.push_back(s.axis);
      to.push_back(s.kernel);
    }
    w = prim::rename(w, from, to);
    auto dtype = promote(x->dtype, w->dtype);
    if (!is_float(dtype)) dtype = DType::f32;
    auto input = prim::cast(x, dtype);
    w = prim::cast(w, dtype);
    auto out = ops::with_hidden({input, w}, replaced(ops::visible(*input), In.name, {Out}));
    for (auto& s : all) out[dim_of(out, s.axis)].size = s.out;
    NodePtr y;
    if (groups == 1) {
      y = compute(input, w, out);
    } else {
      const Axis group(unused_name(In.name, " group", joined(input->axes, w->axes)), groups);
      const auto channels = Out.resize(Out.size / groups);
      input = prim::unflatten(input, In.name, {group, In.resize(In.size / groups)});
      w = prim::unflatten(w, Out.name, {group, channels});
      y = compute(input, w, replaced(out, Out.name, {group, channels}));
      y = has(y->axes, Out.name) ? prim::flatten(y, {group.name, Out.name}, Out)
                                 : prim::rename(y, {group.name}, {Out.name});
    }
    // The bias is added before sums are rounded.
    auto sum = ops::wrap(prim::fit(y, out));
    auto result = bias ? astype(sum + *bias, promote(dtype, bias->dtype())) : astype(sum, dtype);
    return ops::constrained(op, result);
  }
};

struct Parameters {
  NamedArray weight;
  std::optional<NamedArray> bias;
};
Names names_of(const AxisSelection& axes) {
  Names out;
  for (auto& a : axes.items()) out.push_back(a.name);
  return out;
}
void expect_positive(const char* op, const char* what, const Sizes& all) {
  for (auto n : all)
    if (n < 1) fail(op, "{} is {}; it must be 1 or more", what, n);
}
Parameters initialized(const char* op, const Names& Spatial, const Axis& In, const Axis& Out,
                       const PerAxis& kernel_size, const PerAxis& stride, const PerAxis& dilation,
                       std::int64_t groups, bool use_bias, const Key& key) {
  if (Spatial.empty()) fail(op, "there is no spatial axis; name at least one");
  const auto sizes = kernel_size.of(op, "kernel_size", Spatial.size());
  expect_positive(op, "kernel_size", sizes);
  expect_positive(op, "stride", stride.of(op, "stride", Spatial.size()));
  expect_positive(op, "dilation", dilation.of(op, "dilation", Spatial.size()));
  if (groups < 1 || In.size % groups != 0 || Out.size % groups != 0)
    fail(op, "groups is {}; it must divide {} and {}", groups, In, Out);
  Axes axes{Out, In.resize(In.size / groups)};
  double fan_in = double(In.size / groups);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (has(axes, Spatial[i])) fail(op, "axis {} occurs twice", Spatial[i]);
    axes.push_back(Axis(Spatial[i], sizes[i]));
    fan_in *= double(sizes[i]);
  }
  if (In.name == Out.name) fail(op, "axis {} is both {} and {}; rename one", In.name, In, Out);
  const double limit = 1 / std::sqrt(fan_in);
  auto keys = random::split(key, 2);
  Parameters p{random::uniform(keys[0], axes, -limit, limit), {}};
  if (use_bias) p.bias = random::uniform(keys[1], {Out}, -limit, limit);
  return p;
}

}  // namespace

PerAxis::PerAxis(std::int64_t all) : values_{all}, same_(true) {}
PerAxis::PerAxis(std::initializer_list<std::int64_t> each) : values_(each) {}
bool operator==(const PerAxis& a, const PerAxis& b) {
  return a.values_ == b.values_ && a.same_ == b.same_;
}
Padding::Padding(std::int64_t all) : each_{{all, all}}, same_(true) {}
Padding::Padding(const PerAxis& each) : per_axis_(each) {}
Padding::Padding(std::initializer_list<Pair> each) : each_(each) {}
Padding::Padding(std::vector<Pair> each) : each_(std::move(each)) {}
bool operator==(const Padding& a, const Padding& b) {
  return a.each_ == b.each_ && a.per_axis_ == b.per_axis_ && a.same_ == b.same_ &&
         a.name_same_ == b.name_same_;
}

std::vector<std::int64_t> PerAxis::of(const char* op, const char* arg, std::size_t count) const {
  if (same_) return std::vector<std::int64_t>(count, values_[0]);
  if (values_.size() != count)
    fail(op, "{} lists {} numbers, but there are {} spatial axes", arg, values_.size(), count);
  return values_;
}

Padding::Padding(const char* name, SourceLocation at) : Padding(std::string_view(name), at) {}
Padding::Padding(std::string_view name, SourceLocation at) : same_(true) {
  CallSite here(at);
  std::string upper;
  for (char c : name) upper += char(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  if (upper != "SAME" && upper != "VALID")
    fail("padding", "there is no padding {}; expected SAME, VALID or numbers", name);
  name_same_ = upper == "SAME";
  each_ = {{0, 0}};
}
std::vector<Padding::Pair> Padding::of(const char* op, const std::vector<std::int64_t>& sizes,
                                       const std::vector<std::int64_t>& windows,
                                       const std::vector<std::int64_t>& strides) const {
  std::vector<Pair> out;
  const auto count = sizes.size();
  if (name_same_) {
    for (std::size_t i = 0; i < count; ++i) {
      auto positions = (sizes[i] + strides[i] - 1) / strides[i];
      auto total = std::max<std::int64_t>(0, (positions - 1) * strides[i] + windows[i] - sizes[i]);
      out.push_back({total / 2, total - total / 2});
    }
    return out;
  }
  if (per_axis_)
    for (auto n : per_axis_->of(op, "padding", count)) out.push_back({n, n});
  else if (same_)
    out.assign(count, each_[0]);
  else
    out = each_;
  if (out.size() != count)
    fail(op, "padding lists {} pairs, but there are {} spatial axes", out.size(), count);
  for (auto [before, after] : out)
    if (before < 0 || after < 0)
      fail(op, "padding is ({}, {}); it must be 0 or more", before, after);
  return out;
}

Conv Conv::init(const AxisSelection& Spatial, const Axis& In, const Axis& Out,
                const PerAxis& kernel_size, const Key& key, ConvOptions options,
                SourceLocation at) {
  CallSite here(at, CallSite::layer);
  const auto names = names_of(Spatial);
  auto [weight, bias] = initialized("conv", names, In, Out, kernel_size, options.stride,
                                    options.dilation, options.groups, options.use_bias, key);
  return {
      weight,           bias,          names, In, Out, kernel_size, options.stride, options.padding,
      options.dilation, options.groups};
}
NamedArray Conv::operator()(Arr x) const {
  LayerScope scope(x, weight);
  const char* op = "conv";
  auto node = ops::node_of(op, x);
  auto shown = ops::visible(*node);
  const Layer layer{op, weight, bias, Spatial, In, Out, groups};
  auto all = layer.spatials(shown, kernel_size, stride, dilation);
  Sizes sizes, spans, strides;
  for (auto& s : all) {
    sizes.push_back(find_axis(shown, s.axis)->size);
    spans.push_back(s.span());
    strides.push_back(s.stride);
  }
  auto pairs = padding.of(op, sizes, spans, strides);
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto& s = all[i];
    std::tie(s.before, s.after) = pairs[i];
    auto size = sizes[i] + s.before + s.after;
    if (size < s.span())
      fail(op, "a window of {} positions exceeds axis {}, which has {} positions with padding",
           s.span(), s.axis, size);
    s.out = (size - s.span()) / s.stride + 1;
  }
  const bool one_each = groups > 1 && groups == In.size;
  return layer.run(node, all, [&](const NodePtr& in, const NodePtr& w, const Axes& out) {
    if (!one_each) return convolution(in, w, all, out);
    auto one = [&](const NodePtr& a) { return prim::at_position(a, In.name, 0); };
    return depthwise(one(in), one(w), all, out, Out.name);
  });
}

ConvTranspose ConvTranspose::init(const AxisSelection& Spatial, const Axis& In, const Axis& Out,
                                  const PerAxis& kernel_size, const Key& key,
                                  ConvTransposeOptions options, SourceLocation at) {
  CallSite here(at, CallSite::layer);
  const auto names = names_of(Spatial);
  auto [weight, bias] = initialized("conv_transpose", names, In, Out, kernel_size, options.stride,
                                    options.dilation, options.groups, options.use_bias, key);
  return {weight,
          bias,
          names,
          In,
          Out,
          kernel_size,
          options.stride,
          options.padding,
          options.output_padding,
          options.dilation,
          options.groups};
}
NamedArray ConvTranspose::operator()(Arr x) const {
  LayerScope scope(x, weight);
  const char* op = "conv_transpose";
  auto node = ops::node_of(op, x);
  auto shown = ops::visible(*node);
  if (padding.is_same()) fail(op, "the padding cannot be SAME; pass numbers");
  const Layer layer{op, weight, bias, Spatial, In, Out, groups};
  auto all = layer.spatials(shown, kernel_size, stride, dilation);
  const Sizes none(all.size(), 1);
  auto pairs = padding.of(op, none, none, none);
  auto extra = output_padding.of(op, "output_padding", all.size());
  WindowAttr attr;
  Sizes full;
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto& s = all[i];
    std::tie(s.before, s.after) = pairs[i];
    if (extra[i] < 0) fail(op, "output_padding is {}; it must be 0 or more", extra[i]);
    auto size = find_axis(shown, s.axis)->size;
    // With output_padding beyond `after`, the last positions receive nothing.
    full.push_back((size - 1) * s.stride + s.span() +
                   std::max<std::int64_t>(0, extra[i] - s.after));
    s.out = (size - 1) * s.stride + s.span() - s.before - s.after + extra[i];
    if (s.out < 1 || size < 1)
      fail(op, "axis {} of size {} would have {} positions; reduce the padding", s.axis, size,
           s.out);
    attr.kernels.push_back({Axis(s.kernel, s.kernel_size), i, s.dilation});
    attr.sides.push_back({s.axis, size, s.stride});
  }
  return layer.run(node, all, [&](const NodePtr& in, NodePtr w, const Axes& out) {
    auto axes = out;
    for (std::size_t i = 0; i < all.size(); ++i) {
      axes[dim_of(axes, all[i].axis)].size = full[i];
      if (auto n = all[i].kernel_size; n > 1) w = prim::slice(w, all[i].kernel, n - 1, n, -1);
    }
    auto y = prim::unwindow_contraction(in, w, attr, axes, in->dtype);
    for (auto& s : all) y = prim::slice(y, s.axis, s.before, s.out);
    return y;
  });
}

}  // namespace haliax::nn
