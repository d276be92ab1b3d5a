// A fused step as one kernel. Without folds each thread makes points by itself; with them a group of threads makes a row: it
// walks over the inner points once for each level of folds (a fold of what needs another's result is on the next level), and
// makes what it needs again. Stores come in the last walk: what earlier ones read again is still there.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/scalar.h"
#include "text.h"

namespace haliax::cuda {
namespace {

using program::Code;
using program::Dims;
using program::Fused;
using program::Instr;

bool is_store(Code c) { return c >= Code::store; }
bool is_fold(Code c) { return c >= Code::reduce_sum && c <= Code::reduce_argmin; }
bool is_arg(Code c) { return c == Code::reduce_argmax || c == Code::reduce_argmin; }

// Codes whose operands are wide numbers, by the function that they are.
const std::map<Code, const char*>& functions() {
  static const std::map<Code, const char*> all{{Code::neg, "scalar::negate"},
                                               {Code::abs, "kernel::abs"},
                                               {Code::sign, "scalar::sign"},
                                               {Code::exp, "std::exp"},
                                               {Code::exp2, "std::exp2"},
                                               {Code::expm1, "std::expm1"},
                                               {Code::log, "std::log"},
                                               {Code::log2, "std::log2"},
                                               {Code::log1p, "kernel::log1p"},
                                               {Code::sqrt, "std::sqrt"},
                                               {Code::rsqrt, "kernel::rsqrt"},
                                               {Code::cbrt, "std::cbrt"},
                                               {Code::sin, "std::sin"},
                                               {Code::cos, "std::cos"},
                                               {Code::tan, "std::tan"},
                                               {Code::asin, "std::asin"},
                                               {Code::acos, "std::acos"},
                                               {Code::atan, "std::atan"},
                                               {Code::sinh, "std::sinh"},
                                               {Code::cosh, "std::cosh"},
                                               {Code::tanh, "std::tanh"},
                                               {Code::asinh, "std::asinh"},
                                               {Code::acosh, "std::acosh"},
                                               {Code::atanh, "std::atanh"},
                                               {Code::erf, "std::erf"},
                                               {Code::erfinv, "kernel::erfinv"},
                                               {Code::lgamma, "std::lgamma"},
                                               {Code::digamma, "kernel::digamma"},
                                               {Code::floor, "std::floor"},
                                               {Code::ceil, "std::ceil"},
                                               {Code::round, "std::rint"},
                                               {Code::trunc, "std::trunc"},
                                               {Code::add, "add"},
                                               {Code::sub, "sub"},
                                               {Code::mul, "mul"},
                                               {Code::div, "scalar::div"},
                                               {Code::floor_div, "scalar::floor_div"},
                                               {Code::mod, "scalar::mod"},
                                               {Code::rem, "scalar::rem"},
                                               {Code::pow, "power"},
                                               {Code::max, "scalar::max"},
                                               {Code::min, "scalar::min"},
                                               {Code::atan2, "std::atan2"},
                                               {Code::fma, "kernel::fma"}};
  return all;
}
const char* operator_of(Code c) {
  switch (c) {
    case Code::less: return "<";
    case Code::less_equal: return "<=";
    case Code::equal: return "==";
    case Code::not_equal: return "!=";
    case Code::bit_and: return "&";
    case Code::bit_or: return "|";
    case Code::bit_xor: return "^";
    default: return nullptr;
  }
}
constexpr int kTerms = 8;            // of a sum of a thread, before it is added to the others
program::Monoid monoid_of(Code c) {  // of a fold; what a position is searched by
  if (is_arg(c)) return c == Code::reduce_argmax ? program::Monoid::max : program::Monoid::min;
  return program::Monoid(int(c) - int(Code::reduce_sum));
}
std::string fold_of(Code c) {
  if (is_arg(c)) return c == Code::reduce_argmax ? "First{true}" : "First{false}";
  return cuda::fold_of(monoid_of(c));
}

class FusedText {
 public:
  FusedText(const Fused& f, Around* around) : around_(around), text_(around), code_(f.code), info_(f.code.size()) {
    read(f);
    merge();
    for (std::size_t i = 0; i < code_.size(); ++i) look_at(i);
  }

  // One instruction of a code that others walk over (tiles.h).
  FusedText(const std::vector<Instr>& code, std::size_t which, const Dims& strides, Around* around)
      : around_(around), text_(around), code_(code), info_(code.size()) {
    info_[which].strides = strides;
  }
  std::string one(std::size_t i) { return is_store(code_[i].code) ? stored(i) : value_of(i); }

