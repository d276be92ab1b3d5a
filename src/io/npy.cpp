// NumPy's files. A .npy file holds a magic string, a version, the size of the header, the header
// and the values. The header is a Python literal:
//   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
// An .npz file is a zip archive of .npy files.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <span>

#include "graph/axes.h"
#include "graph/fail.h"
#include "haliax/io.h"
#include "io/file.h"
#include "io/npy.h"
#include "io/zip.h"

namespace haliax {
namespace {

static_assert(std::endian::native == std::endian::little, "values are stored as in memory");
using Bytes = std::span<const std::byte>;
constexpr std::string_view kMagic = "\x93NUMPY";

constexpr std::pair<std::string_view, DType> npy_names[] = {
    {"f4", DType::f32}, {"f8", DType::f64}, {"f2", DType::f16}, {"i1", DType::i8},
    {"i2", DType::i16}, {"i4", DType::i32}, {"i8", DType::i64}, {"u1", DType::u8},
    {"u2", DType::u16}, {"u4", DType::u32}, {"u8", DType::u64}, {"b1", DType::boolean}};

// A parser of the header, a Python literal of names, strings, True and False, integers, and
// brackets.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, std::string file) : text_(text), file_(std::move(file)) {}
  NpyHeader read() {
    bool has_dtype = false, has_order = false, has_shape = false;
    expect('{');
    while (!next_is('}')) {
      auto name = quoted();
      expect(':');
      if (name == "descr") {
        dtype();
        has_dtype = true;
      } else if (name == "fortran_order") {
        out_.fortran = truth();
        has_order = true;
      } else if (name == "shape") {
        shape();
        has_shape = true;
      } else
        fail(fmt::format("has a header with an unknown field {}", printable(name)));
      if (!next_is(',')) {
        expect('}');
        break;
      }
    }
    space();
    if (at_ != text_.size() || !has_dtype || !has_order || !has_shape) corrupt();
    return out_;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    haliax::fail("read_npy", "{} {}", file_, what);
  }
  [[noreturn]] void corrupt() const { fail("has a corrupt header: " + printable(text_)); }
  void space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool next_is(char c) {
    space();
    bool is = at_ < text_.size() && text_[at_] == c;
    at_ += is;
    return is;
  }
  void expect(char c) {
    if (!next_is(c)) corrupt();
  }
  std::string_view quoted() {
    space();
    char quote = at_ < text_.size() ? text_[at_] : ' ';
    if (quote != '\'' && quote != '"') corrupt();
    auto end = text_.find(quote, at_ + 1);
    if (end == text_.npos) corrupt();
    auto out = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return out;
  }
  bool truth() {
    space();
    for (std::string_view word : {"True", "False"})
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return word == "True";
      }
    corrupt();
  }
  void dtype() {
    space();
    if (text_.substr(at_, 1) == "[") fail("has a structured dtype, which is not supported");
    auto name = quoted();
    char order = name.empty() ? ' ' : name[0];
    bool known = order == '<' || order == '>' || order == '|' || order == '=';
    auto width = name.substr(name.empty() ? 0 : 1);
    auto found = std::find_if(std::begin(npy_names), std::end(npy_names),
                              [&](auto& f) { return f.first == width; });
    if (!known || found == std::end(npy_names))
      fail(
          fmt::format("has the NumPy dtype {}, which is not supported; cast it "
                      "with astype before np.save",
                      printable(name)));
    out_.dtype = found->second;
    out_.swapped = order == '>' && bytes_of(out_.dtype) > 1;
  }
  void shape() {
    expect('(');
    while (!next_is(')')) {
      std::int64_t size = 0;
      space();
      auto start = at_;
      for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])); ++at_)
        if (__builtin_mul_overflow(size, 10, &size) ||
            __builtin_add_overflow(size, text_[at_] - '0', &size))
          fail("has a shape that is too large");
      if (at_ == start) corrupt();
      if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // a Python 2 integer
      out_.shape.push_back(size);
      if (!next_is(',')) {
        expect(')');
        break;
      }
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string file_;
  NpyHeader out_;
};

// Converts column-major data to row-major.
std::vector<std::byte> row_major(Bytes data, const std::vector<std::int64_t>& shape,
                                 std::size_t width) {
  std::vector<std::byte> out(data.size());
  auto strides = program::row_major({shape.rbegin(), shape.rend()});
  std::reverse(strides.begin(), strides.end());
  program::copy_on_host(
      {shape, std::int64_t(width), out.data(), program::row_major(shape), data.data(), strides});
  return out;
}

}  // namespace

NpyHeader npy_header(Bytes file, const std::string& name) {
  auto fail = [&](const std::string& what) { haliax::fail("read_npy", "{} {}", name, what); };
  auto text = [&](std::size_t from, std::size_t n) {
    return std::string_view(reinterpret_cast<const char*>(file.data()) + from, n);
  };
  if (file.size() < 10 || text(0, 6) != kMagic) fail("is truncated or not a .npy file");
  const auto version = int(file[6]);
  if (version < 1 || version > 3)
    fail(fmt::format("has version {} of the format, which is not supported", version));
  const std::size_t start = version == 1 ? 10 : 12;
  std::size_t size = 0;
  if (file.size() < start) fail("is truncated");
  for (auto k = start; k-- > 8;) size = size << 8 | std::size_t(file[k]);
  if (const auto left = file.size() - start; size > left)
    fail(fmt::format("is truncated: its header has {} bytes, but {} follow", size, left));
  auto header = HeaderReader(text(start, size), name).read();
  header.begin = start + size;
  const auto requested = bytes_of_shape(header.shape, header.dtype);
  if (!requested) fail("has a shape that is too large");
  const auto found = std::int64_t(file.size() - header.begin);
  if (*requested > found)
    fail(
        fmt::format("is truncated: its values require {} bytes, but {} follow", *requested, found));
  if (*requested < found) fail(fmt::format("has {} bytes after its values", found - *requested));
  return header;
}

