// Kernel: the counted loops, cursors and fused steps of nest_code.h.
#if defined(HALIAX_XBYAK)
#include "nest_code.h"

#include <algorithm>
#include <limits>

#include "base/half.h"

namespace haliax::cpu {

using program::Code;
using program::Instr;
using Xbyak::Reg64;

namespace {

// copies of the code of a position that replace a counted loop
constexpr std::int64_t most_copies = 8;
constexpr int pinned = 1 << 30;  // readers of a value that stays in its register

bool is_imm32(std::int64_t x) { return x == std::int64_t(std::int32_t(x)); }

}  // namespace

// ---- cursors and counted loops ----

Reg64 NestCode::cursor_register(int cursor) const {
  const Reg64 all[] = {rdx, rsi, rdi, r8, r9, r10, r11, r12, r13};
  return all[cursor];
}
Reg64 NestCode::loaded(int cursor) {
  if (!is_on_stack(cursor)) return cursor_register(cursor);
  mov(rax, on_stack(cursor));
  return rax;
}
void NestCode::add_number(const Reg64& to, std::int64_t x) {
  if (x == 0) return;
  if (is_imm32(x)) return add(to, int(x));
  mov(rcx, std::size_t(x));
  add(to, rcx);
}
void NestCode::add_terms(const Reg64& to, const std::vector<program::Term>& terms,
                         std::int64_t unit) {
  for (auto& term : terms) {
    if (!is_imm32(term.stride * unit) || !is_imm32(term.limit)) throw CannotAssemble();
    if (term.slot >= 0) {
      mov(rcx, qword[rbx + 8 * term.slot]);
      const auto at = rcx + std::size_t(term.slot_offset * haliax::bytes_of(term.slot_dtype));
      if (term.slot_dtype == DType::i64)
        mov(rcx, qword[at]);
      else if (term.slot_dtype == DType::u32)
        mov(ecx, dword[at]);
      else
        movsxd(rcx, dword[at]);
      // a free cursor register does not exist here, so the limits are read from memory
      const auto limit = [&](std::int64_t x) { mov(qword[rsp + pointers_at - 8], int(x)); };
      limit(0);
      cmp(rcx, qword[rsp + pointers_at - 8]);
      cmovl(rcx, qword[rsp + pointers_at - 8]);
      limit(term.limit);
      cmp(rcx, qword[rsp + pointers_at - 8]);
      cmovg(rcx, qword[rsp + pointers_at - 8]);
    } else if (term.loop >= 0) {
      mov(rcx, qword[rbp + 8 * term.loop]);
    } else {
      continue;
    }
    imul(rcx, rcx, int(term.stride * unit));
    add(to, rcx);
  }
}
void NestCode::start_cursors(std::vector<const NestAccess*> accesses) {
  if (accesses.size() > std::size_t(max_cursors)) throw CannotAssemble();
  cursors_.clear();
  for (const NestAccess* access : accesses) {
    const int k = int(cursors_.size());
    const Reg64 r = is_on_stack(k) ? rax : cursor_register(k);
    const std::int64_t unit = access->iota ? 1 : haliax::bytes_of(access->view.dtype);
    cursors_.push_back({access, unit, 0});
    if (access->iota)
      mov(r, std::size_t(access->start));
    else
      mov(r, qword[rbx + 8 * access->view.slot]);
    add_number(r, access->iota ? 0 : access->view.offset * unit);
    add_terms(r, access->view.terms, unit);
    if (is_on_stack(k)) mov(on_stack(k), rax);
  }
}
void NestCode::move_cursors(std::size_t dim, std::int64_t positions) {
  for (int k = 0; k < int(cursors_.size()); ++k) {
    auto& cursor = cursors_[std::size_t(k)];
    const std::int64_t step = cursor.access->strides[dim] * cursor.unit * positions;
    if (step == 0) continue;
    if (is_on_stack(k)) {
      mov(rax, on_stack(k));
      add_number(rax, step);
      mov(on_stack(k), rax);
    } else {
      add_number(cursor_register(k), step);
    }
  }
}
void NestCode::unrolled(std::size_t dim, std::int64_t positions, const std::function<void()>& f) {
  const auto shift = [&](std::int64_t by) {
    for (auto& c : cursors_) c.offset += c.access->strides[dim] * c.unit * by;
  };
  shift(positions);
  f();
  shift(-positions);
}
void NestCode::counted(std::int64_t count, const std::function<void()>& f) {
  if (count == 1) return f();
  if (depth_ == max_depth - 2) throw CannotAssemble();
  const auto counter = qword[rsp + 8 * (max_cursors + depth_++)];
  const auto outer_copies = std::exchange(copies_, 1);
  mov(counter, int(count));
  Xbyak::Label start;
  L(start);
  f();
  dec(counter);
  jnz(start, T_NEAR);
  copies_ = outer_copies;
  --depth_;
}
void NestCode::each_position(int first, int last, const std::function<void()>& f) {
  while (first == vector_ || first == row_) ++first;
  if (first >= last) return f();
  const auto dim = std::size_t(first);
  const std::int64_t n = dims_[dim];
  if (copies_ * n <= most_copies) {
    copies_ *= n;
    for (std::int64_t i = 0; i < n; ++i)
      unrolled(dim, i, [&] { each_position(first + 1, last, f); });
    copies_ /= n;
    return;
  }
  counted(n, [&] {
    each_position(first + 1, last, f);
    move_cursors(dim, 1);
  });
  move_cursors(dim, -n);
}
void NestCode::set_rest(std::int64_t elements) {
  rest_ = elements > 0;
  elements_ = rest_ ? int(elements) : lanes();
  part_ = int(elements);
  if (!rest_) return;
  if (avx512_) {
    mov(eax, (1 << elements) - 1);
    kmovw(Opmask(rest_mask), eax);
  } else {
    vmovups(reg(rest_lanes), ptr[rip + rest_label_ + int(4 * (8 - elements))]);
  }
}
void NestCode::each_register(const std::function<void()>& f) {
  const std::int64_t n = vector_ < 0 ? 1 : dims_[std::size_t(vector_)], width = lanes(),
                     full = n / width, rest = n % width, total = full + (rest > 0);
  const auto dim = std::size_t(vector_);
  const auto at = [&](std::int64_t positions, const std::function<void()>& g) {
    if (vector_ < 0)
      g();
    else
      unrolled(dim, positions, g);
  };
  const auto last = [&](std::int64_t positions) {
    set_rest(rest);
    at(positions, f);
    set_rest(0);
  };
  set_rest(0);
  if (copies_ * total <= most_copies) {
    copies_ *= total;
    for (std::int64_t v = 0; v < full; ++v) at(v * width, f);
    if (rest > 0) last(full * width);
    copies_ /= total;
    return;
  }
  counted(full, [&] {
    f();
    move_cursors(dim, width);
  });
  if (rest > 0) last(0);
  move_cursors(dim, -full * width);
}

// ---- values ----

Xbyak::Address NestCode::array_address(int access) {
  return ptr[loaded(access) + std::size_t(cursors_[std::size_t(access)].offset)];
}
Xbyak::RegExp NestCode::scalar_address(int scalar) {
  if (scalar < 0) return r14 + std::size_t(4 * (-1 - scalar));
  return loaded(scalar) + std::size_t(cursors_[std::size_t(scalar)].offset);
}
int NestCode::constant(std::uint32_t bits) {
  const auto [known, is_new] = constants_.try_emplace(bits, int(constant_list_.size()));
  if (is_new) constant_list_.push_back(bits);
  return -1 - known->second;
}
void NestCode::write_tables() {
  write_literals();
  align(64);
  for (auto& [stride, label] : lane_tables_) {
    L(label);
    for (std::int64_t lane = 0; lane < 16; ++lane) dd(std::uint32_t(lane * stride));
  }
  L(rest_label_);
  for (int lane = 0; lane < 16; ++lane) dd(lane < 8 ? ~0u : 0u);
  L(constants_label_);
  for (std::uint32_t bits : constant_list_) dd(bits);
}
void NestCode::load_other(const Vector& z, int value) {
  const int access = nest_->access[std::size_t(value)];
  const auto& cursor = cursors_[std::size_t(access)];
  const std::int64_t stride = nest_->lane_stride(access);
  if (cursor.access->iota) {
    const Reg64 r = loaded(access);
    if (avx512_) {
      vpbroadcastd(z, r.cvt32());
    } else {
      vmovd(Xbyak::Xmm(z.getIdx()), r.cvt32());
      vpbroadcastd(z, Xbyak::Xmm(z.getIdx()));
    }
    if (cursor.offset != 0) vpaddd(z, z, literal(std::uint32_t(cursor.offset)));
    if (stride != 0) vpaddd(z, z, ptr[rip + lane_table(stride)]);
    return;
  }
  if (cursor.access->view.dtype != DType::bf16) return load_far(z, access, stride);
  if (stride != 0) return load_far_bf16(z, access, stride);
  movzx(ecx, word[far_address(access)]);
  shl(ecx, 16);
  vpbroadcastd(z, ecx);
}
void NestCode::all_or_rest() {
  if (rest_)
    kmovw(Opmask(scratch_mask), Opmask(rest_mask));
  else
    kxnorw(Opmask(scratch_mask), Opmask(scratch_mask), Opmask(scratch_mask));
}
void NestCode::place_leaf(int value) {
  const Instr& in = nest_->code[std::size_t(value)];
  auto& place = places_[std::size_t(value)];
  if (in.code == Code::constant) {
    const float number =
        in.dtype == DType::bf16 ? from_bf16(to_bf16(float(in.number))) : float(in.number);
    const auto bits = haliax::is_float(in.dtype)   ? std::bit_cast<std::uint32_t>(number)
                      : in.dtype == DType::boolean ? std::uint32_t(in.integer != 0)
                                                   : std::uint32_t(in.integer);
    place = {Place::scalar, constant(bits)};
    return;
  }
  const int access = nest_->access[std::size_t(value)];
  const std::int64_t stride = nest_->lane_stride(access);
  const bool is_bf16 = in.view.dtype == DType::bf16;
  place = {in.code == Code::iota ? Place::other
           : stride == 0         ? (is_bf16 ? Place::other : Place::scalar)
           : stride == 1         ? (is_bf16 ? Place::bf16 : Place::array)
                                 : Place::other,
           access};
  if (nest_->accesses[std::size_t(access)].overwritten) vector(value);
}

// ---- nests ----

void NestCode::emit_nest(const Nest& nest) {
  if (nest.code.empty()) return;
  nest_ = &nest;
  begin(nest.dims, nest.vector);
  std::vector<const NestAccess*> accesses;
  for (auto& access : nest.accesses) accesses.push_back(&access);
  start_cursors(accesses);
  places_.assign(nest.code.size(), {});
  reads_left_.assign(nest.code.size(), 0);
  const bool lanes_are_outer = nest.outer > 0 && !nest.reduces(nest.vector);
  const bool has_outer = std::any_of(nest.code.begin(), nest.code.end(),
                                     [](auto& in) { return !in.inner || is_reduction(in.code); });
  if (nest.outer == 0 && !has_outer)
    return each_position(0, int(dims_.size()), [&] {
      each_register([&] { emit_values(std::vector<bool>(nest.code.size(), true), nullptr); });
    });
  each_position(0, nest.outer, [&] {
    if (lanes_are_outer)
      each_register([&] { emit_outer_position(); });
    else
      emit_outer_position();
  });
}
void NestCode::begin(const Dims& dims, int vector) {
  dims_ = dims;
  vector_ = vector;
  row_ = -1;
  depth_ = 0;
  copies_ = 1;
  rest_ = false;
  reset_registers();
}
void NestCode::reset_registers() {
  free_all();
  if (!avx512_) free_.reset(rest_lanes);
}

// Returns the inner instructions that the pass over the inner positions after `level` reductions
// computes: operands of the next reductions and, in the last pass, of the stores.
std::vector<bool> NestCode::inner_values(int level, int last_level) const {
  const auto& code = nest_->code;
  std::vector<bool> chosen(code.size(), false);
  bool any = false;
  for (std::size_t i = code.size(); i-- > 0;) {
    const bool is_target = is_reduction(code[i].code)
                               ? nest_->level[i] == level + 1
                               : is_store(code[i].code) && code[i].inner && level == last_level;
    if (!is_target && !(chosen[i] && code[i].inner)) continue;
    chosen[i] = any = true;
    for (int a : program::operands(code[i]))
      if (code[std::size_t(a)].inner) chosen[std::size_t(a)] = true;
  }
  return any ? chosen : std::vector<bool>();
}
void NestCode::emit_outer_position() {
  const auto& code = nest_->code;
  const int last_level = *std::max_element(nest_->level.begin(), nest_->level.end());
  places_.assign(code.size(), {});
  for (std::size_t i = 0; i < code.size(); ++i) reads_left_[i] = code[i].inner ? 0 : pinned;
  for (std::size_t i = 0; i < code.size(); ++i)
    if (!code[i].inner && program::is_leaf(code[i].code)) place_leaf(int(i));
  const auto is_outer = [&](const Instr& in) {
    return !in.inner && !is_reduction(in.code) && !program::is_leaf(in.code);
  };
  for (int level = 0; level <= last_level; ++level) {
    if (reduces_lanes()) elements_ = 1;
    for (std::size_t i = 0; i < code.size(); ++i)
      if (is_outer(code[i]) && nest_->level[i] == level) emit_instr(int(i));
    const auto chosen = inner_values(level, last_level);
    if (chosen.empty()) continue;
    std::vector<Accumulator> sums;
    for (std::size_t i = 0; i < code.size(); ++i)
      if (chosen[i] && is_reduction(code[i].code)) sums.push_back(start(int(i)));
    const auto values = [&] { emit_values(chosen, &sums); };
    each_position(nest_->outer, int(dims_.size()), [&] {
      if (reduces_lanes())
        each_register(values);
      else
        values();
    });
    for (auto& sum : sums) finish_reduction(sum);
  }
  reset_registers();
}
void NestCode::emit_values(const std::vector<bool>& chosen, std::vector<Accumulator>* sums) {
  const auto& code = nest_->code;
  for (std::size_t i = 0; i < code.size(); ++i)
    if (chosen[i] && code[i].inner) reads_left_[i] = 0;
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (!chosen[i]) continue;
    for (int a : program::operands(code[i]))
      if (reads_left_[std::size_t(a)] < pinned) ++reads_left_[std::size_t(a)];
  }
  // all loads come before all stores
  for (std::size_t i = 0; i < code.size(); ++i)
    if (chosen[i] && program::is_leaf(code[i].code)) place_leaf(int(i));
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (!chosen[i] || program::is_leaf(code[i].code)) continue;
    if (!is_reduction(code[i].code)) {
      emit_instr(int(i));
      continue;
    }
    for (auto& sum : *sums)
      if (sum.value == int(i)) accumulate(sum);
  }
}
void NestCode::emit_instr(int value) {
  const Instr& in = nest_->code[std::size_t(value)];
  if (is_store(in.code)) return emit_store(value);
  emit_function(value);
  const bool is_exact = in.code == Code::select || in.code == Code::neg || in.code == Code::abs ||
                        in.code == Code::max || in.code == Code::min || in.code == Code::sign;
  if (in.dtype != DType::bf16 || is_exact) return;
  const Vector z = vector(value);
  round_to(z, z, DType::bf16);
}
void NestCode::emit_function(int value) {
  const Instr& in = nest_->code[std::size_t(value)];
  MapCode::Op op;
  std::copy(std::begin(in.args), std::end(in.args), op.args);
  const auto dtype_of = [&](int a) { return nest_->code[std::size_t(a)].dtype; };
  const DType first = dtype_of(in.args[0]);
  if (const Kernel kernel = kernel_of(nest_->code, in)) {
    const bool is_real = haliax::is_float(in.dtype) && haliax::is_float(first);
    const auto of_registers = is_real ? kernels().of_registers(in.code) : nullptr;
    return of_registers ? emit_register_kernel(of_registers, op, value)
                        : emit_kernel(kernel, op, value);
  }
  const bool converts =
      in.code == Code::cast && in.dtype == DType::f32 && lane_type_of(first) != LaneType::f32;
  if (converts) {
    op.map = {
        .kind = MapOp::convert, .code = Code::cast, .from = lane_type_of(first), .to = in.dtype};
    return emit_op(op, value);
  }
  if (in.code == Code::cast || in.code == Code::bitcast) {
    const Vector x = vector(op.args[0]), z = result(value);
    vmovaps(z, x);
    return finish_reads(op);
  }
  const bool negates = in.code == Code::bit_not && in.dtype == DType::boolean;
  op.map = {.kind = MapOp::instruction,
            .code = negates ? Code::logical_not : in.code,
            .from = lane_type_of(in.code == Code::select ? in.dtype : first),
            .to = in.dtype};
  emit_op(op, value);
}
void NestCode::emit_store(int value) {
  const Instr& in = nest_->code[std::size_t(value)];
  const int access = nest_->access[std::size_t(value)], source = in.args[0];
  const std::int64_t stride = nest_->lane_stride(access);
  const bool is_single = !in.inner && reduces_lanes();
  Vector z = vector(source);
  std::optional<Temporary> combined;
  if (in.code != Code::store) {
    combined.emplace(*this);
    combine_with_target(in, combined->z, z, access);
    z = combined->z;
  }
  if (in.view.dtype == DType::bf16)
    emit_bf16_store(z, access, is_single);
  else if (is_single)
    vmovss(array_address(access), Xbyak::Xmm(z.getIdx()));
  else if (stride > 1 || stride < 0)
    scatter(z, access, stride);
  else
    store_register(array_address(access), z, rest_);
  combined.reset();
  finish_read(source);
}
// Computes `to` from x and the elements in memory, for a store that adds, or that keeps the larger
// or the smaller one.
void NestCode::combine_with_target(const Instr& store, const Vector& to, const Vector& x,
                                   int access) {
  Temporary before(*this);
  load_target(before.z, access, nest_->lane_stride(access));
  if (store.code == Code::store_add) {
    store.view.dtype == DType::f32 ? vaddps(to, before.z, x) : vpaddd(to, before.z, x);
    return;
  }
  if (store.view.dtype != DType::f32) throw CannotAssemble();
  vmovaps(to, before.z);
  combine(store.code == Code::store_max ? Code::max : Code::min, to, x);
}
void NestCode::emit_bf16_store(const Vector& z, int access, bool is_single) {
  const std::int64_t stride = nest_->lane_stride(access);
  Temporary bits(*this);
  vmovaps(bits.z, z);
  if (is_single) {
    vpsrld(bits.z, bits.z, 16);
    vmovd(ecx, Xbyak::Xmm(bits.z.getIdx()));
    mov(word[far_address(access)], cx);
  } else if (stride > 1 || stride < 0) {
    scatter_bf16(bits.z, access, stride);
  } else {
    store_bf16(array_address(access), bits.z);
  }
}
void NestCode::load_target(const Vector& z, int access, std::int64_t stride) {
  if (stride == 0) return vbroadcastss(z, dword[scalar_address(access)]);
  if (stride == 1) return load_register(z, array_address(access), rest_);
  load_far(z, access, stride);
}
// Loads elements that are `stride` positions from each other: by permutations of full registers if
// it is 2 or 4, else by a gather.
void NestCode::load_far(const Vector& z, int access, std::int64_t stride) {
  Temporary index(*this);
  vmovups(index.z, ptr[rip + lane_table(stride)]);
  if ((stride != 2 && stride != 4) || rest_) {
    all_or_rest();
    vgatherdps(z | Opmask(scratch_mask), ptr[far_address(access) + index.z * 4]);
    return;
  }
  mov(ecx, 0xffff >> (stride - 1));  // elements past the last one are not read
  kmovw(Opmask(scratch_mask), ecx);
  const auto from = far_address(access);
  const auto load_pair = [&](const Vector& first, int register_pair) {
    Temporary second(*this);
    const bool is_last = register_pair == int(stride / 2) - 1;
    vmovups(first, ptr[from + std::size_t(128 * register_pair)]);
    const auto rest = ptr[from + std::size_t(128 * register_pair + 64)];
    is_last ? vmovups(second.z | Opmask(scratch_mask) | T_z, rest) : vmovups(second.z, rest);
    vpermt2ps(first, index.z, second.z);
  };
  load_pair(z, 0);
  if (stride == 2) return;
  Temporary upper(*this);
  load_pair(upper.z, 1);
  vinsertf64x4(Xbyak::Zmm(z.getIdx()), Xbyak::Zmm(z.getIdx()), Xbyak::Ymm(upper.z.getIdx()), 1);
}
// Loads bf16 elements that are `stride` positions from each other. AVX-512 has no gather of 16
// bits.
void NestCode::load_far_bf16(const Vector& z, int access, std::int64_t stride) {
  const auto from = far_address(access);
  Temporary upper(*this);
  each_eight([&](int first, int last) {
    const Xbyak::Xmm x(first == 0 ? z.getIdx() : upper.z.getIdx());
    vpxord(x, x, x);
    for (int lane = first; lane < last; ++lane)
      vpinsrw(x, x, word[from + std::size_t(2 * stride * lane)], std::uint8_t(lane - first));
  });
  const Xbyak::Ymm all(z.getIdx());
  if (elements_ > 8) vinserti32x4(all, all, Xbyak::Xmm(upper.z.getIdx()), 1);
  vpmovzxwd(z, all);
  vpslld(z, z, 16);
}
// Stores bf16 values `stride` positions from each other, which overwrites z.
void NestCode::scatter_bf16(const Vector& z, int access, std::int64_t stride) {
  const auto to = far_address(access);
  const Xbyak::Ymm all(z.getIdx());
  const Xbyak::Xmm eight(z.getIdx());
  vpsrld(z, z, 16);
  vpmovdw(all, z);
  each_eight([&](int first, int last) {
    if (first > 0) vextracti32x4(eight, all, 1);
    for (int lane = first; lane < last; ++lane)
      vpextrw(word[to + std::size_t(2 * stride * lane)], eight, std::uint8_t(lane - first));
  });
}
// Calls f for each eight lanes of the current register, or fewer.
void NestCode::each_eight(const std::function<void(int first, int last)>& f) {
  for (int first = 0; first < elements_; first += 8) f(first, std::min(elements_, first + 8));
}
Xbyak::RegExp NestCode::far_address(int access) {
  return loaded(access) + std::size_t(cursors_[std::size_t(access)].offset);
}
void NestCode::scatter(const Vector& z, int access, std::int64_t stride) {
  Temporary index(*this);
  vmovups(index.z, ptr[rip + lane_table(stride)]);
  all_or_rest();
  vscatterdps(
      ptr[loaded(access) + index.z * 4 + std::size_t(cursors_[std::size_t(access)].offset)] |
          Opmask(scratch_mask),
      Xbyak::Zmm(z.getIdx()));
}

}  // namespace haliax::cpu
#endif
