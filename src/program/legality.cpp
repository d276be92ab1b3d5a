// Legality checks of a single step, independent of the other steps.
#include <fmt/format.h>

#include <algorithm>

#include "program/legality.h"

namespace haliax {
namespace {

using program::Code;
using program::Collective;
using program::Dims;
using program::Instr;
using StepKind = program::Kind;
using program::BoxTransfer;
using program::Program;
using program::Step;
using program::CollectiveKind;

// Returns true if the dtype of the operands may differ from the dtype of the result.
bool converts(Code c) {
  return c == Code::cast || c == Code::bitcast || finds_position(c) || is_float_test(c);
}

struct FusedCheck {
  const std::vector<Instr>& code;

  const Instr& operand(const Instr& i, int k) const { return code[std::size_t(i.args[k])]; }
  // Checks that instructions read only earlier ones, and that an outer instruction reads an inner
  // one only through a reduction.
  std::string reads(int at) const {
    auto& i = code[std::size_t(at)];
    for (int k = 0; k < operands_of(i.code); ++k) {
      if (i.args[k] < 0 || i.args[k] >= at)
        return fmt::format("instruction {} reads instruction {}", at, i.args[k]);
      if (!is_reduction(i.code) && !i.inner && operand(i, k).inner)
        return fmt::format("instruction {} is outer, but reads inner instruction {}", at,
                           i.args[k]);
    }
    return "";
  }
  std::string dtypes(int at) const {
    auto& i = code[std::size_t(at)];
    DType is = accesses_memory(i.code) ? i.view.dtype : i.dtype, should = i.dtype;
    if (yields_bool(i.code)) should = DType::boolean;
    if (is_threefry(i.code)) should = DType::u32;
    if (is != should)
      return fmt::format("instruction {} is {}, expected {}", at, name_of(is), name_of(should));
    for (int k = 0; k < operands_of(i.code) && !converts(i.code); ++k) {
      const bool decides = i.code == Code::select && k == 0;
      is = operand(i, k).dtype;
      should = decides ? DType::boolean : is_comparison(i.code) ? operand(i, 0).dtype : i.dtype;
      if (is != should)
        return fmt::format("operand {} of instruction {} is {}, expected {}", k, at, name_of(is),
                           name_of(should));
    }
    return "";
  }
  std::string fault() const {
    std::string wrong;
    for (int at = 0; at < int(code.size()) && wrong.empty(); ++at) {
      wrong = reads(at);
      if (wrong.empty()) wrong = dtypes(at);
    }
    return wrong;
  }
};

std::string ids_fault(const std::vector<program::Indexed>& indexed) {
  for (auto& i : indexed)
    if (is_float(i.ids.dtype)) return fmt::format("its ids are {}", name_of(i.ids.dtype));
  return "";
}
std::string flag_fault(DType d) {
  return d == DType::boolean ? "" : fmt::format("its flag is {}", name_of(d));
}
std::string dtype_fault(const program::View& x, const program::View& out) {
  const bool same = out.slot < 0 || x.dtype == out.dtype;
  return same ? "" : fmt::format("it produces {} from {}", name_of(out.dtype), name_of(x.dtype));
}

struct CollectiveCheck {
  const Collective& c;
  const Program& p;

