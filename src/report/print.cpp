// Converts arrays and keys to strings.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "base/scalar.h"
#include "graph/traversal.h"
#include "haliax/random.h"
#include "ops/prim.h"
#include "runtime/run.h"
#include "runtime/tracers.h"

namespace haliax {
namespace {

// As in NumPy, larger arrays print only the first and the last elements along each axis.
constexpr std::int64_t threshold = 1000, edge = 3;
constexpr std::size_t width = 100;  // characters per line

std::string element_text(const Buffer& value, DType dtype, std::int64_t at) {
  auto v = scalar::load(dtype, value.data() + at * bytes_of(dtype));
  if (dtype == DType::boolean) return v.integer ? "true" : "false";
  if (dtype == DType::u64) return std::to_string(std::uint64_t(v.integer));
  if (!is_float(dtype)) return std::to_string(v.integer);
  // Independent of the sign of a NaN.
  return std::isnan(v.real) ? "nan" : fmt::format("{:.6g}", v.real);
}

// Formats the values of an array, row-major in the order of its axes: [[1, 2], [3, 4]].
class Values {
 public:
  Values(const Node& n, const Buffer& value)
      : axes_(n.axes), value_(value), dtype_(n.dtype), abbreviates_(n.size() > threshold) {}
  // Returns one line, or indented rows if the line is too long. before: characters in front of the
  // line.
  std::string text(std::size_t before) {
    std::string line;
    write(line, 0, 0, "");
    if (line.size() + before <= width || axes_.empty()) return " " + line;
    breaks_lines_ = true;
    longest_ = 0;
    std::string measured, rows;
    // The first pass measures the width of elements, for aligned columns.
    write(measured, 0, 0, "");
    aligned_ = true;
    write(rows, 0, 0, "   ");
    return "\n  " + rows;
  }

 private:
  const Axes& axes_;
  const Buffer& value_;
  DType dtype_;
  bool abbreviates_, breaks_lines_ = false, aligned_ = false;
  std::size_t longest_ = 0;

  // Appends the elements below `at`, from `axis` on, and measures the longest element. If the text
  // has several lines, nested axes start a new line each, and the innermost axis wraps at `width`.
  // For example, axes (2, 800): [[0, 1, 2, ..., 797, 798, 799], [800, ...]].
  void write(std::string& s, std::size_t axis, std::int64_t at, const std::string& indent) {
    if (axis == axes_.size()) {
      auto text = element_text(value_, dtype_, at);
      longest_ = std::max(longest_, text.size());
      s += aligned_ ? fmt::format("{:>{}}", text, longest_) : text;
      return;
    }
    std::int64_t size = axes_[axis].size, inner = 1;
    for (std::size_t a = axis + 1; a < axes_.size(); ++a) inner *= axes_[a].size;
    bool innermost = axis + 1 == axes_.size();
    auto line = s.size();  // start of this line, for wrapping the innermost axis
    s += "[";
    for (std::int64_t i = 0; i < size; ++i) {
      if (i && breaks_lines_ && !innermost)
        s += ",\n" + indent;
      else if (i && breaks_lines_ && s.size() - line + longest_ > width) {
        s += ",\n" + indent;
        line = s.size();
      } else if (i)
        s += ", ";
      if (abbreviates_ && size > 2 * edge && i == edge) {
        s += "...";
        s += breaks_lines_ && !innermost ? ",\n" + indent : ", ";
        i = size - edge;  // skips the middle
      }
      write(s, axis + 1, at + i * inner, indent + " ");
    }
    s += "]";
  }
};

bool needs_donated(const NodePtr& root) {
  GraphReader reader;
  auto nodes = topological({root}, [](const Node& n) { return bool(n.value); });
  return std::any_of(nodes.begin(), nodes.end(), [](auto& n) { return !n->donated.empty(); });
}
// Returns the value, or null if the array has none. Raises if its computation fails. During a
// trace, the value is not cached, so that printing does not change the traced program.
BufferPtr value_of(const NodePtr& n) {
  GraphReader reader;
  if (auto known = n->value.get()) return known;
  if (tracer_below(n) || needs_donated(n)) return nullptr;
  auto created = context().tracing == 0 ? n : prim::tracer(n);
  evaluate({created});
  return created->value.get();
}

// Returns "traced by f" or "leaked from f". Empty: the array has no tracer, or only a shape.
std::string trace_text(const std::optional<Tracer>& tracer) {
  if (!tracer || tracer->has_shape_only) return "";
  return (tracer->has_ended ? "leaked from " : "traced by ") + tracer->inside;
}

}  // namespace

std::string NamedArray::to_string() const {
  if (!node_) return "NamedArray()";
  auto s = "NamedArray(" + std::string(name_of(dtype())) + ", " + haliax::to_string(axes());
  if (auto value = value_of(node_))
    return s + "," + Values(*node_, *value).text(s.size() + 3) + ")";
  auto tracer = tracer_below(node_);
  if (!node_->donated.empty()) return s + ", donated)";
  if (!tracer && needs_donated(node_)) return s + ", computed from a donated array)";
  const auto traced = trace_text(tracer);
  return s + (traced.empty() ? "" : ", ") + traced + ")";
}
std::ostream& operator<<(std::ostream& out, const NamedArray& a) { return out << a.to_string(); }
// A friend that only its class declares is exported at its definition.
[[gnu::visibility("default")]] std::ostream& operator<<(std::ostream& out, const Arr& a) {
  if (!a.is_number()) return out << a.array();
  if (a.is_real()) return out << a.number();
  return a.is_boolean() ? out << (a.integer() ? "true" : "false") : out << a.integer();
}

std::string to_string(const Key& k) {
  if (!k) return "Key()";
  auto& n = k.words.node();
  const bool is_single = n->size() == 2 && find(*n, key_word);
  if (is_single)
    if (auto value = value_of(n))
      return fmt::format("Key({}, {})", element_text(*value, n->dtype, 0),
                         element_text(*value, n->dtype, 1));
  auto axes = k.words.axes();
  std::erase_if(axes, [](auto& a) { return a.name == Name(key_word); });
  const auto traced = trace_text(tracer_below(n));
  if (axes.empty()) return "Key(" + traced + ")";
  return "Key(" + to_string(axes) + (traced.empty() ? "" : ", " + traced) + ")";
}
std::ostream& operator<<(std::ostream& out, const Key& k) { return out << to_string(k); }

}  // namespace haliax
