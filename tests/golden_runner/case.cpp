// Reads a case from the files of its group and computes its outputs, gradients, second derivatives
// and tangents. Compares them with the recorded tensors within the tolerances of the case.
#include "case.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>

#include "haliax/error.h"
#include "haliax/ops.h"
#include "haliax/transforms.h"

namespace golden {

using haliax::Axes;
using haliax::DType;
using haliax::NamedArray;

Tolerance::Tolerance(const Value& v)
    : rtol(v["rtol"].as_real()), atol(v["atol"].as_real()), exact(v["exact"].as_flag(false)) {}

haliax::TensorFile read_tensors(const std::string& path) try {
  return haliax::read_safetensors(path);
} catch (const haliax::Error& e) {
  throw BadData(e.what());
}

Group read_group(const std::string& dir, const std::string& name) {
  Value manifest = read_json(dir + "/" + name + ".json");
  if (!manifest["cases"].is(Value::Kind::list))
    throw BadData(dir + "/" + name + ".json has no list of cases");
  Group g{.dir = dir, .name = name, .cases = manifest["cases"].items, .tensors = {}};
  if (name != "errors") g.tensors = read_tensors(dir + "/" + name + ".safetensors");
  return g;
}

Axes axes_of(const Value& pairs) {
  Axes axes;
  for (const Value& p : pairs.items)
    axes.emplace_back(haliax::Name(p.at(0).as_text()), p.at(1).as_integer());
  return axes;
}

NamedArray array_of(const Group& g, const std::string& tensor, const Axes& axes) try {
  const haliax::Tensor& t = g.tensors.at(tensor);
  return haliax::from_bytes(t.data, t.dtype, axes);
} catch (const haliax::Error& e) {
  throw BadData(e.what());
}
Source tensors_of(const Group& g) {
  return [&g](const std::string& tensor, const Axes& axes) { return array_of(g, tensor, axes); };
}

namespace {

NamedArray array_of(const Source& read, const Value& spec) {
  if (!spec["axes"].is(Value::Kind::list)) throw Skip{"unnamed arrays"};
  return read(spec["tensor"].as_text(), axes_of(spec["axes"]));
}

float from_half(std::uint16_t h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  const float magnitude = exponent == 31 ? (mantissa ? NAN : INFINITY)
                          : exponent     ? std::ldexp(float(mantissa + 1024), exponent - 25)
                                         : std::ldexp(float(mantissa), -24);
  return h >> 15 ? -magnitude : magnitude;
}
float from_bfloat(std::uint16_t h) {
  const std::uint32_t bits = std::uint32_t(h) << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}
template <class T, class F>
std::vector<double> decode_as(const std::vector<std::byte>& bytes, F convert) {
  std::vector<double> out(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < out.size(); ++i) {
    T x;
    std::memcpy(&x, bytes.data() + i * sizeof x, sizeof x);
    out[i] = double(convert(x));
  }
  return out;
}

std::string shown(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", x);
  return text;
}

bool close(double got, double expected, const Tolerance& tol) {
  if (std::isnan(expected) || std::isnan(got)) return std::isnan(expected) && std::isnan(got);
  if (got == expected) return true;
  if (tol.exact || std::isinf(expected) || std::isinf(got)) return false;
  return std::abs(got - expected) <= tol.atol + tol.rtol * std::abs(expected);
}

}  // namespace

std::vector<double> decode(DType dtype, const std::vector<std::byte>& bytes) {
  auto same = [](auto x) { return x; };
  switch (dtype) {
    case DType::f32:
      return decode_as<float>(bytes, same);
    case DType::f64:
      return decode_as<double>(bytes, same);
    case DType::bf16:
      return decode_as<std::uint16_t>(bytes, from_bfloat);
    case DType::f16:
      return decode_as<std::uint16_t>(bytes, from_half);
    case DType::i8:
      return decode_as<std::int8_t>(bytes, same);
    case DType::i16:
      return decode_as<std::int16_t>(bytes, same);
    case DType::i32:
      return decode_as<std::int32_t>(bytes, same);
    case DType::i64:
      return decode_as<std::int64_t>(bytes, same);
    case DType::u8:
      return decode_as<std::uint8_t>(bytes, same);
    case DType::u16:
      return decode_as<std::uint16_t>(bytes, same);
    case DType::u32:
      return decode_as<std::uint32_t>(bytes, same);
    case DType::u64:
      return decode_as<std::uint64_t>(bytes, same);
    case DType::boolean:
      return decode_as<std::uint8_t>(bytes, [](std::uint8_t x) { return x != 0; });
  }
  return {};
}

void compare_values(const std::string& part, const std::vector<double>& got,
                    const std::vector<double>& expected, const Tolerance& tol, Problems& problems) {
  if (got.size() != expected.size()) {
    problems.push_back(part + ": " + std::to_string(got.size()) + " values, expected " +
                       std::to_string(expected.size()));
    return;
  }
  std::size_t wrong = 0, worst = 0;
  double excess = -1;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (close(got[i], expected[i], tol)) continue;
    ++wrong;
    const double off = std::abs(got[i] - expected[i]) - tol.rtol * std::abs(expected[i]);
    const double here = std::isnan(off) ? INFINITY : off;
    if (here > excess) {
      excess = here;
      worst = i;
    }
  }
  if (!wrong) return;
  problems.push_back(
      part + ": " + std::to_string(wrong) + " of " + std::to_string(got.size()) +
      " values differ, the worst at " + std::to_string(worst) + " is " + shown(got[worst]) +
      ", expected " + shown(expected[worst]) + ", off by " +
      shown(std::abs(got[worst] - expected[worst])) +
      (tol.exact ? " (must be exact)"
                 : " (allowed " + shown(tol.atol + tol.rtol * std::abs(expected[worst])) + ")"));
}

