// Activation functions, and their names in model configurations.
#include <cmath>
#include <numbers>

#include "base/name.h"
#include "graph/fail.h"
#include "haliax/nn.h"
#include "ops/named.h"

namespace haliax::nn {
namespace {

// Computes 16-bit floats in f32, forward and backward, and rounds the result once. For functions of
// several ops.
template <class F> NamedArray rounded_once(const NamedArray& x, const F& f) {
  return is_float(x.dtype()) && bytes_of(x.dtype()) < 4 ? f(x.astype(DType::f32)).astype(x.dtype())
                                                        : f(x);
}

}  // namespace

NamedArray relu(Arr x) {  // derivative 0 at 0; NaN stays NaN
  LayerScope scope(x);
  return where(x <= 0., 0., x);
}
NamedArray relu6(Arr x) {
  LayerScope scope(x);
  return where(x <= 0., 0., where(x >= 6., 6., x));
}
NamedArray relu_squared(Arr x) {
  LayerScope scope(x);
  return square(relu(x));
}
NamedArray leaky_relu(Arr x) {
  LayerScope scope(x);
  return where(x >= 0., x, x * 0.01);
}
// The operand of the exponential is never positive, so that its derivative is finite where the
// other side is selected.
NamedArray elu(Arr x) {
  LayerScope scope(x);
  return where(x > 0., x, expm1(where(x > 0., 0., x)));
}
NamedArray celu(Arr x) { return elu(x); }
NamedArray selu(Arr x) {
  LayerScope scope(x);
  constexpr double alpha = 1.6732632423543772848170429916717,
                   scale = 1.0507009873554804934193349852946;
  return where(x > 0., x, alpha * expm1(where(x > 0., 0., x))) * scale;
}

NamedArray gelu(Arr x) { return gelu(x, true); }
NamedArray gelu_exact(Arr x) { return gelu(x, false); }
NamedArray gelu(Arr x, bool approximate) {
  LayerScope scope(x);
  return rounded_once(x, [=](const NamedArray& y) {
    if (!approximate) return y * (0.5 * (1. + erf(y * std::numbers::sqrt2 / 2.)));
    const double slope = std::sqrt(2 / std::numbers::pi);
    return y * (0.5 * (1. + tanh(y * (slope + 0.044715 * slope * (y * y)))));
  });
}
NamedArray quick_gelu(Arr x) {
  LayerScope scope(x);
  return rounded_once(x, [](const NamedArray& y) { return y * sigmoid(1.702 * y); });
}

NamedArray sigmoid(Arr x) {
  LayerScope scope(x);
  auto n = ops::node_of("sigmoid", x);
  return ops::wrap(
      prim::cast(prim::sigmoid(prim::cast(n, ops::wide_of(n->dtype))), ops::float_of(n->dtype)));
}
NamedArray log_sigmoid(Arr x) {
  LayerScope scope(x);
  return -softplus(-x);
}
NamedArray silu(Arr x) {
  LayerScope scope(x);
  return rounded_once(x, [](const NamedArray& y) { return y * sigmoid(y); });
}
NamedArray swish(Arr x) { return silu(x); }
NamedArray softplus(Arr x) {
  LayerScope scope(x);
  return logaddexp(x, 0.);
}
NamedArray soft_sign(Arr x) {
  LayerScope scope(x);
  return x / (abs(x) + 1.);
}
NamedArray hard_sigmoid(Arr x) {
  LayerScope scope(x);
  return relu6(x + 3.) / 6.;
}
NamedArray hard_silu(Arr x) {
  LayerScope scope(x);
  return x * hard_sigmoid(x);
}
NamedArray hard_swish(Arr x) { return hard_silu(x); }
NamedArray hard_tanh(Arr x) {
  LayerScope scope(x);
  return where(x > 1., 1., where(x < -1., -1., x));
}

NamedArray glu(Arr x, const AxisSelector& axis) {
  LayerScope scope(x);
  auto a = ops::axis_of("glu", ops::node_of("glu", x), axis);
  if (a.size % 2) fail("glu", "axis {} cannot be split in halves; its size must be even", a);
  auto half = a.size / 2;
  return slice(x, a, 0, half) * sigmoid(slice(x, a, half, half));
}

Activation activation(std::string_view name, SourceLocation at) {
  CallSite here(at, CallSite::layer);
  struct Named {
    const char* name;
    Activation function;
  };
  // The names of Hugging Face: "gelu" is the exact function.
  static const Named known[] = {{"relu", relu},
                                {"relu6", relu6},
                                {"relu_squared", relu_squared},
                                {"leaky_relu", leaky_relu},
                                {"elu", elu},
                                {"celu", celu},
                                {"selu", selu},
                                {"gelu", gelu_exact},
                                {"gelu_exact", gelu_exact},
                                {"gelu_new", gelu},
                                {"gelu_pytorch_tanh", gelu},
                                {"gelu_tanh", gelu},
                                {"quick_gelu", quick_gelu},
                                {"silu", silu},
                                {"swish", silu},
                                {"hard_silu", hard_silu},
                                {"hard_swish", hard_silu},
                                {"sigmoid", sigmoid},
                                {"log_sigmoid", log_sigmoid},
                                {"hard_sigmoid", hard_sigmoid},
                                {"softplus", softplus},
                                {"soft_sign", soft_sign},
                                {"hard_tanh", hard_tanh},
                                {"tanh", static_cast<Activation>(haliax::tanh)}};
  for (auto& k : known)
    if (name == k.name) return k.function;
  fail("activation", "there is no activation {}{}", name, did_you_mean(name, known, &Named::name));
}

}  // namespace haliax::nn
