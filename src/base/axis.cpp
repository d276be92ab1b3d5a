// Axes and axis selections: constructors, printing and lookup.
#include "haliax/axis.h"

#include <algorithm>
#include <limits>
#include <ostream>

namespace haliax {

AxisSelection::AxisSelection(Name n) : all_(false), items_{n} {}
AxisSelection::AxisSelection(const char* n) : all_(false), items_{n} {}
AxisSelection::AxisSelection(const std::string& n) : all_(false), items_{n} {}
AxisSelection::AxisSelection(const Axis& a) : all_(false), items_{a} {}
AxisSelection::AxisSelection(const AxisSelector& s) : all_(false), items_{s} {}
AxisSelection::AxisSelection(const Axes& axes) : all_(false), items_(axes.begin(), axes.end()) {}
AxisSelection::AxisSelection(const Names& names)
    : all_(false), items_(names.begin(), names.end()) {}
AxisSelection::AxisSelection(std::initializer_list<AxisSelector> items)
    : all_(false), items_(items) {}
AxisSelection::AxisSelection(const AxisSelection&) = default;
AxisSelection::AxisSelection(AxisSelection&&) noexcept = default;
AxisSelection& AxisSelection::operator=(const AxisSelection&) = default;
AxisSelection& AxisSelection::operator=(AxisSelection&&) noexcept = default;
AxisSelection::~AxisSelection() = default;
AxisSpec::AxisSpec(const Axis& a) : axes_{a} {}
AxisSpec::AxisSpec(Axes axes) : axes_(std::move(axes)) {}
AxisSpec::AxisSpec(std::initializer_list<Axis> axes) : axes_(axes) {}
AxisSpec::AxisSpec(const Axis* first, std::size_t count) : axes_(first, first + count) {}
AxisSpec::AxisSpec(const AxisSpec&) = default;
AxisSpec::AxisSpec(AxisSpec&&) noexcept = default;
AxisSpec& AxisSpec::operator=(const AxisSpec&) = default;
AxisSpec& AxisSpec::operator=(AxisSpec&&) noexcept = default;
AxisSpec::~AxisSpec() = default;
bool AxisSpec::equal(const AxisSpec& other) const { return axes_ == other.axes_; }

std::string to_string(const Axis& a) {
  return std::string(a.name.text()) + "=" + std::to_string(a.size);
}
std::string to_string(const Axes& axes) {
  std::string s = "(";
  for (auto& a : axes) s += (s.size() > 1 ? ", " : "") + to_string(a);
  return s + ")";
}
std::ostream& operator<<(std::ostream& out, const Name& n) { return out << n.text(); }
std::ostream& operator<<(std::ostream& out, const Axis& a) { return out << to_string(a); }
std::ostream& operator<<(std::ostream& out, const Axes& a) { return out << to_string(a); }
template <class Items> static std::ostream& listed(std::ostream& out, const Items& items) {
  out << "(";
  for (bool first = true; auto& item : items) out << (first ? "" : ", ") << item, first = false;
  return out << ")";
}
std::ostream& operator<<(std::ostream& out, const Names& names) { return listed(out, names); }
std::ostream& operator<<(std::ostream& out, const AxisSelector& s) {
  out << s.name;
  return s.size < 0 ? out : out << "=" << s.size;
}
std::ostream& operator<<(std::ostream& out, const AxisSelection& s) {
  return s.all() ? out << "all" : listed(out, s.items());
}
std::int64_t axis_size(const Axes& axes) {
  std::int64_t n = 1;
  for (auto& a : axes)
    // saturates: no array is as large
    if (__builtin_mul_overflow(n, a.size, &n)) n = std::numeric_limits<std::int64_t>::max();
  return n;
}
Names axis_name(const Axes& axes) {
  Names out;
  for (auto& a : axes) out.push_back(a.name);
  return out;
}
const Axis* find_axis(const Axes& axes, Name n) {
  for (auto& a : axes)
    if (a.name == n) return &a;
  return nullptr;
}
bool selects_axis(const AxisSelection& s, const AxisSpec& axes) {
  return std::all_of(axes.begin(), axes.end(), [&](auto& a) {
    return s.all() || std::any_of(s.items().begin(), s.items().end(), [&](auto& i) {
             return i.name == a.name && (i.size < 0 || i.size == a.size);
           });
  });
}

}  // namespace haliax