  Launch make() {
    const auto all = program::points(dims_), rows = program::points(part(0, outer_)),
               inner = program::points(part(outer_, dims_.size()));
    if (rows == 0) return {{}, {}, 0};
    text_.far = all >= most_near;
    for (std::size_t i = 0; i < code_.size(); ++i) text_.far |= reach(i) >= most_near;
    mark_needed(inner);
    if (inner == 1 || (!folds_ && !stores_rows_)) return points(all);
    return in_rows(rows, inner);
  }

 private:
  struct Info {
    Dims strides;   // of a load, a store or an iota, along all dims
    int level = 0;  // how many folds must be done before, one after the other
    bool needed = false;
  };

  Dims part(std::size_t from, std::size_t to) const {
    return Dims(dims_.begin() + std::ptrdiff_t(from), dims_.begin() + std::ptrdiff_t(to));
  }
  bool has_place(const Instr& i) const { return i.code == Code::load || i.code == Code::iota || is_store(i.code); }
  std::int64_t reach(std::size_t i) const {
    std::int64_t out = 0;
    for (std::size_t d = 0; d < info_[i].strides.size(); ++d) out += std::abs(info_[i].strides[d]) * dims_[d];
    return out;
  }

  // ---- the space of points: without dims of one, and with dims that lie side by side as one ----
  void read(const Fused& f) {
    dims_ = f.dims, outer_ = std::size_t(f.outer);
    for (std::size_t i = 0; i < code_.size(); ++i) {
      if (!has_place(code_[i])) continue;
      auto& s = info_[i].strides;
      if (code_[i].code != Code::iota) s = code_[i].view.strides;
      s.resize(code_[i].inner ? dims_.size() : outer_), s.resize(dims_.size());
      if (code_[i].code == Code::iota && code_[i].dim >= 0) s[std::size_t(code_[i].dim)] = code_[i].stride;
    }
  }
  void drop(std::size_t d) {
    dims_.erase(dims_.begin() + std::ptrdiff_t(d));
    for (auto& x : info_)
      if (!x.strides.empty()) x.strides.erase(x.strides.begin() + std::ptrdiff_t(d));
    outer_ -= d < outer_;
  }
  void merge() {
    for (std::size_t d = dims_.size(); d-- > 0;)
      if (dims_[d] == 1) drop(d);
    for (std::size_t d = dims_.size(); d-- > 1;) {
      if (d == outer_) continue;
      bool side_by_side = std::all_of(info_.begin(), info_.end(),
                                      [&](auto& x) { return x.strides.empty() || x.strides[d - 1] == x.strides[d] * dims_[d]; });
      if (!side_by_side) continue;
      dims_[d] *= dims_[d - 1];
      drop(d - 1);
    }
  }
  void look_at(std::size_t i) {
    auto& in = code_[i];
    auto& me = info_[i];
    for (int a : in.args)
      if (a >= 0) me.level = std::max(me.level, info_[std::size_t(a)].level + is_fold(in.code));
    folds_ |= is_fold(in.code);
    if (!is_store(in.code)) return;
    stores_rows_ |= !in.inner;
    for (std::size_t d = 0; d < (in.inner ? dims_.size() : outer_); ++d) serial_ |= dims_[d] > 1 && me.strides[d] == 0;
  }
  void mark_needed(std::int64_t inner_points) {
    for (std::size_t i = code_.size(); i-- > 0;) {
      auto& in = code_[i];
      if (is_store(in.code)) info_[i].needed = inner_points > 0 || !in.inner;
      if (!info_[i].needed || (inner_points == 0 && is_fold(in.code))) continue;
      for (int a : in.args)
        if (a >= 0) info_[std::size_t(a)].needed = true;
    }
  }

