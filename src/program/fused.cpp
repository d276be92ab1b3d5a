// Facts about fused steps.
#include "program/fused.h"

#include <algorithm>

namespace haliax::program {

std::span<const int> operands(const Instr& i) {
  return {i.args, std::find(i.args, std::end(i.args), -1)};
}
Monoid monoid_of(Code c) {
  switch (c) {
    case Code::reduce_prod:
      return Monoid::prod;
    case Code::reduce_max:
    case Code::reduce_argmax:
    case Code::store_max:
      return Monoid::max;
    case Code::reduce_min:
    case Code::reduce_argmin:
    case Code::store_min:
      return Monoid::min;
    default:
      return Monoid::sum;
  }
}

bool has_inner_points(const Fused& f) {
  return std::find(f.dims.begin() + f.outer, f.dims.end(), 0) == f.dims.end();
}
std::vector<bool> with_operands(const Fused& f, std::vector<bool> marked) {
  const bool reads_inner = has_inner_points(f);
  for (std::size_t i = f.code.size(); i-- > 0;)
    if (marked[i] && (reads_inner || !is_reduction(f.code[i].code)))
      for (int a : operands(f.code[i])) marked[std::size_t(a)] = true;
  return marked;
}
std::vector<bool> needed_instructions(const Fused& f) {
  const bool writes_inner = has_inner_points(f);
  std::vector<bool> stores;
  for (auto& i : f.code) stores.push_back(is_store(i.code) && (writes_inner || !i.inner));
  return with_operands(f, std::move(stores));
}
std::vector<int> reduction_levels(const Fused& f) {
  std::vector<int> levels;
  for (auto& i : f.code) {
    int level = 0;
    for (int a : operands(i)) level = std::max(level, levels[std::size_t(a)]);
    levels.push_back(level + is_reduction(i.code));
  }
  return levels;
}

Dims access_strides(const Fused& f, const Instr& i) {
  const bool counts = i.code == Code::iota;
  if (!counts && !accesses_memory(i.code)) return {};
  Dims strides = counts ? Dims() : i.view.strides;
  strides.resize(i.inner ? f.dims.size() : std::size_t(f.outer));
  strides.resize(f.dims.size());
  if (counts && i.dim >= 0) strides[std::size_t(i.dim)] = i.stride;
  return strides;
}
bool writes_repeatedly(const Fused& f) {
  return std::any_of(f.code.begin(), f.code.end(), [&](auto& i) {
    if (!is_store(i.code)) return false;
    const auto strides = access_strides(f, i);
    const auto end = i.inner ? f.dims.size() : std::size_t(f.outer);
    for (std::size_t d = 0; d < end; ++d)
      if (f.dims[d] > 1 && strides[d] == 0) return true;
    return false;
  });
}

bool points_are_independent(const Fused& f, const Program& p,
                            const std::vector<std::byte*>& memory) {
  auto known = [&](int slot) {
    return slot >= 0 && slot < int(memory.size()) && memory[std::size_t(slot)];
  };
  for (auto& i : f.code) {
    if (i.inner || is_reduction(i.code)) return false;
    if (accesses_memory(i.code) && !known(i.view.slot)) return false;
  }
  for (auto& store : f.code)
    for (auto& other : f.code) {
      if (!is_store(store.code) || &store == &other || !accesses_memory(other.code)) continue;
      auto *to = memory[std::size_t(store.view.slot)], *at = memory[std::size_t(other.view.slot)];
      if (to < at + p.slot(other.view.slot).bytes && at < to + p.slot(store.view.slot).bytes)
        return false;
    }
  return true;
}

void merge_dims(Dims& dims, std::size_t& outer, std::vector<Dims>& strides) {
  auto drop = [&](std::size_t d) {
    dims.erase(dims.begin() + std::ptrdiff_t(d));
    for (auto& s : strides)
      if (!s.empty()) s.erase(s.begin() + std::ptrdiff_t(d));
    outer -= d < outer;
  };
  for (std::size_t d = dims.size(); d-- > 0;)
    if (dims[d] == 1) drop(d);
  for (std::size_t d = dims.size(); d-- > 1;) {
    const bool merges = d != outer && std::all_of(strides.begin(), strides.end(), [&](auto& s) {
                          return s.empty() || s[d - 1] == s[d] * dims[d];
                        });
    if (!merges) continue;
    dims[d] *= dims[d - 1];
    drop(d - 1);
  }
}

}  // namespace haliax::program
