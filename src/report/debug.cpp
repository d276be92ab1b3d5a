// `debug::print`, `debug::check` and `debug::callback`: effects that run with the Program.
#include "base/dtype_hint.h"
#include "haliax/debug.h"

#include <atomic>
#include <cstdio>

#include "graph/fail.h"
#include "ops/effect.h"
#include "ops/prim.h"

namespace haliax::debug {
namespace {

using program::Operand;

std::atomic<void (*)(std::string_view)> output{nullptr};

// Replaces the names of axes that `vmap` hides by the names of the user.
Axes shown(const Axes& axes) {
  Axes out;
  for (auto& a : axes) out.emplace_back(Name(a.name.text()), a.size);
  return out;
}

// Splits the format string at each {}. Returns the pieces before, between and after the values.
std::vector<std::string> pieces_of(std::string_view text) {
  std::vector<std::string> out(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    bool pair = i + 1 < text.size();
    if (pair && (text[i] == '{' || text[i] == '}') && text[i + 1] == text[i])
      out.back() += text[i++];
    else if (pair && text[i] == '{' && text[i + 1] == '}') {
      out.emplace_back();
      ++i;
    } else
      out.back() += text[i];
  }
  return out;
}

// Returns a host array with a copy of the value of an operand.
NamedArray value_of(const Operand& array, const void* data, const Axes& axes) {
  auto& [dims, view] = array;
  auto dtype = view.dtype;
  auto values = std::make_shared<Buffer>(axis_size(axes) * bytes_of(dtype));
  program::copy_on_host(
      {dims, bytes_of(dtype), values->data(), program::row_major(dims), data, view.strides});
  return NamedArray(make_data(std::move(values), axes, dtype));
}

struct PrintCall : program::HostCall {
  std::vector<std::string> pieces;
  std::vector<Axes> axes;
  void run(const std::vector<Operand>& arrays, const void* const* data) const override {
    std::string line = pieces[0];
    for (std::size_t k = 0; k < arrays.size(); ++k)
      line += value_of(arrays[k], data[k], axes[k]).to_string() + pieces[k + 1];
    if (auto* write = output.load()) return write(line);
    line += '\n';
    std::fwrite(line.data(), 1, line.size(), stdout);  // one write, since other threads print too
    std::fflush(stdout);
  }
};
struct CallbackCall : program::HostCall {
  std::shared_ptr<const Receiver> function;
  std::vector<Axes> axes;
  void run(const std::vector<Operand>& arrays, const void* const* data) const override {
    std::vector<NamedArray> values;
    for (std::size_t k = 0; k < arrays.size(); ++k)
      values.push_back(value_of(arrays[k], data[k], axes[k]));
    function->receive(values);
  }
};
struct CheckCall : program::HostCall {
  Origin origin;
  std::string text;
  void run(const std::vector<Operand>&, const void* const* data) const override {
    if (*static_cast<const std::byte*>(data[0]) == std::byte{0}) fail_at(origin, "check", text);
  }
};

// Returns the nodes of the values of an effect, and stores their public axes.
Nodes nodes_of(const char* op, const std::vector<NamedArray>& values, std::vector<Axes>& axes) {
  if (context().chunked_calls > 0)
    fail(op, "values are not materialized inside chunked_reduce; call it with the result");
  Nodes nodes;
  for (auto& a : values) {
    if (a.empty()) fail(op, "a NamedArray is empty; assign a value to it first");
    nodes.push_back(a.node());
    axes.push_back(shown(a.node()->axes));
  }
  return nodes;
}

}  // namespace

Receiver::~Receiver() = default;

void set_output(void (*line)(std::string_view)) { output = line; }

void print_all(const Text& text, const std::vector<NamedArray>& values) {
  CallSite here(text.at);
  auto call = std::make_shared<PrintCall>();
  call->pieces = pieces_of(text.text);
  if (call->pieces.size() != values.size() + 1)
    fail("print", "the format string has {} placeholders {{}}, but there are {} values",
         call->pieces.size() - 1, values.size());
  auto nodes = nodes_of("print", values, call->axes);
  add_effect(std::move(nodes), std::move(call));
  run_ready_effects();
}

void call_all(std::shared_ptr<const Receiver> f, const std::vector<NamedArray>& values,
              SourceLocation at) {
  CallSite here(at);
  auto call = std::make_shared<CallbackCall>();
  call->function = std::move(f);
  auto nodes = nodes_of("callback", values, call->axes);
  add_effect(std::move(nodes), std::move(call));
  run_ready_effects();
}

void check(const Arr& given, const Text& text) {
  CallSite here(text.at);
  auto& condition = given.array();
  if (condition.empty()) fail("check", "the NamedArray is empty; assign a value to it first");
  if (condition.dtype() != DType::boolean)
    fail("check", "condition: expected bool, got {}{}", condition.dtype(), bool_hint());
  if (context().chunked_calls > 0)
    fail("check", "values are not materialized inside chunked_reduce; check its result");
  auto call = std::make_shared<CheckCall>();
  call->origin = context().origin;
  call->text = text.text;
  add_effect({prim::reduce(Monoid::min, condition.node(), {})}, std::move(call));
  run_ready_effects();
}

}  // namespace haliax::debug