void compare(const std::string& part, const NamedArray& got, const Group& g, const Value& spec,
             const Tolerance& tol, Problems& problems) {
  if (got.empty()) {
    problems.push_back(part + ": nothing came out");
    return;
  }
  const Axes axes = axes_of(spec["axes"]);
  const DType dtype = haliax::dtype_of(spec["dtype"].as_text());
  if (got.dtype() != dtype)
    problems.push_back(part + ": dtype " + std::string(name_of(got.dtype())) + ", expected " +
                       std::string(name_of(dtype)));
  if (got.axes() != axes) {
    problems.push_back(part + ": axes " + to_string(got.axes()) + ", expected " + to_string(axes));
    return;
  }
  const haliax::Tensor* t = g.tensors.find(spec["tensor"].as_text());
  if (!t)
    throw BadData("there is no tensor " + spec["tensor"].as_text() + " in the group " + g.name);
  Tolerance allowed = tol;
  if (!is_float(dtype)) allowed.exact = true;
  compare_values(part, decode(got.dtype(), got.bytes()), decode(t->dtype, t->data), allowed,
                 problems);
}

NamedArray array_of(const Group& g, const Value& spec) { return array_of(tensors_of(g), spec); }

// ---- one case ----

namespace {

// The op as a function of the inputs that are differentiated; the other inputs are constants.
struct Partial {
  const Op* op;
  const Value* args;
  Arrays inputs;
  std::vector<std::size_t> wrt;
  Arrays operator()(const Arrays& xs) const {
    Arrays all = inputs;
    for (std::size_t i = 0; i < wrt.size(); ++i) all[wrt[i]] = xs[i];
    return (*op)(all, *args);
  }
  Arrays point() const {
    Arrays xs;
    for (std::size_t i : wrt) xs.push_back(inputs[i]);
    return xs;
  }
};

std::size_t index_of(const Value& v, std::size_t bound) {
  const std::int64_t i = v.is(Value::Kind::text) ? std::atoll(v.text.c_str()) : v.as_integer();
  if (i < 0 || std::size_t(i) >= bound)
    throw BadData("the data names input or output " + std::to_string(i) + " of " +
                  std::to_string(bound));
  return std::size_t(i);
}

haliax::Error unlike(std::size_t outputs, std::size_t expected) {
  return haliax::Error(std::to_string(outputs) + " outputs, expected " + std::to_string(expected));
}

// Reads {"0": tensor, "2": tensor}: returns the input numbers, and the tensors with the axes of
// these inputs.
std::pair<std::vector<std::size_t>, Arrays> by_input(const Source& read, const Value& object,
                                                     const Arrays& inputs) {
  std::pair<std::vector<std::size_t>, Arrays> out;
  for (std::size_t k = 0; k < object.keys.size(); ++k) {
    const std::size_t i =
        index_of({.kind = Value::Kind::text, .text = object.keys[k]}, inputs.size());
    out.first.push_back(i);
    out.second.push_back(read(object.items[k].as_text(), inputs[i].axes()));
  }
  return out;
}

}  // namespace

