// safetensors: eight bytes with the size of a JSON header, the header, then the contiguous data of
// the tensors:
//   {"wte.weight": {"dtype": "F32", "shape": [512, 32], "data_offsets": [0, 65536]}, ...,
//    "__metadata__": {"format": "pt"}}
// Offsets count from the end of the header. The data has no gaps and no overlaps.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "base/name.h"
#include "graph/fail.h"
#include "graph/node.h"
#include "haliax/io.h"
#include "io/file.h"
#include "io/safetensors.h"

namespace haliax {
namespace {

using nlohmann::json;
static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

constexpr std::int64_t max_header = 100'000'000;  // the limit of the reference reader
constexpr const char* metadata_key = "__metadata__";

constexpr std::pair<DType, std::string_view> safetensors_names[] = {
    {DType::f32, "F32"},     {DType::f64, "F64"}, {DType::bf16, "BF16"}, {DType::f16, "F16"},
    {DType::i8, "I8"},       {DType::i16, "I16"}, {DType::i32, "I32"},   {DType::i64, "I64"},
    {DType::u8, "U8"},       {DType::u16, "U16"}, {DType::u32, "U32"},   {DType::u64, "U64"},
    {DType::boolean, "BOOL"}};

bool is_boolean_data(const std::vector<std::byte>& data) {
  return std::all_of(data.begin(), data.end(), [](std::byte b) { return b <= std::byte{1}; });
}

// ---- reading ----

class Reader {
 public:
  Reader(const char* op, const std::string& path, InputFile& file)
      : op_(op), path_(path), file_(file) {}

  SafetensorsHeader read() {
    const std::int64_t file_bytes = file_.size();
    std::uint64_t header_bytes = 0;
    if (file_bytes < 8)
      fail(fmt::format("is too short to be a safetensors file: {} bytes", file_bytes));
    file_.read(&header_bytes, 8);
    if (header_bytes > std::uint64_t(max_header) || std::int64_t(header_bytes) > file_bytes - 8)
      fail(
          fmt::format("is truncated or not a safetensors file: it specifies a header of {} bytes, "
                      "but has {} in total",
                      header_bytes, file_bytes));
    std::string header(header_bytes, '\0');
    file_.read(header.data(), std::int64_t(header_bytes));
    const json root = parse(header);

    for (const auto& [name, fields] : root.items()) {
      if (name == metadata_key)
        read_metadata(fields);
      else
        result_.tensors.push_back(entry(name, fields));
    }
    const auto data = 8 + std::int64_t(header_bytes);
    check_layout(file_bytes - data);
    for (auto& t : result_.tensors) t.begin += data;
    return std::move(result_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { haliax::fail(op_, path_ + " " + what); }
  [[noreturn]] void fail(std::string_view tensor, const std::string& what) const {
    haliax::fail(op_, path_ + ": tensor " + printable(tensor) + " " + what);
  }

  // Parses the header. It is at most three levels deep and has no duplicate names, which JSON
  // parsers would silently merge.
  json parse(const std::string& header) const {
    std::set<std::string> names;
    const auto check = [&](int depth, json::parse_event_t event, json& value) {
      const bool opens =
          event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
      if (opens && depth > 2) fail("is corrupt: its header is nested too deeply");
      if (event == json::parse_event_t::key && depth == 1 &&
          !names.insert(value.get<std::string>()).second)
        fail(value.get<std::string>(), "is in the header twice");
      return true;
    };
    try {
      json root = json::parse(header, check);
      if (root.is_object()) return root;
    } catch (const json::exception&) {}
    fail("is corrupt or not a safetensors file: its header is not a JSON object");
  }

  void read_metadata(const json& fields) {
    if (!fields.is_object()) fail("is corrupt: __metadata__ is not an object of strings");
    for (const auto& [key, value] : fields.items()) {
      if (!value.is_string()) fail("is corrupt: __metadata__ is not an object of strings");
      result_.metadata.emplace_back(key, value.get<std::string>());
    }
  }

  StoredTensor entry(const std::string& name, const json& fields) const {
    if (!fields.is_object() || fields.size() != 3 || !fields.contains("dtype") ||
        !fields["dtype"].is_string() || !fields.contains("shape") ||
        !fields.contains("data_offsets"))
      fail(name, "must have exactly the fields dtype, shape and data_offsets");
    StoredTensor t;
    t.name = name;
    const std::string dtype = fields["dtype"];
    const auto known = std::find_if(std::begin(safetensors_names), std::end(safetensors_names),
                                    [&](auto& n) { return dtype == n.second; });
    if (known == std::end(safetensors_names))
      fail(name, "has dtype " + printable(dtype) + ", which is not supported");
    t.dtype = known->first;
    t.shape = integers(name, "shape", fields["shape"]);
    const auto offsets = integers(name, "data_offsets", fields["data_offsets"]);
    if (offsets.size() != 2 || offsets[0] > offsets[1])
      fail(name, "has data_offsets that are not a begin and an end");
    t.begin = offsets[0];
    t.bytes = offsets[1] - offsets[0];
    const auto requested = bytes_of_shape(t.shape, t.dtype);
    if (!requested) fail(name, "has a shape that is too large");
    if (*requested != t.bytes)
      fail(name, fmt::format("has {} bytes of data, but its shape and dtype {} require {}", t.bytes,
                             dtype, *requested));
    return t;
  }

  std::vector<std::int64_t> integers(const std::string& name, const char* field,
                                     const json& value) const {
    const auto is_size = [](const json& n) {
      return n.is_number_unsigned() && n.get<std::uint64_t>() <= INT64_MAX;
    };
    if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_size))
      fail(name, fmt::format("has a {} that is not a list of sizes", field));
    return value.get<std::vector<std::int64_t>>();
  }