  std::string group() const {
    std::int64_t ranks = 1;
    for (std::size_t k = 0; k < c.over.size(); ++k) {
      const int m = c.over[k];
      if (m < 0 || m >= int(p.mesh.size()))
        return fmt::format("the mesh has no axis with index {}", m);
      if (std::count(c.over.begin(), c.over.end(), m) > 1)
        return fmt::format("mesh axis {} is used twice", m);
      ranks *= p.mesh[std::size_t(m)];
    }
    if (c.kind == CollectiveKind::exchange || ranks == c.ranks) return "";
    return fmt::format("it has {} devices, but its mesh axes have {}", c.ranks, ranks);
  }
  // Checks the dims of each result: those of the operand (all_reduce), one block of them
  // (reduce_scatter), or all blocks (all_gather).
  std::string sizes() const {
    if (c.x.size() != c.out.size())
      return fmt::format("it produces {} arrays from {}", c.out.size(), c.x.size());
    for (std::size_t k = 0; k < c.x.size(); ++k) {
      auto large = c.x[k].dims, small = c.out[k].dims;
      if (auto wrong = dtype_fault(c.x[k].view, c.out[k].view); !wrong.empty()) return wrong;
      if (c.kind == CollectiveKind::all_gather) std::swap(large, small);
      bool fits = large.size() == small.size();
      for (std::size_t d = 0; fits && d < large.size(); ++d) {
        const bool in_blocks = c.kind != CollectiveKind::all_reduce && int(d) == c.dim[k];
        fits = in_blocks ? large[d] == c.size[k] && small[d] <= (large[d] + c.ranks - 1) / c.ranks
                         : large[d] == small[d];
      }
      if (!fits)
        return fmt::format("array {} is ({}), but is received as ({})", k,
                           fmt::join(c.x[k].dims, ", "), fmt::join(c.out[k].dims, ", "));
    }
    return "";
  }
  static std::string outside(const std::vector<BoxTransfer>& boxes,
                             const std::vector<program::Operand>& arrays, const char* of) {
    for (auto& b : boxes) {
      if (b.array < 0 || b.array >= int(arrays.size()))
        return fmt::format("it has no array {} of {}", b.array, of);
      auto& dims = arrays[std::size_t(b.array)].dims;
      bool fits = b.start.size() == dims.size() && b.dims.size() == dims.size();
      for (std::size_t d = 0; fits && d < dims.size(); ++d) {
        auto last = b.start[d] + (b.dims[d] - 1) * (b.step.empty() ? 1 : b.step[d]);
        fits = b.dims[d] == 0 ||
               (std::min(b.start[d], last) >= 0 && std::max(b.start[d], last) < dims[d]);
      }
      if (program::points(b.dims) > 0 && !fits)
        return fmt::format("a box at ({}) of ({}) reaches outside of {} of shape ({})",
                           fmt::join(b.start, ", "), fmt::join(b.dims, ", "), of,
                           fmt::join(dims, ", "));
    }
    return "";
  }
  std::string fault() const {
    if (auto wrong = group(); !wrong.empty()) return wrong;
    if (auto wrong = skip_flag(); !wrong.empty()) return wrong;
    if (c.kind != CollectiveKind::exchange) return sizes();
    auto wrong = outside(c.sends, c.x, "the sent arrays");
    if (wrong.empty()) wrong = outside(c.receives, c.out, "the received arrays");
    return wrong.empty() ? receives_twice() : wrong;
  }
  std::string skip_flag() const {
    if (c.skip_flag == program::SkipFlag::nothing) return "";
    if (c.kind != CollectiveKind::exchange) return "it may skip transfers, but is no all-to-all";
    if (c.skip_flag == program::SkipFlag::rows) {
      if (!has_counts()) return "no counts of its rows follow its array";
    } else {
      if (c.x.empty() || !c.x.back().dims.empty()) return "no flag follows its arrays";
      if (auto wrong = flag_fault(c.x.back().view.dtype); !wrong.empty()) return wrong;
    }
    auto flag = int(c.x.size()) - 1;
    bool sent =
        std::any_of(c.sends.begin(), c.sends.end(), [&](auto& p) { return p.array == flag; });
    return sent ? "its flag is sent" : "";
  }
  bool has_counts() const {
    if (c.x.size() != 2 || c.x[1].view.dtype != DType::i64) return false;
    auto &all = c.x[0].dims, &counted = c.x[1].dims;
    return counted.size() < all.size() && std::equal(counted.begin(), counted.end(), all.begin());
  }
  // Checks that no element is received twice.
  std::string receives_twice() const {
    auto meet = [](const BoxTransfer& a, const BoxTransfer& b) {
      bool disjoint =
          a.array != b.array || program::points(a.dims) == 0 || program::points(b.dims) == 0;
      for (std::size_t d = 0; d < a.dims.size() && !disjoint; ++d)
        disjoint = a.start[d] + a.dims[d] <= b.start[d] || b.start[d] + b.dims[d] <= a.start[d];
      return !disjoint;
    };
    for (auto a = c.receives.begin(); a != c.receives.end(); ++a)
      for (auto b = a + 1; b != c.receives.end(); ++b)
        if (meet(*a, *b))
          return fmt::format("received boxes at ({}) and ({}) overlap", fmt::join(a->start, ", "),
                             fmt::join(b->start, ", "));
    return "";
  }
};

}  // namespace

std::string fault_of(const Step& s, const Program& p) {
  switch (s.kind) {
    case StepKind::fused:
      return FusedCheck{s.fused.code}.fault();
    case StepKind::gather:
      return ids_fault(s.gather.indexed);
    case StepKind::scatter:
      return ids_fault(s.scatter.indexed);
    case StepKind::copy:
      return dtype_fault(s.copy.x, s.copy.out);
    case StepKind::cumulative:
      return dtype_fault(s.cumulative.x, s.cumulative.out);
    case StepKind::sort:
      return dtype_fault(s.sort.x, s.sort.out);
    case StepKind::conditional:
      return flag_fault(s.conditional.flag.dtype);
    case StepKind::collective:
      return CollectiveCheck{s.collective, p}.fault();
    case StepKind::contract:
    case StepKind::custom:
    case StepKind::finish:
    case StepKind::host:
      break;
    case StepKind::loop:
      if (s.loop.variable < 0 || s.loop.variable >= p.loops)
        return fmt::format("its loop variable is {}, but the Program has {}", s.loop.variable,
                           p.loops);
      break;
  }
  return "";
}

}  // namespace haliax
