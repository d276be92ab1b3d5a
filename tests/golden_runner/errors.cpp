// Calls the op of a case with invalid arguments. Checks that the op raises, and that the message
// has the words that the case lists.
#include "errors.h"

#include "haliax/error.h"
#include "table.h"

namespace golden {

using namespace haliax;

namespace {

NamedArray filled(const Value& spec) {
  const DType dtype = haliax::dtype_of(spec["dtype"].as_text());
  const Axes axes = axes_of(spec["axes"]);
  if (!spec.has("values")) return full(axes, number_of(spec["fill"]), dtype);
  std::vector<double> values;
  for (const Value& v : spec["values"].items) values.push_back(v.as_real());
  return astype(array(values, axes), dtype);
}

// Returns the message without its source location, whose line number could match a size.
std::string without_location(const std::string& text) {
  const std::size_t end = text.rfind("; ");
  if (end == text.npos) return text;
  const std::string_view rest = std::string_view(text).substr(end);
  const bool location = rest.find(".cpp:") != rest.npos || rest.find(".h:") != rest.npos;
  return location ? text.substr(0, end) : text;
}

}  // namespace

Arrays call_directly(const Op& op, const Arrays& inputs, const Value& args) {
  return op(inputs, args);
}

Problems check_error(const Value& c, const Call& call) {
  const auto op = table().find(c["op"].as_text());
  if (op == table().end()) throw Skip{c["op"].as_text()};
  Arrays inputs;
  for (const Value& spec : c["inputs"].items) inputs.push_back(filled(spec));
  std::string text;
  try {
    call(op->second, inputs, c["args"]);
  } catch (const Error& e) {
    text = e.what();
  }
  if (text.empty()) return {"was accepted, but " + c["why"].as_text()};
  Problems problems;
  const std::string message = without_location(text);
  for (const Value& word : c["must_mention"].items)
    if (message.find(word.as_text()) == message.npos)
      problems.push_back("the text does not mention " + word.as_text() + ": " + text);
  return problems;
}

}  // namespace golden