  // Sorts the tensors by position, and checks that every byte of the data belongs to exactly one
  // tensor.
  void check_layout(std::int64_t data_bytes) {
    auto& all = result_.tensors;
    std::sort(all.begin(), all.end(), [](auto& a, auto& b) {
      return std::pair(a.begin, a.bytes) < std::pair(b.begin, b.bytes);
    });
    std::int64_t at = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const StoredTensor& t = all[i];
      if (t.begin < at) fail(t.name, "overlaps tensor " + printable(all[i - 1].name));
      if (t.begin > at)
        fail(t.name, "leaves a gap of " + std::to_string(t.begin - at) + " bytes before it");
      if (t.bytes > data_bytes - t.begin)
        fail(
            t.name,
            fmt::format("ends at byte {} of the data, but there are only {}: the file is truncated",
                        t.begin + t.bytes, data_bytes));
      at = t.begin + t.bytes;
    }
    if (at != data_bytes)
      fail("has " + std::to_string(data_bytes - at) + " bytes after the last tensor");
  }

  const char* op_;
  std::string path_;
  InputFile& file_;
  SafetensorsHeader result_;
};

// ---- writing ----

// Returns the tensors in file order: dtypes with larger elements first, so that each tensor is
// aligned, then by name.
std::vector<const Tensor*> in_file_order(const TensorFile& file) {
  std::vector<const Tensor*> order;
  for (const Tensor& t : file.tensors) order.push_back(&t);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) {
    return std::pair(-bytes_of(a->dtype), std::string_view(a->name)) <
           std::pair(-bytes_of(b->dtype), std::string_view(b->name));
  });
  return order;
}

[[noreturn]] void fail_writing(const std::string& tensor, const std::string& what) {
  fail("write_safetensors", "tensor " + printable(tensor) + " " + what);
}

}  // namespace

SafetensorsHeader read_safetensors_header(const char* op, const std::string& path,
                                          InputFile& file) {
  return Reader(op, path, file).read();
}