namespace {

Tensor tensor_in(Bytes file, const std::string& name) {
  const auto header = npy_header(file, name);
  const auto data = file.subspan(header.begin);
  const auto width = std::size_t(bytes_of(header.dtype));
  Tensor out;
  out.dtype = header.dtype;
  out.shape = header.shape;
  if (header.fortran && header.shape.size() > 1)
    out.data = row_major(data, header.shape, width);
  else
    out.data.assign(data.begin(), data.end());
  if (header.swapped)
    for (std::size_t k = 0; k < out.data.size(); k += width)
      std::reverse(out.data.begin() + std::ptrdiff_t(k),
                   out.data.begin() + std::ptrdiff_t(k + width));
  if (header.dtype == DType::boolean)
    for (auto& b : out.data) b = std::byte(b != std::byte(0));
  return out;
}

// Returns the part of the file before the values.
std::string head_of(const char* op, const Tensor& t) {
  auto known = std::find_if(std::begin(npy_names), std::end(npy_names),
                            [&](auto& f) { return f.second == t.dtype; });
  auto what = t.name.empty() ? std::string("the tensor") : "tensor " + printable(t.name);
  if (known == std::end(npy_names))
    fail(op, "{} is {}, which NumPy does not support; cast it to f32", what, name_of(t.dtype));
  if (bytes_of_shape(t.shape, t.dtype) != std::int64_t(t.data.size()))
    fail(op, "{} has {} bytes of data, which does not match its shape and dtype", what,
         t.data.size());
  std::string sizes;
  for (auto n : t.shape) sizes += std::to_string(n) + ", ";
  if (t.shape.size() > 1) sizes.resize(sizes.size() - 2);
  if (t.shape.size() == 1) sizes.pop_back();
  auto header = fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}), }}",
                            bytes_of(t.dtype) > 1 ? '<' : '|', known->first, sizes);
  const std::size_t before = 10;
  // pads so that the values are aligned to 64 bytes
  header.resize((before + header.size() + 1 + 63) / 64 * 64 - before - 1, ' ');
  header += '\n';
  std::string out(kMagic);
  for (auto b : {std::size_t(1), std::size_t(0), header.size() & 255, header.size() >> 8})
    out += char(b);
  return out + header;
}

}  // namespace

Tensor read_npy(const std::string& path, SourceLocation at) {
  CallSite here(at);
  return tensor_in(contents_of("read_npy", path), path);
}

TensorFile read_npz(const std::string& path, SourceLocation at) {
  CallSite here(at);
  const auto archive = contents_of("read_npz", path);
  TensorFile out;
  std::string reading = path;
  try {
    for (auto& e : zip::entries_of(archive)) {
      reading = path + ": " + printable(e.name);
      auto t = tensor_in(zip::unpacked(e), reading);
      t.name = e.name.ends_with(".npy") ? e.name.substr(0, e.name.size() - 4) : e.name;
      if (out.find(t.name)) throw zip::CorruptZip{"occurs twice"};
      out.tensors.push_back(std::move(t));
    }
  } catch (const zip::CorruptZip& broken) {
    fail("read_npz", "{} {}", reading, broken.what);
  }
  std::sort(out.tensors.begin(), out.tensors.end(),
            [](auto& a, auto& b) { return a.name < b.name; });
  return out;
}

void write_npy(const std::string& path, const Tensor& t, SourceLocation at) {
  CallSite here(at);
  const auto head = head_of("write_npy", t);
  replace_file("write_npy", path, {std::as_bytes(std::span(head)), t.data});
}

void write_npz(const std::string& path, const TensorFile& file, SourceLocation at) {
  CallSite here(at);
  std::vector<std::string> heads;
  for (auto& t : file.tensors) heads.push_back(head_of("write_npz", t));
  std::vector<zip::Stored> entries;
  for (std::size_t k = 0; k < heads.size(); ++k) {
    auto& t = file.tensors[k];
    if (t.name.empty() || file.find(t.name) != &t)
      fail("write_npz", t.name.empty() ? "a tensor has no name"
                                       : "tensor " + printable(t.name) + " occurs twice");
    entries.push_back({t.name + ".npy", {std::as_bytes(std::span(heads[k])), t.data}});
  }
  const auto frame = zip::frame_of(entries);
  std::vector<Bytes> parts;
  for (std::size_t k = 0; k < entries.size(); ++k) {
    parts.push_back(frame.before[k]);
    parts.insert(parts.end(), entries[k].parts.begin(), entries[k].parts.end());
  }
  parts.push_back(frame.end);
  replace_file("write_npz", path, parts);
}

NamedArray from_tensor(const Tensor& t, const AxisSpec& axes, SourceLocation at) {
  CallSite here(at);
  if (sizes_of(axes) != t.shape)
    fail("from_tensor", fmt::format("the tensor has shape ({}), but the axes are {}",
                                    fmt::join(t.shape, ", "), to_string(axes.axes())));
  return from_bytes(t.data, t.dtype, axes, at);
}
Tensor to_tensor(const NamedArray& a, std::string name, SourceLocation at) {
  CallSite here(at);
  Tensor out;
  out.name = std::move(name);
  out.dtype = a.dtype();
  out.shape = sizes_of(a.axes());
  out.data = a.bytes(at);
  return out;
}

}  // namespace haliax
