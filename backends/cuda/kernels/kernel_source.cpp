// Common parts of kernel sources; see kernel_source.h.
#include "kernel_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/scalar.h"

namespace haliax::cuda {

using program::Dims;
using program::View;

namespace {

constexpr const char* head =
    "const NAME_words a) {\n  const unsigned my_block = blockIdx_x, all_blocks = gridDim_x;\n";

std::string source_of(std::size_t words, const std::string& body, const char* bounds,
                      const std::string& from = head) {
  return fmt::format(
      "struct NAME_words {{ Word w[{}]; "
      "}};\nextern \"C\" __global__ void __launch_bounds__({}) NAME({}{}}}\n",
      std::max<std::size_t>(words, 1), bounds, from, body);
}
std::string body_of(const std::string& source) {
  const auto begin = source.find(head) + std::string(head).size();
  return source.substr(begin, source.rfind("}\n") - begin);
}

}  // namespace

std::string kernel_source(std::size_t words, const std::string& body, const char* bounds) {
  return source_of(words, body, bounds);
}
const char* element_of(DType d) {
  switch (d) {
    case DType::f32:
      return "float";
    case DType::f64:
      return "double";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i8:
      return "std::int8_t";
    case DType::i16:
      return "std::int16_t";
    case DType::i32:
      return "std::int32_t";
    case DType::i64:
      return "std::int64_t";
    case DType::u8:
      return "std::uint8_t";
    case DType::u16:
      return "std::uint16_t";
    case DType::u32:
      return "std::uint32_t";
    case DType::u64:
      return "std::uint64_t";
    case DType::boolean:
      return "bool";
  }
  return "";
}
std::int64_t bits_of(DType d, double number, std::int64_t integer) {
  auto v = scalar::rounded(d, {number, integer});
  if (d == DType::f64) return std::bit_cast<std::int64_t>(v.real);
  return is_float(d) ? std::int64_t(std::bit_cast<std::uint32_t>(float(v.real))) : v.integer;
}

std::string fold_of(program::Monoid m) {
  constexpr const char* names[] = {"Sum()", "Prod()", "Max()", "Min()"};
  return names[int(m)];
}
std::int64_t start_bits(program::Monoid m, DType d) {
  if (m == program::Monoid::sum) return 0;
  if (m == program::Monoid::prod) return bits_of(d, 1, 1);
  auto v = m == program::Monoid::max ? scalar::lowest(d) : scalar::highest(d);
  return bits_of(d, v.real, v.integer);
}

std::string SourceWriter::argument(KernelArgument w) {
  if (!nest_) {
    arguments_.push_back(std::move(w));
    return fmt::format("a.w[{}]", arguments_.size() - 1);
  }
  std::string before, moved;
  std::erase_if(w.loops, [&](auto& l) {
    if (!nest_->loops.count(l.first)) return false;
    moved += fmt::format(" + l{} * {}", l.first, argument(l.second));
    return true;
  });
  if (auto at = nest_->places.find(w.slot); at != nest_->places.end()) {
    before = at->second.from + std::string(" + ");
    w.slot = -1;
    w.value += at->second.bytes;
  }
  nest_->arguments.push_back(std::move(w));
  auto mine = fmt::format("a.w[{}]", nest_->arguments.size() - 1);
  return before.empty() && moved.empty() ? mine : "(" + before + mine + moved + ")";
}
std::string SourceWriter::base(const View& v, bool writes) {
  KernelArgument w{v.slot, v.offset * bytes_of(v.dtype), {}, writes};
  for (auto& t : v.terms)
    if (t.loop >= 0) w.loops.push_back({t.loop, t.stride * bytes_of(v.dtype)});
  return argument(std::move(w));
}
std::string SourceWriter::sum_of(const Dims& strides) {
  std::string out;
  for (std::size_t d = 0; d < strides.size(); ++d) {
    if (strides[d] == 0) continue;
    out += out.empty() ? "" : " + ";
    out += strides[d] == 1 ? fmt::format("i{}", d)
                           : fmt::format("i{} * I({})", d, argument(strides[d]));
  }
  return out;
}
std::string SourceWriter::at(const View& v, const Dims& strides) {
  auto out = sum_of(strides);
  for (auto& t : v.terms) {
    if (t.slot < 0) continue;
    auto place = argument(KernelArgument{t.slot, t.slot_offset * bytes_of(t.slot_dtype)});
    out += fmt::format("{}term<{}>({}, {}) * {}", out.empty() ? "" : " + ",
                       element_of(t.slot_dtype), place, argument(t.limit), argument(t.stride));
  }
  return out.empty() ? "0" : out;
}
void SourceWriter::indices(const std::string& position, const Dims& dims, std::size_t first,
                           int few) {
  if (dims.empty()) return;
  const auto left = fmt::format("r{}", first),
             times = few > 1 ? fmt::format(" * {}", few) : std::string();
  if (dims.size() > 1) line(fmt::format("I {} = {};", left, position));
  for (std::size_t d = dims.size(); d-- > 1;) {
    auto size = argument(dims[d]);
    line(fmt::format("const I i{0} = {1} % I({2}){3}; {1} /= I({2});", first + d, left, size,
                     d + 1 == dims.size() ? times : ""));
  }
  line(fmt::format("const I i{} = {}{};", first, dims.size() > 1 ? left : position,
                   dims.size() == 1 ? times : ""));
}
Launch guarded(Launch l, KernelArgument flag) {
  const auto test = fmt::format("  if (!load<bool>(a.w[{}], 0)) return;\n", l.arguments.size());
  l.arguments.push_back(std::move(flag));
  l.source = source_of(l.arguments.size(), test + body_of(l.source), l.bounds);
  return l;
}

// ---- merged launches ----
// The arguments are the number of launches, the shared arguments, and a record for each launch: its
// first block, its number of blocks, and its own arguments.
std::size_t most_joined(const std::vector<bool>& differs) {
  const auto own = std::count(differs.begin(), differs.end(), true),
             all = std::ptrdiff_t(differs.size()) - own;
  return std::size_t(std::max<std::int64_t>((kMaxArguments - 1 - all) / (2 + own), 1));
}
Launch joined(const std::vector<Launch>& all) {
  const auto& first = all.front();
  std::vector<bool> differs(first.arguments.size());
  for (auto& l : all)
    for (std::size_t k = 0; k < differs.size(); ++k)
      differs[k] = differs[k] || l.arguments[k] != first.arguments[k];
  const auto own = std::size_t(std::count(differs.begin(), differs.end(), true)),
             records = 1 + differs.size() - own,
             // a power of two: few sources for many counts
      each = 2 + own, room = std::min(std::bit_ceil(all.size()), most_joined(differs));
  Launch out = first;
  out.arguments = {KernelArgument{-1, std::int64_t(all.size())}};
  out.blocks = 0;
  std::vector<std::string> places;  // by argument, as source
  std::size_t owned = 2;
  for (std::size_t k = 0; k < differs.size(); ++k) {
    places.push_back(differs[k] ? fmt::format("own[{}]", owned++)
                                : fmt::format("a.w[{}]", out.arguments.size()));
    if (!differs[k]) out.arguments.push_back(first.arguments[k]);
  }
  for (auto& l : all) {
    out.arguments.push_back({-1, out.blocks});
    out.arguments.push_back({-1, l.blocks});
    out.blocks += l.blocks;
    for (std::size_t k = 0; k < differs.size(); ++k)
      if (differs[k]) out.arguments.push_back(l.arguments[k]);
  }
  out.arguments.resize(records + room * each);
  std::string body;
  const auto source = body_of(first.source);
  for (std::size_t at = 0, next = 0; at < source.size(); at = next) {
    const auto word = std::min(source.find("a.w[", at), source.size());
    body += source.substr(at, word - at);
    next = word;
    if (word == source.size()) break;
    body += places[std::stoul(source.substr(word + 4))];
    next = source.find(']', word) + 1;
  }
  const auto from = fmt::format(
      "const __grid_constant__ NAME_words a) {{\n  const Word* const own = a.w + {0} + {1} * "
      "record_of(a.w + {0}, {1}, a.w[0], "
      "blockIdx_x);\n  const unsigned my_block = blockIdx_x - unsigned(own[0]), all_blocks = "
      "unsigned(own[1]);\n",
      records, each);
  out.source = source_of(out.arguments.size(), body, first.bounds, from);
  return out;
}
Launch SourceWriter::launch(std::int64_t points, bool waits, const char* bounds) {
  constexpr int threads = 256;
  constexpr std::int64_t most = 1 << 20;  // blocks; each iterates further
  constexpr std::size_t many = 20;        // arguments, mostly addresses and strides
  if (!bounds) bounds = needs_64_bits || arguments_.size() > many ? "256, 3" : "1024";
  Launch out{.bounds = bounds};
  auto source =
      fmt::format("  using I = {};\n{}", needs_64_bits ? "std::int64_t" : "std::int32_t", body_);
  out.source = nest_ ? std::move(source) : kernel_source(arguments_.size(), source, out.bounds);
  out.arguments = arguments_;
  out.blocks = std::min(most, (points + threads - 1) / threads);
  out.threads = threads;
  out.waits = waits;
  return out;
}

}  // namespace haliax::cuda
