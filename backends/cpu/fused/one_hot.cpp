// Plan: rewrites one-hot sums and updates of a fused step as accesses to one element.
#include "one_hot.h"

#include <algorithm>

#include "haliax/dtype.h"
#include "program/fused.h"

namespace haliax::cpu {
namespace {

using program::Code;
using program::Fused;
using program::Instr;

class OneHotRewriter {
 public:
  OneHotRewriter(const Fused& from, int dim)
      : from_(from), dim_(dim), varies_(from.code.size()), to_(from.code.size()) {}

  Fused run() {
    Fused out = from_;
    out.code.clear();
    for (std::size_t i = 0; i < from_.code.size(); ++i) {
      Instr in = from_.code[i];
      varies_[i] = varies(in);
      for (int& a : in.args)
        if (a >= 0) a = to_[static_cast<std::size_t>(a)];
      if (Point p; in.code == Code::reduce_sum && is_f32_or_f64(in) &&
                   selects(from_.code[i].args[0], p) && dtype(p.value) == in.dtype) {
        shift(p, out);
        in.args[0] = to(p.value);
        in.args[1] = p.id;
        in.dim = p.position;
      } else if ((in.code == Code::add || in.code == Code::sub) && is_f32_or_f64(in)) {
        const int first = from_.code[i].args[0], second = from_.code[i].args[1];
        const bool right = selects(second, p) && !varies_[static_cast<std::size_t>(p.value)];
        const bool left = !right && in.code == Code::add && selects(first, p) &&
                          !varies_[static_cast<std::size_t>(p.value)];
        if (left || right) {
          shift(p, out);
          in.args[0] = to(right ? first : second);
          in.args[1] = to(p.value);
          in.args[2] = p.id;
          in.dim = p.position;
        }
      }
      to_[i] = static_cast<int>(out.code.size());
      out.code.push_back(in);
    }
    return out;
  }

 private:
  // The operands of select(id == position + offset, value, 0), as instruction indices. `position`
  // is an iota along the dim; offset -1: no offset.
  struct Point {
    int value = -1, id = -1, offset = -1, position = -1;
  };

  static bool is_f32_or_f64(const Instr& in) {
    return in.dtype == DType::f32 || in.dtype == DType::f64;
  }
  const Instr& at(int i) const { return from_.code[static_cast<std::size_t>(i)]; }
  DType dtype(int i) const { return at(i).dtype; }
  int to(int i) const { return to_[static_cast<std::size_t>(i)]; }
  bool is_constant_along(int i) const { return !varies_[static_cast<std::size_t>(i)]; }
  // Returns true if the value may vary along the dim.
  bool varies(const Instr& in) const {
    if (is_reduction(in.code)) return false;
    if (in.code == Code::iota) return in.dim == dim_;
    if (in.code == Code::load) return stride_of(in, static_cast<std::size_t>(dim_)) != 0;
    const auto args = program::operands(in);
    return std::any_of(args.begin(), args.end(), [&](int a) { return !is_constant_along(a); });
  }
  // Returns true if the instruction is an iota along the dim with stride 1.
  bool is_position(int i) const {
    return at(i).code == Code::iota && at(i).dim == dim_ && at(i).stride == 1;
  }
  // Returns true if the instruction is such a select. Sets `p`.
  bool selects(int i, Point& p) const {
    const Instr& select = at(i);
    if (select.code != Code::select) return false;
    const Instr &condition = at(select.args[0]), &other = at(select.args[2]);
    if (condition.code != Code::equal || other.code != Code::constant || other.number != 0)
      return false;
    p.value = select.args[1];
    for (int side = 0; side < 2; ++side) {
      const int id = condition.args[side], position = condition.args[1 - side];
      if ((dtype(id) != DType::i32 && dtype(id) != DType::i64) || !is_constant_along(id)) continue;
      p.id = id;
      p.offset = -1;
      p.position = position;
      if (is_position(position)) return true;
      const Instr& sum = at(position);
      if (sum.code != Code::add) continue;
      for (int term = 0; term < 2; ++term)
        if (is_position(sum.args[term]) && is_constant_along(sum.args[1 - term])) {
          p.position = sum.args[term];
          p.offset = sum.args[1 - term];
          return true;
        }
    }
    return false;
  }
  // Translates `id` and `position` to the new code, and subtracts the offset from the id:
  // id == position + offset becomes id - offset == position.
  void shift(Point& p, Fused& out) const {
    const DType id = dtype(p.id);
    p.id = to(p.id);
    p.position = to(p.position);
    if (p.offset < 0) return;
    Instr difference;
    difference.code = Code::sub;
    difference.dtype = id;
    difference.args[0] = p.id;
    difference.args[1] = to(p.offset);
    p.id = static_cast<int>(out.code.size());
    out.code.push_back(difference);
  }

  const Fused& from_;
  int dim_;
  std::vector<bool> varies_;
  std::vector<int> to_;
};

}  // namespace

program::Fused with_element_ops(const Fused& fused, int dim) {
  return OneHotRewriter(fused, dim).run();
}

}  // namespace haliax::cpu
