// Detection of stripes in the views of a step.
#include "program/stripes.h"

#include <vector>

#include "program/views.h"

namespace haliax {
namespace {

using program::Kind;
using program::Step;
using program::View;

struct Reach {
  std::int64_t size, stride;
};
// Returns the extents of a view: the dims of the step, the positions that ids may select, and the
// values of terms other than `variable`.
std::vector<Reach> reaches(const Step& s, const View& v, int variable, const Trips& trips) {
  std::vector<Reach> out;
  auto dims = program::dims_of(s);
  for (std::size_t d = 0; d < dims.size(); ++d) out.push_back({dims[d], v.strides[d]});
  auto picks = [&](auto& step, const View& table) {
    if (&v != &table) return;
    for (auto& i : step.indexed) out.push_back({i.size, i.stride});
  };
  if (s.kind == Kind::gather) picks(s.gather, s.gather.table);
  if (s.kind == Kind::scatter) picks(s.scatter, s.scatter.target);
  for (auto& t : v.terms)
    if (t.slot >= 0)
      out.push_back({t.limit + 1, t.stride});
    else if (t.loop != variable && t.loop >= 0)
      out.push_back({trips.at(t.loop), t.stride});
  return out;
}

}  // namespace

std::optional<Stripes> stripes_of(const Step& s, const View& v, int variable, const Trips& trips) {
  if (!touches_only_views(s.kind)) return {};
  const program::Term* term = nullptr;
  for (auto& t : v.terms) {
    if (t.loop != variable) continue;
    if (term) return {};
    term = &t;
  }
  if (!term || term->stride <= 0 || v.offset < 0) return {};
  const Stripes all{term->stride, trips.at(variable)};  // in elements
  if (v.offset / all.width % all.count != 0) return {};
  auto inside = v.offset % all.width;  // last offset within the stripe
  for (auto& r : reaches(s, v, variable, trips)) {
    if (r.size <= 1 || r.stride == 0) continue;
    if (r.stride < 0) return {};
    // reaches the same stripe in a later period
    if (r.stride % (all.width * all.count) == 0) continue;
    inside += (r.size - 1) * r.stride;
  }
  // In bytes, as stripes of dtypes with different sizes differ.
  const std::int64_t bytes = bytes_of(v.dtype);
  return inside < all.width ? std::optional(Stripes{all.width * bytes, all.count}) : std::nullopt;
}

bool same_place(const View& a, const View& b) {
  return a.offset == b.offset && a.strides == b.strides && a.terms == b.terms && a.dtype == b.dtype;
}

}  // namespace haliax