  // ---- instructions ----
  std::string name(int i) const { return fmt::format("v{}", i); }
  std::string value_of(std::size_t i) {
    auto& in = code_[i];
    auto S = element_of(in.dtype);
    std::string x[4];
    int count = 0;
    for (; count < 4 && in.args[count] >= 0; ++count) x[count] = name(in.args[count]);
    auto A = count ? element_of(code_[std::size_t(in.args[0])].dtype) : "";
    auto call = [&](const char* f) {
      std::string args;
      for (int a = 0; a < count; ++a) args += fmt::format("{}wide({})", a ? ", " : "", x[a]);
      return fmt::format("result<{}>({}({}))", S, f, args);
    };
    if (auto* op = operator_of(in.code)) {
      bool compares = in.code >= Code::less && in.code <= Code::not_equal;
      return compares ? fmt::format("{} {} {}", x[0], op, x[1])
                      : fmt::format("result<{}>(wide({}) {} wide({}))", S, x[0], op, x[1]);
    }
    switch (in.code) {
      case Code::constant: return fmt::format("constant<{}>({})", S, text_.word(bits_of(in.dtype, in.number, in.integer)));
      case Code::load: {
        auto V = element_of(in.view.dtype);
        auto base = text_.base(in.view);
        return fmt::format("cast<{}, {}>(load<{}>({}, {}))", S, V, V, base, text_.at(in.view, info_[i].strides));
      }
      case Code::iota: {
        Word start{-1, in.integer};
        for (auto& t : in.view.terms) start.loops.push_back({t.loop, t.stride});
        auto from = text_.word(std::move(start)), moved = text_.sum_of(info_[i].strides);
        return fmt::format("cast<{}, std::int64_t>({}{}{})", S, from, moved.empty() ? "" : " + ", moved);
      }
      case Code::cast: return fmt::format("cast<{}, {}>({})", S, A, x[0]);
      case Code::bitcast: return fmt::format("of_bits<{}>(bits<{}>({}))", S, A, x[0]);
      case Code::logical_not: return fmt::format("{} == 0", x[0]);
      case Code::bit_not: return in.dtype == DType::boolean ? "!" + x[0] : fmt::format("result<{}>(~wide({}))", S, x[0]);
      case Code::is_finite: return fmt::format("is_finite({})", x[0]);
      case Code::is_nan: return fmt::format("is_nan({})", x[0]);
      case Code::is_inf: return fmt::format("is_inf({})", x[0]);
      case Code::popcount: return fmt::format("result<{}>(__popcll(std::make_unsigned_t<{}>({})))", S, A, x[0]);
      case Code::nextafter: return fmt::format("kernel::nextafter<{}>({}, {})", S, x[0], x[1]);
      case Code::shift_left:
      case Code::shift_right:
        return fmt::format("result<{}>(scalar::{}(wide({}), wide({}), {}))", S,
                           in.code == Code::shift_left ? "shift_left" : "shift_right", x[0], x[1], 8 * bytes_of(in.dtype));
      case Code::select: return fmt::format("{} ? {} : {}", x[0], x[1], x[2]);
      case Code::threefry0:
      case Code::threefry1:
      case Code::threefry_xor: {
        auto words = fmt::format("scalar::threefry({}, {}, {}, {})", x[0], x[1], x[2], x[3]);
        return in.code == Code::threefry0 ? words + ".a" : in.code == Code::threefry1 ? words + ".b" : "xor_of(" + words + ")";
      }
      case Code::floor:
      case Code::ceil:
      case Code::round:
      case Code::trunc:
        if (!is_float(in.dtype)) return x[0];
        break;
      default: break;
    }
    return call(functions().at(in.code));
  }
  std::string stored(std::size_t i) {
    auto& in = code_[i];
    auto& from = code_[std::size_t(in.args[0])];
    auto V = element_of(in.view.dtype);
    auto base = text_.base(in.view, true), at = text_.at(in.view, info_[i].strides);
    auto x = fmt::format("cast<{}, {}>({})", V, element_of(from.dtype), name(in.args[0]));
    if (in.code != Code::store) {
      auto* f = in.code == Code::store_add ? "add" : in.code == Code::store_max ? "scalar::max" : "scalar::min";
      x = fmt::format("result<{0}>({1}(wide(load<{0}>({2}, {3})), wide({4})))", V, f, base, at, x);
    }
    return fmt::format("store<{}>({}, {}, {});", V, base, at, x);
  }
  void write(std::size_t i) {
    if (is_store(code_[i].code))
      text_.line(stored(i));
    else
      text_.line(fmt::format("const Number<{}> {} = {};", element_of(code_[i].dtype), name(int(i)), value_of(i)));
  }

  // ---- kernels ----
  Launch points(std::int64_t n) {
    auto count = text_.word(n);
    if (serial_)
      text_.open(fmt::format("for (I p = 0; p < I({}); ++p)", count));
    else
      text_.open(
          fmt::format("for (I p = my_block * I(blockDim_x) + threadIdx_x; p < I({}); p += I(all_blocks) * blockDim_x)", count));
    text_.indices("p", dims_);
    for (bool stores : {false, true})
      for (std::size_t i = 0; i < code_.size(); ++i)
        if (info_[i].needed && is_store(code_[i].code) == stores) is_fold(code_[i].code) ? fold_of_one(i) : write(i);
    text_.close();
    auto out = text_.launch(serial_ ? 1 : n);
    if (serial_) out.threads = 1;
    return out;
  }
  void fold_of_one(std::size_t i) {  // there is one inner point
    auto& in = code_[i];
    auto from = std::size_t(in.args[0]);
    auto S = element_of(in.dtype);
    auto x = is_arg(in.code) ? "0" : fmt::format("cast<{}, {}>({})", S, element_of(code_[from].dtype), name(int(from)));
    text_.line(fmt::format("const Number<{}> {} = {};", S, name(int(i)), x));
  }

