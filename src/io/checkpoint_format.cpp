// The manifest of a checkpoint as JSON, with all checks of a manifest that is read.
#include "io/checkpoint_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "graph/axes.h"
#include "graph/fail.h"
#include "io/checksum.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "io/state_names.h"

namespace haliax {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kFormatName = "haliax checkpoint 1";
constexpr std::size_t kChecksumDigits = 16;

std::string checksum_text(std::uint64_t sum) { return fmt::format("{:016x}", sum); }
std::uint64_t checksum_of(std::string_view digits) {
  std::uint64_t sum = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), sum, 16);
  if (error != std::errc() || end != digits.data() + digits.size())
    throw CorruptCheckpoint("has an invalid checksum");
  return sum;
}

Json json_of(const SavedArray& a) {
  Json out{{"name", a.name},
           {"dtype", name_of(a.dtype)},
           {"axes", Json::array()},
           {"shape", a.shape},
           {"layers", a.layers}};
  for (auto& axis : a.axes) out["axes"].push_back({axis.name.text(), axis.size});
  out["blocks"] = Json::array();
  for (auto& b : a.blocks) {
    std::string checksums;
    for (auto s : b.checksums) checksums += checksum_text(s);
    out["blocks"].push_back({{"file", b.file},
                             {"begin", b.begin},
                             {"start", b.part.start},
                             {"sizes", b.part.sizes},
                             {"xxh64", checksums}});
  }
  return out;
}
Json json_of(const Manifest& m) {
  Json out{{"format", kFormatName},
           {"step", m.step},
           {"numbers", Json::array()},
           {"piece_bytes", kPieceBytes}};
  for (auto& [name, value] : m.numbers) out["numbers"].push_back({name, value});
  out["files"] = Json::array();
  for (auto& f : m.files)
    out["files"].push_back({{"name", f.name},
                            {"bytes", f.bytes},
                            {"head_bytes", f.head_bytes},
                            {"head_xxh64", checksum_text(f.head_checksum)}});
  out["arrays"] = Json::array();
  for (auto& a : m.arrays) out["arrays"].push_back(json_of(a));
  return out;
}

SavedBlock block_in(const Json& j, const SavedArray& a, const Manifest& m) {
  SavedBlock b;
  b.file = j.at("file").get<std::size_t>();
  b.begin = j.at("begin").get<std::int64_t>();
  b.part.start = j.at("start").get<program::Dims>();
  b.part.sizes = j.at("sizes").get<program::Dims>();
  std::string checksums = j.at("xxh64");
  bool inside = b.part.start.size() == a.axes.size() && b.part.sizes.size() == a.axes.size();
  for (std::size_t d = 0; inside && d < a.axes.size(); ++d)
    inside = b.part.start[d] >= 0 && b.part.sizes[d] >= 0 && b.part.sizes[d] <= a.axes[d].size &&
             b.part.start[d] <= a.axes[d].size - b.part.sizes[d];
  if (!inside) throw CorruptCheckpoint(a.name + " has a block outside of the array");
  const auto bytes = b.part.size() * bytes_of(a.dtype);
  if (b.file >= m.files.size() || b.begin < m.files[b.file].head_bytes ||
      bytes > m.files[b.file].bytes - b.begin)
    throw CorruptCheckpoint(a.name + " has a block outside of its file");
  if (std::int64_t(checksums.size()) !=
      (bytes + kPieceBytes - 1) / kPieceBytes * std::int64_t(kChecksumDigits))
    throw CorruptCheckpoint(a.name + " has a block with a wrong number of checksums");
  for (std::string_view left = checksums; !left.empty(); left.remove_prefix(kChecksumDigits))
    b.checksums.push_back(checksum_of(left.substr(0, kChecksumDigits)));
  return b;
}
SavedArray array_in(const Json& j, const Manifest& m, Complete complete) {
  SavedArray a;
  a.name = j.at("name");
  a.dtype = dtype_of(j.at("dtype").get<std::string>());
  for (auto& axis : j.at("axes"))
    a.axes.push_back({axis.at(0).get<std::string>(), axis.at(1).get<std::int64_t>()});
  a.shape = j.at("shape").get<std::vector<std::int64_t>>(),
  a.layers = j.at("layers").get<std::int64_t>();
  auto full_shape = a.shape;
  if (a.layers >= 0) full_shape.insert(full_shape.begin(), a.layers);
  if (a.layers >= 0 && (a.axes.empty() || a.axes[0].size != a.layers))
    throw CorruptCheckpoint(a.name + " has a layer count that does not match its axes");
  const auto bytes = bytes_of_shape(sizes_of(a.axes), a.dtype);
  if (!bytes || bytes != bytes_of_shape(full_shape, a.dtype))
    throw CorruptCheckpoint(a.name + " has a shape that does not match its axes");
  std::int64_t there = 0;
  for (auto& block : j.at("blocks")) {
    a.blocks.push_back(block_in(block, a, m));
    there += a.blocks.back().part.size();
  }
  if (complete == Complete::yes && there != axis_size(a.axes))
    throw CorruptCheckpoint(a.name + " has missing or duplicate blocks");
  return a;
}
Manifest manifest_of(const Json& j, Complete complete) {
  Manifest m;
  if (j.at("format") != kFormatName)
    throw CorruptCheckpoint("has an unknown format: " +
                            printable(j.at("format").get<std::string>()));
  if (j.at("piece_bytes") != kPieceBytes)
    throw CorruptCheckpoint("has checksums of another piece size");
  m.step = j.at("step").get<std::int64_t>();
  for (auto& n : j.at("numbers"))
    m.numbers.emplace_back(n.at(0).get<std::string>(), n.at(1).get<std::int64_t>());
  for (auto& f : j.at("files")) {
    SavedFile file{f.at("name"), f.at("bytes"), f.at("head_bytes"),
                   checksum_of(f.at("head_xxh64").get<std::string>())};
    if (file.name.empty() || file.name.find('/') != file.name.npos || file.head_bytes < 0 ||
        file.head_bytes > file.bytes)
      throw CorruptCheckpoint("has an invalid file entry");
    m.files.push_back(std::move(file));
  }
  for (auto& a : j.at("arrays")) m.arrays.push_back(array_in(a, m, complete));
  return m;
}

