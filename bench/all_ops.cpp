// The cases of `bench --all`: every public op by its test entry (tests/ops/ops_entries.h).
//
// An entry has small inputs. A case enlarges them: axes are doubled one after another until the
// largest array has the elements of the size. An op that acts along one axis is timed with this
// axis first, in the middle and last in memory.
#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "bench.h"
#include "tests/ops/ops_entries.h"

namespace bench {
namespace {

using namespace haliax;
using nlohmann::json;
using ops_test::axes_of;
using ops_test::Entries;
using ops_test::Entry;
using ops_test::Sample;
using ops_test::text_of;
using Samples = std::vector<Sample>;

struct OpSize {
  std::string name;
  double elements;  // number of elements in the largest array
  double work;      // number of multiplications in a contraction
};
const OpSize kOpSizes[] = {
    {"large", 1 << 24, 1 << 29}, {"middle", 1 << 16, 1 << 24}, {"tiny", 0, 0}};

// Ops whose time per element grows with the axis, or that iterate over it.
const char* const kSlow[] = {"sort", "argsort", "top_k",         "pad by the median",
                             "fold", "scan",    "chunked_reduce"};
constexpr double kSlowElements = 1 << 20;

// Axes that must keep their size although the op accepts others: the number of parts, and the
// number of repeats that fit into the result.
const std::map<std::string, std::string> kFixed{{"unbind", "n"}, {"repeat by counts", "n"}};

bool starts_with(const std::string& text, const std::string& begin) {
  return text.rfind(begin, 0) == 0;
}
bool is_slow(const Entry& e) {
  return std::any_of(std::begin(kSlow), std::end(kSlow),
                     [&](auto name) { return starts_with(e.name, name); });
}
bool is_contraction(const Entry& e) {
  return starts_with(e.name, "dot") || starts_with(e.name, "einsum") ||
         starts_with(e.name, "conv") || starts_with(e.name, "ragged_dot");
}

// ---- inputs of other sizes ----

std::string letter_of(const Axis& a) { return std::string(a.name.text()); }
const Axis* find_letter(const Axes& axes, const std::string& letter) {
  auto found = std::find_if(axes.begin(), axes.end(), [&](auto& a) { return a.name == letter; });
  return found == axes.end() ? nullptr : &*found;
}
// Returns the size of an axis in the first sample that has it. Another sample may have an axis of
// this name and another size, such as the taps of a convolution.
std::int64_t size_of(const Samples& in, const std::string& letter) {
  for (auto& s : in) {
    auto axes = axes_of(s.axes);
    if (auto a = find_letter(axes, letter)) return a->size;
  }
  return 0;
}
std::set<std::string> letters_of(const Samples& in) {
  std::set<std::string> out;
  for (auto& s : in)
    for (auto& a : axes_of(s.axes)) out.insert(letter_of(a));
  return out;
}
Samples doubled(Samples in, const std::string& letter) {
  auto size = size_of(in, letter);
  for (auto& s : in) {
    auto axes = axes_of(s.axes);
    for (auto& a : axes)
      if (a.name == letter && a.size == size) a.size *= 2;
    s.axes = text_of(axes);
  }
  return in;
}
// Returns the axes of the result, or nothing if the op rejects inputs of these axes.
std::optional<Axes> result_axes(const Entry& e, const Samples& in) {
  Leaves x;
  for (auto& s : in) x.push_back(zeros(axes_of(s.axes), s.dtype));
  try {
    return e.f(x).axes();
  } catch (const Error&) {
    return std::nullopt;
  }
}
double elements_of(const Sample& s) { return double(axis_size(axes_of(s.axes))); }
double largest(const Samples& in, const Axes& result) {
  double most = double(axis_size(result));
  for (auto& s : in) most = std::max(most, elements_of(s));
  return most;
}
// Returns the multiplications of a contraction: one for each combination of positions of all axes,
// times the taps of convolutions.
double multiplications(const Samples& in) {
  std::set<std::pair<std::string, std::int64_t>> sizes;
  for (auto& s : in)
    for (auto& a : axes_of(s.axes)) sizes.insert({letter_of(a), a.size});
  double out = 1;
  for (auto& [letter, size] : sizes) out *= double(size);
  return out;
}

// An entry with other inputs: the axis that the op acts along has another place in memory.
struct Form {
  Entry entry;
  std::string axis, place;  // the place is empty, first, middle or last
  bool positions;           // integer inputs are positions along n, or sizes of parts of n
};

Form resized(Form form, const OpSize& size) {
  auto& in = form.entry.in;
  auto first = in;
  double elements = is_slow(form.entry) ? std::min(size.elements, kSlowElements) : size.elements;
  auto doubled_result = [&](const std::string& letter) {
    return result_axes(form.entry, doubled(in, letter));
  };
  auto letters = letters_of(in);
  if (auto fixed = kFixed.find(form.entry.name); fixed != kFixed.end())
    letters.erase(fixed->second);
  std::erase_if(letters, [&](auto& letter) { return !doubled_result(letter); });
  while (!letters.empty()) {
    auto shortest = *std::min_element(letters.begin(), letters.end(), [&](auto& a, auto& b) {
      return size_of(in, a) < size_of(in, b);
    });
    auto next = doubled(in, shortest);
    auto result = doubled_result(shortest);
    bool fits = result && largest(next, *result) <= elements &&
                (!is_contraction(form.entry) || multiplications(next) <= size.work);
    if (fits)
      in = next;
    else
      letters.erase(shortest);
  }
  auto before = size_of(first, "n");
  if (form.positions && before > 0)
    for (std::size_t k = 0; k < in.size(); ++k)
      if (in[k].dtype == DType::i32) {
        auto factor = double(size_of(in, "n")) / double(before);
        if (starts_with(form.entry.name, "ragged_dot"))  // more groups have fewer rows each
          factor *= elements_of(first[k]) / elements_of(in[k]);
        in[k].low *= factor;
        in[k].high *= factor;
      }
  return form;
}

// Returns the axis of the first input that the op acts along: the only one that the result lacks,
// or "n". Returns an empty string if there are several or none.
std::string acted_axis(const Entry& e) {
  auto result = axes_of(e.axes);
  std::vector<std::string> missing;
  for (auto& a : axes_of(e.in[0].axes))
    if (!find_letter(result, letter_of(a))) missing.push_back(letter_of(a));
  if (missing.size() == 1) return missing[0];
  return missing.empty() && letters_of({e.in[0]}).count("n") ? "n" : "";
}

// Returns the entry with its axis at each place, if `along`, or the entry as it is.
std::vector<Form> forms_of(const Entry& e, bool along, bool positions) {
  auto axis = along ? acted_axis(e) : "";
  auto axes = axes_of(e.in[0].axes);
  std::vector<Form> out;
  if (!axis.empty() && axes.size() > 1) {
    auto acted = *find_letter(axes, axis);
    std::erase(axes, acted);
    auto add = [&](const char* place, Axes before, const Axes& after) {
      before.push_back(acted);
      before.insert(before.end(), after.begin(), after.end());
      Form form{e, axis, place, positions};
      form.entry.in[0].axes = text_of(before);
      if (result_axes(e, form.entry.in)) out.push_back(form);
    };
    add("first", {}, axes);
    if (axes.size() == 1)
      add("middle", {Axis("v", 2)}, axes);
    else
      add("middle", {axes[0]}, Axes(axes.begin() + 1, axes.end()));
    add("last", axes, {});
  }
  return out.empty() ? std::vector<Form>{{e, axis, "", positions}} : out;
}

// Adds an axis to the first input if the op accepts no other sizes of its own axes.
void enlarge_fixed(Form& form) {
  auto& in = form.entry.in;
  for (auto& letter : letters_of(in))
    if (result_axes(form.entry, doubled(in, letter))) return;
  auto wider = in;
  wider[0].axes = "v2" + wider[0].axes;
  if (result_axes(form.entry, wider)) in = wider;
}

// ---- cases ----

// Describes the case, so that a peer can compute the same result.
json description(const Form& form, const std::string& size, const char* pass, DType floats) {
  json in = json::array();
  for (auto& s : form.entry.in) {
    json axes = json::array();
    for (auto& a : axes_of(s.axes)) axes.push_back({letter_of(a), a.size});
    in.push_back({{"axes", axes},
                  {"dtype", name_of(is_float(s.dtype) ? floats : s.dtype)},
                  {"low", s.low},
                  {"high", s.high}});
  }
  return {{"op", form.entry.name}, {"axis", form.axis}, {"place", form.place},
          {"size", size},          {"pass", pass},      {"in", in}};
}

// Returns two sums over the results that do not depend on the order of axes.
std::array<double, 2> checksum(const Leaves& results) {
  std::array<double, 2> out{};
  for (auto& y : results) {
    if (y.empty()) continue;
    for (auto v : y.doubles()) {
      out[0] += v;
      out[1] += v * v;
    }
  }
  return out;
}

// Prepares a function that returns leaves. A run calls it for at least a millisecond, and returns
// the seconds per call.
template <class F> Prepared repeated(F call, json spec, bool check) {
  auto results = call();
  if (check) spec["checksum"] = checksum(results);
  results.clear();
  double once = timed([&] { call(); })();
  int count = int(std::clamp(1e-3 / std::max(once, 1e-6), 1., 1000.));
  Prepared p;
  p.run = [=] {
    return timed([&] {
             for (int i = 0; i < count; ++i) call();
           })() /
           count;
  };
  p.spec = [=] { return spec; };
  return p;
}

Case case_of(const Form& form, const OpSize& size, bool gradient, DType floats) {
  auto& e = form.entry;
  const char* pass = gradient ? "gradient" : "forward";
  double bytes = 0;
  std::string shape;
  for (auto& s : e.in) {
    auto axes = axes_of(s.axes);
    bytes += double(axis_size(axes)) * bytes_of(is_float(s.dtype) ? floats : s.dtype);
    shape += (shape.empty() ? "" : ", ") + s.axes;
  }
  bytes +=
      double(axis_size(*result_axes(e, e.in))) * bytes_of(is_float(e.dtype) ? floats : e.dtype);
  auto place = form.place.empty() ? "" : form.place + " axis, ";
  auto prepare = [=, spec = description(form, size.name, pass, floats)] {
    auto x = ops_test::inputs_of(e, 0, floats);
    bool check = size.name == "tiny" && floats == DType::f32;
    if (!gradient)
      return repeated(
          [f = jit([f = e.f](const Leaves& in) { return Leaves{f(in)}; }), x] { return f(x); },
          spec, check);
    auto like = e.f(x);
    auto cotangent = ones(like.axes(), like.dtype()).eval();
    auto back = [f = e.f](const Leaves& in, const NamedArray& g) { return vjp(f, in).second(g); };
    return repeated([f = jit(back), x, cotangent] { return f(x, cotangent); }, spec, check);
  };
  return {
      e.name + ": " + place + size.name + ", " + pass, shape, floats, bytes / 1e9, "GB/s", prepare};
}

struct Group {
  Entries entries;
  bool along = true;       // ops that act along an axis
  bool positions = false;  // integer inputs are positions along n
};

}  // namespace

std::vector<Case> all_op_cases(DType floats, const std::string& sizes) {
  std::vector<Group> groups{{ops_test::elementwise_entries(), false},
                            {ops_test::binary_entries(), false},
                            {ops_test::creation_entries(), false},
                            {ops_test::reduction_entries()},
                            {ops_test::shape_entries()},
                            {ops_test::picking_entries(), true, true},
                            {ops_test::primitive_entries()},
                            {ops_test::layer_entries()}};
  std::vector<Case> out;
  for (auto& group : groups)
    for (auto& e : group.entries) {
      bool floating =
          std::any_of(e.in.begin(), e.in.end(), [](auto& s) { return is_float(s.dtype); });
      // Without float inputs, the case is the same for each float dtype.
      if (e.in.empty() || starts_with(e.name, "prim ") || (!floating && floats != DType::f32))
        continue;
      bool positions = group.positions || starts_with(e.name, "ragged_dot");
      for (auto& size : kOpSizes) {
        if (!sizes.empty() && sizes.find(size.name) == std::string::npos) continue;
        bool tiny = size.name == "tiny";
        for (auto form : forms_of(e, group.along && !tiny, positions)) {
          if (!tiny) enlarge_fixed(form);
          auto sized = tiny ? form : resized(form, size);
          if (!tiny && largest(sized.entry.in, {}) < 1024) continue;  // the op fixes its sizes
          out.push_back(case_of(sized, size, false, floats));
          if (ops_test::differentiable(e)) out.push_back(case_of(sized, size, true, floats));
        }
      }
    }
  return out;
}

}  // namespace bench
