// Converts args to the library's argument types, and collects the ops of all *_table.cpp files.
#include "table.h"

namespace golden {

using namespace haliax;

Arr number_of(const Value& v) {
  switch (v.kind) {
    case Value::Kind::boolean:
      return Arr(v.flag);
    case Value::Kind::integer:
      return Arr(v.integer);
    default:
      return Arr(v.as_real());
  }
}
Arr operand(const Value& v, const Arrays& inputs) {
  if (v.is(Value::Kind::object)) return input(inputs, std::size_t(v["input"].as_integer()));
  return number_of(v);
}
AxisSelector selector_of(const Value& v) {
  if (v.is(Value::Kind::list)) return axis_of(v);
  return AxisSelector(v.as_text());
}
AxisSelection selection_of(const Value& v) {
  if (!v) return {};
  return names_of(v);
}
Names names_of(const Value& v) {
  if (!v.is(Value::Kind::list)) return {Name(v.as_text())};
  Names names;
  for (const Value& n : v.items) names.emplace_back(n.as_text());
  return names;
}
Axis axis_of(const Value& v) { return {Name(v.at(0).as_text()), v.at(1).as_integer()}; }
AxisSpec spec_of(const Value& v) { return axes_of(v); }
std::optional<DType> dtype_of(const Value& v) {
  if (!v) return {};
  return haliax::dtype_of(v.as_text());
}
DType dtype_or(const Value& v, DType otherwise) { return dtype_of(v).value_or(otherwise); }
const NamedArray& input(const Arrays& inputs, std::size_t i) {
  if (i >= inputs.size())
    throw BadData("the data has " + std::to_string(inputs.size()) +
                  " inputs where more are needed");
  return inputs[i];
}

const Table& table() {
  static const Table all = [] {
    Table t;
    add_elementwise_ops(t);
    add_array_ops(t);
    add_nn_ops(t);
    add_random_ops(t);
    add_scan_ops(t);
    return t;
  }();
  return all;
}

}  // namespace golden