std::string safetensors_head(const std::vector<TensorHead>& order, const Metadata& metadata) {
  json root = json::object();
  std::int64_t at = 0;
  for (const TensorHead& t : order) {
    const auto bytes = bytes_of_shape(t.shape, t.dtype);
    if (!bytes) fail_writing(t.name, "has a shape that is too large");
    if (t.name == metadata_key) fail_writing(t.name, "has a name that the format reserves");
    if (root.contains(t.name)) fail_writing(t.name, "occurs twice");
    const auto known = std::find_if(std::begin(safetensors_names), std::end(safetensors_names),
                                    [&](auto& n) { return n.first == t.dtype; });
    root[t.name] = {
        {"dtype", known->second}, {"shape", t.shape}, {"data_offsets", {at, at + *bytes}}};
    at += *bytes;
  }
  for (const auto& [key, value] : metadata) root[metadata_key][key] = value;
  try {
    std::string header = root.dump();
    header.resize((header.size() + 7) / 8 * 8, ' ');  // aligns the data
    if (std::int64_t(header.size()) > max_header)
      fail("write_safetensors", "the header is larger than the format allows");
    const std::uint64_t header_bytes = header.size();
    return std::string(reinterpret_cast<const char*>(&header_bytes), 8) + header;
  } catch (const json::exception&) {
    fail("write_safetensors", "a name or a metadata entry is not UTF-8");
  }
}

const Tensor* TensorFile::find(std::string_view name) const {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](auto& t) { return t.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

const Tensor& TensorFile::at(std::string_view name, SourceLocation at) const {
  if (const Tensor* found = find(name)) return *found;
  CallSite here(at);
  fail("read_safetensors",
       "there is no tensor " + printable(name) + did_you_mean(name, tensors, &Tensor::name));
}

TensorFile read_safetensors(const std::string& path, SourceLocation at) {
  CallSite here(at);
  InputFile file("read_safetensors", path);
  auto header = read_safetensors_header("read_safetensors", path, file);
  TensorFile out{{}, std::move(header.metadata)};
  for (auto& t : header.tensors) {
    Tensor tensor{std::move(t.name), t.dtype, std::move(t.shape), {}};
    tensor.data.resize(std::size_t(t.bytes));
    file.read_at(t.begin, tensor.data.data(), t.bytes);
    if (tensor.dtype == DType::boolean && !is_boolean_data(tensor.data))
      fail("read_safetensors", "{}: tensor {} holds a bool that is not 0 or 1", path,
           printable(tensor.name));
    out.tensors.push_back(std::move(tensor));
  }
  std::sort(out.tensors.begin(), out.tensors.end(),
            [](auto& a, auto& b) { return a.name < b.name; });
  return out;
}

void write_safetensors(const std::string& path, const TensorFile& file, SourceLocation at) {
  CallSite here(at);
  const auto order = in_file_order(file);
  std::vector<TensorHead> heads;
  for (const Tensor* t : order) {
    const auto requested = bytes_of_shape(t->shape, t->dtype);
    if (!requested || *requested != std::int64_t(t->data.size()))
      fail_writing(t->name, "has " + std::to_string(t->data.size()) +
                                " bytes of data, which does not match its shape and dtype");
    if (t->dtype == DType::boolean && !is_boolean_data(t->data))
      fail_writing(t->name, "holds a bool that is not 0 or 1");
    heads.push_back({t->name, t->dtype, t->shape});
  }
  const std::string head = safetensors_head(heads, file.metadata);
  std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span(head))};
  for (const Tensor* t : order) parts.push_back(t->data);
  replace_file("write_safetensors", path, parts);
}
TensorFile load_state_dict(const std::string& path, SourceLocation at) {
  return read_safetensors(path, at);
}
void save_state_dict(const TensorFile& state_dict, const std::string& path, SourceLocation at) {
  write_safetensors(path, state_dict, at);
}

}  // namespace haliax
