// Plan: rewrites bools to words; see packed_bools.h.
#include "packed_bools.h"

#include <algorithm>

#include "program/fused.h"

namespace haliax::cpu {
namespace {

using program::Code;
using program::Dims;
using program::Fused;
using program::Instr;
using program::View;

constexpr std::int64_t packed = 4;  // bools per word
constexpr std::int64_t all_true = 0x01010101, low_bits = 0x7f7f7f7f;

bool is_word_code(Code c) {
  switch (c) {
    case Code::load:
    case Code::constant:
    case Code::bit_and:
    case Code::bit_or:
    case Code::bit_xor:
    case Code::bit_not:
    case Code::logical_not:
    case Code::equal:
    case Code::not_equal:
    case Code::max:
    case Code::min:
    case Code::select:
    case Code::store:
      return true;
    default:
      return false;
  }
}

// The new code. Each function adds an instruction, and returns its index.
class Words {
 public:
  Words(const Fused& f, std::size_t dim) : f_(f), dim_(dim) {
    out_.dims = f.dims;
    out_.dims[dim] /= packed;
    out_.outer = f.outer;
  }
  Fused convert() {
    for (const Instr& in : f_.code) to_.push_back(convert(in));
    return std::move(out_);
  }

 private:
  int add(Instr in) {
    in.dtype = DType::u32;
    out_.code.push_back(std::move(in));
    return int(out_.code.size()) - 1;
  }
  int binary(Code code, int a, int b) {
    const bool inner = out_.code[std::size_t(a)].inner || out_.code[std::size_t(b)].inner;
    return add({.code = code, .args = {a, b, -1, -1}, .inner = inner});
  }
  int number(std::int64_t x) { return add({.code = Code::constant, .integer = x}); }
  int negated(int a) { return binary(Code::bit_xor, a, number(all_true)); }
  // Sets each byte that is not 0 to 1: a carry into the high bit of a byte shows its low bits.
  int normalized(int x) {
    const int low = number(low_bits);
    const int carried = binary(Code::add, binary(Code::bit_and, x, low), low);
    const int high = binary(Code::shift_right, binary(Code::bit_or, carried, x), number(7));
    return binary(Code::bit_and, high, number(all_true));
  }
  Instr access(const Instr& in) const {
    Instr word = in;
    word.view.dtype = DType::u32;
    word.view.offset /= packed;
    for (std::size_t d = 0; d < word.view.strides.size(); ++d)
      if (d != dim_) word.view.strides[d] /= packed;
    for (auto& term : word.view.terms) term.stride /= packed;
    return word;
  }
  int convert(const Instr& in) {
    const auto arg = [&](int k) { return to_[std::size_t(in.args[k])]; };
    switch (in.code) {
      case Code::constant:
        return number(in.integer != 0 ? all_true : 0);
      case Code::load:
        return normalized(add(access(in)));
      case Code::store: {
        Instr store = access(in);
        store.args[0] = arg(0);
        return add(std::move(store));
      }
      case Code::bit_and:
      case Code::min:
        return binary(Code::bit_and, arg(0), arg(1));
      case Code::bit_or:
      case Code::max:
        return binary(Code::bit_or, arg(0), arg(1));
      case Code::bit_xor:
      case Code::not_equal:
        return binary(Code::bit_xor, arg(0), arg(1));
      case Code::equal:
        return negated(binary(Code::bit_xor, arg(0), arg(1)));
      case Code::select: {
        const int changes = binary(Code::bit_xor, arg(1), arg(2));
        return binary(Code::bit_xor, arg(2), binary(Code::bit_and, arg(0), changes));
      }
      default:  // bit_not, logical_not
        return negated(arg(0));
    }
  }

  const Fused& f_;
  const std::size_t dim_;
  Fused out_;
  std::vector<int> to_;  // per instruction: the index of its word
};

}  // namespace

std::optional<Fused> packed_bools(const Fused& f) {
  std::size_t dim = f.dims.size();  // the last one that is longer than 1
  while (dim > 0 && f.dims[dim - 1] == 1) --dim;
  if (dim-- == 0 || f.dims[dim] % packed != 0) return {};
  for (const Instr& in : f.code) {
    if (!is_word_code(in.code) || in.dtype != DType::boolean) return {};
    if (!accesses_memory(in.code)) continue;
    const Dims strides = program::access_strides(f, in);
    bool fits = in.view.dtype == DType::boolean && in.view.offset % packed == 0 &&
                in.view.strides.size() > dim && strides[dim] == 1;
    for (std::size_t d = 0; d < strides.size(); ++d) fits &= d == dim || strides[d] % packed == 0;
    for (auto& term : in.view.terms) fits &= term.stride % packed == 0;
    if (!fits) return {};
  }
  return Words(f, dim).convert();
}

}  // namespace haliax::cpu