std::vector<Part> parts_of(const Value& c, const Op& op, const Source& read) {
  const Value& args = c["args"];
  const Value& expected = c["outputs"];
  Arrays inputs;
  for (const Value& spec : c["inputs"].items) inputs.push_back(array_of(read, spec));

  std::vector<Part> parts;
  auto add = [&](std::string name, const NamedArray& got, const Value& spec, const Value& tol) {
    parts.push_back({std::move(name), got, &spec, &tol});
  };

  Arrays outputs;
  if (const Value& grads = c["grads"]; !grads.items.empty()) {
    Partial f{&op, &args, inputs, {}};
    for (const Value& e : grads.items) f.wrt.push_back(index_of(e["wrt"], inputs.size()));
    Arrays cotangents;
    const Value& names = grads.items[0]["cotangents"];
    for (std::size_t i = 0; i < names.items.size(); ++i)
      cotangents.push_back(names.items[i]
                               ? read(names.items[i].as_text(), axes_of(expected.at(i)["axes"]))
                               : NamedArray());

    auto [ys, pull] = haliax::vjp(f, f.point());
    outputs = ys;
    if (outputs.size() != cotangents.size()) throw unlike(outputs.size(), cotangents.size());
    const Arrays gradient = pull(cotangents);
    for (std::size_t k = 0; k < grads.items.size(); ++k)
      add("gradient of input " + std::to_string(f.wrt[k]), gradient[k], grads.items[k],
          c["grad_tol"]);

    if (const Value& second = c["second"]; !second.items.empty()) {
      auto [wrt, vectors] = by_input(read, second.items[0]["vectors"], inputs);
      Partial h{&op, &args, inputs, wrt};
      auto along = [&, vs = vectors](const Arrays& xs) -> NamedArray {  // sum_i <v_i, g_i(x)>
        const Arrays gs = haliax::vjp(h, xs).second(cotangents);
        NamedArray total;
        for (std::size_t i = 0; i < gs.size(); ++i) {
          NamedArray term = haliax::sum(haliax::multiply(vs[i], gs[i]));
          total = !total.empty() ? total + term : term;
        }
        return total;
      };
      const Arrays seconds = haliax::grad(along)(h.point());
      for (const Value& e : second.items) {
        const std::size_t i = index_of(e["wrt"], inputs.size());
        for (std::size_t k = 0; k < wrt.size(); ++k)
          if (wrt[k] == i)
            add("second derivative of input " + std::to_string(i), seconds[k], e, c["grad_tol"]);
      }
    }
  } else {
    outputs = op(inputs, args);
  }

  if (const Value& jvp = c["jvp"]) {
    auto [wrt, tangents] = by_input(read, jvp["tangents"], inputs);
    Partial f{&op, &args, inputs, wrt};
    const Arrays dots = haliax::jvp(f, f.point(), tangents).second;
    for (const Value& e : jvp["outputs"].items) {
      const std::size_t i = index_of(e["output"], dots.size());
      add("tangent of output " + std::to_string(i), dots[i], e, c["grad_tol"]);
    }
  }

  if (outputs.size() != expected.items.size()) throw unlike(outputs.size(), expected.items.size());
  for (std::size_t i = 0; i < outputs.size(); ++i)
    add("output " + std::to_string(i), outputs[i], expected.items[i], c["tol"]);
  return parts;
}

Problems check(const Group& g, const Value& c, const Op& op) {
  const std::vector<Part> parts = parts_of(c, op, tensors_of(g));
  Arrays all;
  for (const Part& p : parts)
    if (!p.got.empty()) all.push_back(p.got);
  haliax::eval(all);
  Problems problems;
  for (const Part& p : parts) compare(p.name, p.got, g, *p.spec, Tolerance(*p.tolerance), problems);
  return problems;
}

}  // namespace golden