std::string signed_text(const Json& checkpoint) {
  const std::string text = checkpoint.dump();
  return fmt::format("{{\"checkpoint\":{},\"xxh64\":\"{}\"}}\n", text,
                     checksum_text(xxh64(std::as_bytes(std::span(text)))));
}

}  // namespace

SavedArray saved_array(const StateEntry& e) {
  return {e.path, e.array->dtype(), e.array->axes(), e.shape, e.layers};
}
std::vector<TensorHead> tensors_of(const SavedArray& a, const Part& part) {
  std::string slices;
  for (std::size_t d = a.layers < 0 ? 0 : 1; d < a.axes.size(); ++d)
    if (auto from = part.start[d], size = part.sizes[d]; size != a.axes[d].size)
      slices += fmt::format("{}{}={}:{}", slices.empty() ? "" : ",", a.axes[d].name.text(), from,
                            from + size);
  std::vector<TensorHead> out;
  if (a.layers < 0 && slices.empty()) return {{a.name, a.dtype, a.shape}};
  if (a.layers < 0) return {{a.name + "[" + slices + "]", a.dtype, part.sizes}};
  const auto first = part.start[0], end = first + part.sizes[0];
  const auto of_one =
      slices.empty() ? a.shape : program::Dims(part.sizes.begin() + 1, part.sizes.end());
  for (auto layer = first; layer < end; ++layer)
    out.push_back({name_of_layer(a.name, layer) + (slices.empty() ? "" : "[" + slices + "]"),
                   a.dtype, of_one});
  return out;
}

std::string manifest_text(const Manifest& m) {
  try {
    return signed_text(json_of(m));
  } catch (const Json::exception&) {
    throw Error("[Checkpoints] a name is not UTF-8");
  }
}
Manifest parse_manifest(const std::string& text, Complete complete) {
  try {
    auto root = Json::parse(text);
    if (signed_text(root.at("checkpoint")) != text)
      throw CorruptCheckpoint("is corrupt (checksum mismatch)");
    return manifest_of(root.at("checkpoint"), complete);
  } catch (const Json::exception&) {
    throw CorruptCheckpoint("is malformed");
  } catch (const Error& e) {  // an invalid dtype or axis
    throw CorruptCheckpoint("has an invalid value: " + without_op(e.what()));
  }
}
void add(Manifest& to, const Manifest& from, int rank) {
  const auto first = to.files.size();
  to.files.insert(to.files.end(), from.files.begin(), from.files.end());
  bool same = from.step == to.step && from.arrays.size() == to.arrays.size();
  for (std::size_t k = 0; same && k < to.arrays.size(); ++k) {
    auto& a = to.arrays[k];
    auto& b = from.arrays[k];
    same = a.name == b.name && a.axes == b.axes && a.dtype == b.dtype;
    for (auto block : b.blocks) {
      block.file += first;
      a.blocks.push_back(std::move(block));
    }
  }
  if (!same)
    throw Error(fmt::format(
        "[Checkpoints] process {} saves a different state or step than process 0", rank));
}

std::string file_name(int rank, int count) {
  return count == 1 ? "state.safetensors"
                    : fmt::format("state-{:05}-of-{:05}.safetensors", rank + 1, count);
}
std::string StepFolder::name() const {
  return fmt::format("step-{:08}{}", step, attempt ? fmt::format(".{}", attempt) : "");
}
std::vector<StepFolder> step_folders(const std::string& folder) {
  std::vector<StepFolder> out;
  std::error_code none;
  for (auto it = std::filesystem::directory_iterator(folder, none);
       it != std::filesystem::directory_iterator(); it.increment(none)) {
    auto name = it->path().filename().string();
    if (!name.starts_with("step-")) continue;
    StepFolder found;
    auto* end = name.data() + name.size();
    auto [dot, error] = std::from_chars(name.data() + 5, end, found.step);
    if (error == std::errc() && dot != end && *dot == '.')
      std::from_chars(dot + 1, end, found.attempt);
    if (error == std::errc() && found.name() == name) out.push_back(found);
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace haliax