  // How many threads go together along a row: as many as there are points, where these lie side by side; one, where rows do.
  int group_for(std::int64_t rows, std::int64_t inner) const {
    if (serial_ || inner <= 1) return 1;
    bool along_rows = false, along = false;
    for (std::size_t i = 0; i < code_.size(); ++i) {
      auto& s = info_[i].strides;
      if (!info_[i].needed || s.empty() || !code_[i].inner) continue;
      along |= s.back() == 1, along_rows |= outer_ > 0 && s[outer_ - 1] == 1;
    }
    constexpr std::int64_t many = 8192;  // rows: there is work for all
    if (along_rows && !along && rows >= many) return 1;
    int group = 1;
    const int most = around_ ? 32 : 256;           // there each warp has rows of its own
    while (group < most && group < inner) group *= 2;
    return group;
  }
  Launch in_rows(std::int64_t rows, std::int64_t inner) {
    const int group = group_for(rows, inner), most = around_ ? kNestThreads : std::max(128, group);
    const int threads = serial_ ? 1 : most, at_once = threads / group;
    waits_ = group > 1 && folds_;
    if (waits_ && !around_)
      text_.line("HALIAX_SHARED(shared);");
    else
      text_.line("unsigned char* const shared = nullptr;");
    text_.line(fmt::format("const unsigned lane = threadIdx_x % {}u;", group));
    auto count = text_.word(rows);
    points_ = text_.word(inner), empty_ = inner == 0;
    text_.open(fmt::format("for (I first = my_block * I({0}); first < I({1}); first += I(all_blocks) * {0})", at_once, count));
    text_.line(fmt::format("const bool there = first + I(threadIdx_x / {0}u) < I({1});", group, count));
    text_.line(fmt::format("const I row = there ? first + I(threadIdx_x / {}u) : I({}) - 1;   // all threads take part in folds",
                           group, count));
    text_.indices("row", part(0, outer_));
    for (int level = 0; level <= levels(); ++level) {
      rows_on(level);
      walk(level, group);
    }
    text_.open("if (there && lane == 0)");
    for (std::size_t i = 0; i < code_.size(); ++i)
      if (info_[i].needed && is_store(code_[i].code) && !code_[i].inner) write(i);
    text_.close();
    text_.close();
    auto out = text_.launch(1, waits_);
    out.threads = threads, out.blocks = serial_ ? 1 : std::min<std::int64_t>((rows + at_once - 1) / at_once, 1 << 20);
    out.shared = 16 * std::max(1, threads / 32);
    return out;
  }
  int levels() const {
    int most = 0;
    for (auto& x : info_) most = std::max(most, x.level);
    return most;
  }
  void rows_on(int level) {  // what has one value for a row
    for (std::size_t i = 0; i < code_.size(); ++i) {
      auto& in = code_[i];
      if (info_[i].needed && !in.inner && info_[i].level == level && !is_store(in.code) && !is_fold(in.code)) write(i);
    }
  }
  void walk(int level, int group) {
    std::vector<bool> makes(code_.size());  // in this walk
    std::vector<std::size_t> folds;
    for (std::size_t i = 0; i < code_.size(); ++i) {
      auto& in = code_[i];
      bool fold = is_fold(in.code) && info_[i].level == level + 1 && info_[i].needed;
      if (fold) folds.push_back(i);
      if (fold || (is_store(in.code) && in.inner && level == last_walk() && info_[i].needed)) makes[i] = true;
    }
    for (std::size_t i = code_.size(); i-- > 0;)
      if (makes[i] && !empty_)
        for (int a : code_[i].args)
          if (a >= 0 && code_[std::size_t(a)].inner) makes[std::size_t(a)] = true;
    if (std::none_of(makes.begin(), makes.end(), [](bool b) { return b; })) return;
    for (auto i : folds) start(i);
    if (!empty_) points_of_rows(makes, folds, group);
    for (auto i : folds) finish(i, group);
  }
  // A thread's sums of floats are sums of sums of few terms: less is lost.
  bool sums_floats(std::size_t i) const { return code_[i].code == Code::reduce_sum && is_float(code_[i].dtype); }
  void points_of_rows(const std::vector<bool>& makes, const std::vector<std::size_t>& folds, int group) {
    bool by_blocks = std::any_of(folds.begin(), folds.end(), [&](auto i) { return sums_floats(i); });
    if (by_blocks) {
      text_.open(fmt::format("for (I block = lane; block < I({}); block += {})", points_, kTerms * group));
      for (auto i : folds)
        if (sums_floats(i)) text_.line(fmt::format("decltype(fold{0}) some{0} = 0;", i));
      text_.open(fmt::format("for (I j = block; j < block + {} && j < I({}); j += {})", kTerms * group, points_, group));
    } else {
      text_.open(fmt::format("for (I j = lane; j < I({}); j += {})", points_, group));
    }
    text_.indices("j", part(outer_, dims_.size()), outer_);
    for (std::size_t i = 0; i < code_.size(); ++i) {
      if (!makes[i] || is_store(code_[i].code)) continue;
      if (is_fold(code_[i].code))
        take(i);
      else if (code_[i].inner)
        write(i);
    }
    bool stores = false;
    for (std::size_t i = 0; i < code_.size(); ++i) stores |= makes[i] && is_store(code_[i].code);
    if (stores) {
      text_.open("if (there)");
      for (std::size_t i = 0; i < code_.size(); ++i)
        if (makes[i] && is_store(code_[i].code)) write(i);
      text_.close();
    }
    text_.close();
    if (!by_blocks) return;
    for (auto i : folds)
      if (sums_floats(i)) text_.line(fmt::format("fold{0} = add(fold{0}, some{0});", i));
    text_.close();
  }
  int last_walk() const {  // in which values are stored: when all folds are done whose results they, or other walks, need
    int most = 0;
    for (std::size_t i = 0; i < code_.size(); ++i) {
      if (is_store(code_[i].code) && code_[i].inner) most = std::max(most, info_[i].level);
      if (is_fold(code_[i].code) && info_[i].needed) most = std::max(most, info_[i].level - 1);
    }
    return most;
  }
  DType folded_dtype(const Instr& in) const { return is_arg(in.code) ? code_[std::size_t(in.args[0])].dtype : in.dtype; }
  void start(std::size_t i) {
    auto& in = code_[i];
    auto d = folded_dtype(in);
    auto from = fmt::format("constant<{}>({})", element_of(d), text_.word(start_bits(monoid_of(in.code), d)));
    if (is_arg(in.code))
      text_.line(fmt::format("Best<Number<{}>> fold{}{{{}, 0x7fffffffffffffff}};", element_of(d), i, from));
    else
      text_.line(fmt::format("auto fold{} = wide({});", i, from));
  }
  void take(std::size_t i) {
    auto& in = code_[i];
    auto x = name(in.args[0]);
    auto A = element_of(code_[std::size_t(in.args[0])].dtype);
    if (is_arg(in.code))
      text_.line(fmt::format("fold{0} = {1}(fold{0}, Best<Number<{2}>>{{{3}, j}});", i, fold_of(in.code), A, x));
    else
      text_.line(fmt::format("{0} = {1}({0}, wide(cast<{2}, {3}>({4})));",
                             fmt::format("{}{}", sums_floats(i) ? "some" : "fold", i), fold_of(in.code), element_of(in.dtype), A,
                             x));
  }
  void finish(std::size_t i, int group) {
    auto& in = code_[i];
    auto S = element_of(in.dtype);
    auto all = fmt::format("folded<{}>(fold{}, {}, shared)", group, i, fold_of(in.code));
    if (is_arg(in.code)) {
      text_.line(fmt::format("const auto b{} = {};", i, all));
      all = fmt::format("b{0}.at == 0x7fffffffffffffff ? 0 : b{0}.at", i);
    }
    text_.line(fmt::format("const Number<{0}> v{1} = result<{0}>({2});", S, i, all));
  }

  Around* const around_;
  Writer text_;
  std::vector<Instr> code_;
  std::vector<Info> info_;
  Dims dims_;
  std::size_t outer_ = 0;
  bool folds_ = false, stores_rows_ = false, serial_ = false, waits_ = false, empty_ = false;
  std::string points_;
};

}  // namespace

std::string instruction_text(const std::vector<Instr>& code, int which, const Dims& strides, Around* around) {
  return FusedText(code, std::size_t(which), strides, around).one(std::size_t(which));
}
Launch fused_launch(const Fused& f, Around* around) { return FusedText(f, around).make(); }

}  // namespace haliax::cuda
