// HALIAX_NANS=1: the host checks the values of each step that computes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/scalar.h"
#include "compile/memory/memory.h"
#include "program/views.h"
#include "graph/node.h"
#include "haliax/error.h"

namespace haliax {
namespace {

using program::Kind;
using program::Operand;
using program::Step;

struct NonFinite {
  bool nan = false, inf = false;
  void operator|=(const NonFinite& o) {
    nan |= o.nan;
    inf |= o.inf;
  }
};
NonFinite found_in(const Operand& x, const std::byte* at, std::size_t dim = 0) {
  NonFinite out;
  if (dim == x.dims.size()) {
    auto v = scalar::load(x.view.dtype, at).real;
    return {std::isnan(v), std::isinf(v)};
  }
  for (std::int64_t k = 0; k < x.dims[dim]; ++k)
    out |= found_in(x, at + k * x.view.strides[dim] * bytes_of(x.view.dtype), dim + 1);
  return out;
}

struct Finite : program::HostCall {
  std::string op, where;
  // Number of arrays that the step has written. They are first in the list; the arrays that it
  // reads follow.
  std::size_t created = 0;
  NonFinite known;  // NaN or infinity among the constants of its code
  void run(const std::vector<Operand>& arrays, const void* const* data) const override {
    NonFinite out, in = known;
    auto found = [&](std::size_t k) {
      return found_in(arrays[k], static_cast<const std::byte*>(data[k]));
    };
    for (std::size_t k = 0; k < created; ++k) out |= found(k);
    if (!out.nan && !out.inf) return;
    for (std::size_t k = created; k < arrays.size(); ++k) in |= found(k);
    bool makes_nan = out.nan && !in.nan, makes_inf = out.inf && !in.nan && !in.inf;
    if (!makes_nan && !makes_inf) return;
    throw Error(fmt::format("[{}] produces {} from {}{}{}", op, makes_nan ? "NaN" : "inf",
                            in.inf ? "inf" : "finite values", where.empty() ? "" : "; ", where));
  }
};

// Returns the elements that a view reaches, each once; the full slot for tables that ids index.
Operand reached(const program::Program& p, const Step& s, const program::View& v) {
  Operand out{{}, v};
  out.view.strides.clear();
  if (s.kind == Kind::gather || s.kind == Kind::scatter) {
    auto& picked = s.kind == Kind::gather ? s.gather.table : s.scatter.target;
    if (picked.slot == v.slot)
      return {{p.slot(v.slot).bytes / bytes_of(v.dtype)}, {v.slot, v.dtype, 0, {1}, {}}};
  }
  auto dims = program::dims_of(s);
  for (std::size_t d = 0; d < dims.size() && d < v.strides.size(); ++d)
    if (v.strides[d] != 0 || dims[d] == 0) {
      out.dims.push_back(dims[d]);
      out.view.strides.push_back(v.strides[d]);
    }
  return out;
}

bool computes(Kind k) {
  switch (k) {
    case Kind::fused:
    case Kind::contract:
    case Kind::gather:
    case Kind::scatter:
    case Kind::cumulative:
    case Kind::custom:
      return true;
    case Kind::sort:
    case Kind::loop:
    case Kind::collective:
    case Kind::finish:
    case Kind::copy:
    case Kind::conditional:
    case Kind::host:
      break;
  }
  return false;
}
Step check_of(const program::Program& p, const Step& s) {
  std::vector<Operand> created, read;
  auto call = std::make_shared<Finite>();
  auto wrote = [&](int slot) {
    return std::any_of(created.begin(), created.end(),
                       [&](auto& m) { return m.view.slot == slot; });
  };
  each_view(s, [&](const program::View& v, bool writes) {
    if (writes && v.slot >= 0 && is_float(v.dtype)) created.push_back(reached(p, s, v));
  });
  each_view(s, [&](const program::View& v, bool writes) {
    if (!writes && v.slot >= 0 && is_float(v.dtype) && !wrote(v.slot))
      read.push_back(reached(p, s, v));
  });
  for (auto& i : s.fused.code)
    if (i.code == program::Code::constant)
      call->known |= {std::isnan(i.number), std::isinf(i.number)};
  call->op = s.op;
  call->where = s.where;
  call->created = created.size();
  created.insert(created.end(), read.begin(), read.end());
  Step out{.kind = Kind::host, .op = s.op, .where = s.where};
  out.host = {std::move(created), std::move(call), false};
  return out;
}
void check(const program::Program& p, std::vector<Step>& steps) {
  std::vector<Step> out;
  for (auto& s : steps) {
    check(p, s.body);
    bool checks = computes(s.kind);
    // The entire matmul is computed, since skipped blocks are undefined.
    if (checks) s.contract.block_mask = {};
    out.push_back(std::move(s));
    if (!checks) continue;
    auto host_check = check_of(p, out.back());
    if (static_cast<const Finite&>(*host_check.host.call).created > 0)
      out.push_back(std::move(host_check));
  }
  steps = std::move(out);
}

}  // namespace

void check_finite(program::Program& p) { check(p, p.steps); }

}  // namespace haliax
