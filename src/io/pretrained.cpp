// Weights of model folders: reading from one or several safetensors files, and writing.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "base/name.h"
#include "graph/fail.h"
#include "graph/node.h"
#include "haliax/huggingface.h"
#include "io/convert.h"
#include "io/file.h"
#include "io/joint_errors.h"
#include "io/load_state.h"
#include "io/save_state.h"
#include "io/state_names.h"

namespace haliax {
namespace {

constexpr const char* kLoadFolder = "load_pretrained";
constexpr const char* kSaveFolder = "save_pretrained";
constexpr const char* kOneFile = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

bool is_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

// ---- reading ----

using WeightMap = std::map<std::string, std::string>;  // file of each tensor

WeightMap read_index(const std::filesystem::path& path) {
  const auto bytes = contents_of(kLoadFolder, path.string());
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  auto corrupt = [&](const char* why) { fail(kLoadFolder, "{} {}", path.string(), why); };
  WeightMap out;
  try {
    const auto root = nlohmann::json::parse(text, text + bytes.size());
    for (auto& [tensor, file] : root.at("weight_map").items())
      out[tensor] = file.get<std::string>();
  } catch (const nlohmann::json::exception&) {
    corrupt("is corrupt: it has no weight_map from tensors to files");
  }
  for (auto& [tensor, file] : out)
    if (std::filesystem::path(file).filename() != file || file == "..")
      corrupt("is corrupt: a file of its weight_map is not in the folder");
  if (out.empty()) corrupt("lists no tensors");
  return out;
}

// The tensors of the safetensors files of a folder.
class PretrainedFiles final : public TensorSource {
 public:
  explicit PretrainedFiles(const std::string& path) : folder_(path) {
    std::error_code ignored;
    if (is_file(folder_))
      add(folder_, {});
    else if (!std::filesystem::is_directory(folder_, ignored))
      fail(kLoadFolder, "{} is neither a folder nor a file", path);
    else if (is_file(folder_ / kOneFile))
      add(folder_ / kOneFile, {});
    else if (is_file(folder_ / kIndex))
      add_index();
    else
      fail_without_weights();
  }
  void read(const StoredTensor& t, std::int64_t offset, void* to,
            std::int64_t bytes) const override {
    files_[t.file]->read_at(t.begin + offset, to, bytes);
  }

 private:
  [[noreturn]] void fail_without_weights() const {
    const auto path = folder_.string();
    std::error_code ignored;
    std::vector<std::string> pickled;
    for (auto& f : std::filesystem::directory_iterator(folder_, ignored))
      if (f.path().extension() == ".bin" || f.path().extension() == ".pt")
        pickled.push_back(f.path().filename().string());
    if (!pickled.empty())
      fail(kLoadFolder, "{} has {}, which is not read; save the model as safetensors", path,
           *std::min_element(pickled.begin(), pickled.end()));
    fail(kLoadFolder, "{} has no weights: neither {} nor {}", path, kOneFile, kIndex);
  }
  void add_index() {
    const auto index = read_index(folder_ / kIndex);
    std::set<std::string> names;
    for (auto& [tensor, file] : index) names.insert(file);
    for (auto& name : names)
      if (!is_file(folder_ / name))
        fail(kLoadFolder, "{} is missing; {} lists it", (folder_ / name).string(), kIndex);
    for (auto& name : names) add(folder_ / name, index);
    sort();
    for (auto& [tensor, file] : index)
      if (!find(tensor))
        fail(kLoadFolder, "{} lacks the tensor {}; {} lists it there: is it of another model?",
             (folder_ / file).string(), printable(tensor), kIndex);
  }
  void add(const std::filesystem::path& path, const WeightMap& index) {
    auto file = std::make_unique<InputFile>(kLoadFolder, path.string());
    auto header = read_safetensors_header(kLoadFolder, path.string(), *file);
    for (auto& t : header.tensors) {
      const auto listed = index.find(t.name);
      if (!index.empty() && listed == index.end())
        fail(kLoadFolder, "{} has the tensor {}, which {} does not list: is it of another model?",
             path.string(), printable(t.name), kIndex);
      if (listed != index.end() && listed->second != path.filename()) continue;
      t.file = files_.size();
      tensors_.push_back(std::move(t));
    }
    files_.push_back(std::move(file));
    sort();
  }

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<InputFile>> files_;
};

// Removes a prefix that no tensor has from the names of the entries.
void remove_base_prefix(std::vector<StateEntry>& entries, const TensorSource& source,
                        const LoadPretrainedOptions& o) {
  if (o.base_prefix.empty()) return;
  const auto base = o.base_prefix + ".", full = with_prefix(o.prefix, base);
  for (auto& t : source.tensors())
    if (t.name.starts_with(full)) return;
  for (auto& e : entries)
    if (e.path.starts_with(base)) e.path.erase(0, base.size());
}

// ---- writing ----

struct TensorToWrite {
  std::size_t entry;
  std::vector<std::int64_t> index;  // positions of the split axes
  TensorHead head;
  std::int64_t bytes;
};
using TensorsOfFile = std::vector<TensorToWrite>;

// Distributes the tensors to files, in the order of the model.
std::vector<TensorsOfFile> files_of(const std::vector<StateEntry>& entries,
                                    const SavePretrainedOptions& options) {
  std::vector<TensorsOfFile> files(1);
  std::set<std::string> seen;
  std::int64_t size = 0;
  for (std::size_t k = 0; k < entries.size(); ++k) {
    auto& e = entries[k];
    auto dtype = e.array->dtype();
    if (options.dtype && is_float(dtype)) dtype = *options.dtype;
    for (auto& [path, index] : tensors_of(e)) {
      const auto name = with_prefix(options.prefix, path);
      if (!seen.insert(name).second)
        fail(kSaveFolder, "two arrays have the name {}; rename one of their fields", name);
      const auto bytes = program::points(e.shape) * bytes_of(dtype);
      if (size > 0 && size + bytes > options.max_shard_bytes) {
        files.emplace_back();
        size = 0;
      }
      files.back().push_back({k, index, {name, dtype, e.shape}, bytes});
      size += bytes;
    }
  }
  // larger elements first, so that each tensor is aligned
  for (auto& f : files)
    std::stable_sort(f.begin(), f.end(), [](auto& a, auto& b) {
      return bytes_of(a.head.dtype) > bytes_of(b.head.dtype);
    });
  return files;
}
std::string name_of_file(std::size_t k, std::size_t count) {
  return count == 1 ? kOneFile : fmt::format("model-{:05}-of-{:05}.safetensors", k + 1, count);
}

// Writes the tensors of one file. `out` is null on processes that only take part in the reads.
// Returns an error as text: the reads continue after it, because other processes take part in them.
std::string write_tensors(const std::vector<StateEntry>& entries, const TensorsOfFile& tensors,
                          OutputFile* out) {
  std::string wrong;
  std::unique_ptr<EntryBytes> bytes;
  std::vector<std::byte> converted;
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    auto& t = tensors[k];
    auto& e = entries[t.entry];
    if (k == 0 || tensors[k - 1].entry != t.entry) {
      bytes.reset();  // before the next copy
      bytes = std::make_unique<EntryBytes>(e);
    }
    if (!out || !wrong.empty()) continue;
    auto data = bytes->of(t.index);
    if (const auto dtype = e.array->dtype(); t.head.dtype != dtype) {
      converted.resize(std::size_t(t.bytes));
      convert_elements(dtype, data.data(), t.head.dtype, converted.data(),
                       program::points(e.shape));
      data = converted;
    }
    try {
      out->write(data);
      out->start_sync();
    } catch (const Error& e) {
      wrong = without_op(e.what());
    }
  }
  return wrong;
}

// Writes the weights under temporary names. Returns the names.
std::vector<std::string> write_weights(const std::filesystem::path& folder,
                                       const std::vector<StateEntry>& entries,
                                       const std::vector<TensorsOfFile>& files, bool writes) {
  std::vector<std::string> out;
  std::string wrong;
  for (std::size_t k = 0; k < files.size(); ++k) {
    std::unique_ptr<OutputFile> file;
    std::string failed;
    try {
      if (writes && wrong.empty()) {
        const auto name = name_of_file(k, files.size());
        out.push_back((folder / fmt::format("{}.tmp.{}", name, ::getpid())).string());
        file = std::make_unique<OutputFile>(kSaveFolder, out.back());
        std::vector<TensorHead> heads;
        for (auto& t : files[k]) heads.push_back(t.head);
        const auto head = safetensors_head(heads, {{"format", "pt"}});
        file->write(std::as_bytes(std::span(head)));
      }
    } catch (const Error& e) {
      failed = without_op(e.what());
      file.reset();
    }
    const auto failed_data = write_tensors(entries, files[k], file.get());
    if (failed.empty()) failed = failed_data;
    try {
      if (file && failed.empty()) file->sync_and_close();
    } catch (const Error& e) {
      failed = without_op(e.what());
    }
    if (wrong.empty()) wrong = failed;
  }
  if (wrong.empty()) return out;
  for (auto& name : out) ::unlink(name.c_str());
  throw Error("[save_pretrained] " + wrong);
}

void replace_text(const std::filesystem::path& path, const std::string& text) {
  replace_file(kSaveFolder, path.string(), {std::as_bytes(std::span(text))});
}
// Renames the files, writes the index and the configuration, and removes old weights.
void publish(const std::filesystem::path& folder, const std::vector<std::string>& written,
             const std::vector<TensorsOfFile>& files, ModelConfig config) {
  std::set<std::string> names;
  nlohmann::json map = nlohmann::json::object();
  std::int64_t total = 0;
  for (std::size_t k = 0; k < files.size(); ++k) {
    const auto name = *names.insert(name_of_file(k, files.size())).first;
    if (std::rename(written[k].c_str(), (folder / name).c_str()) != 0)
      fail(kSaveFolder, "{} cannot be written", (folder / name).string());
    for (auto& t : files[k]) {
      map[t.head.name] = name;
      total += t.bytes;
    }
  }
  if (files.size() > 1) {
    const nlohmann::json index{{"metadata", {{"total_size", total}}}, {"weight_map", map}};
    replace_text(folder / kIndex, index.dump(2) + "\n");
    names.insert(kIndex);
  }
  for (auto dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    const auto has = [&](auto& f) {
      return std::any_of(f.begin(), f.end(), [&](auto& t) { return t.head.dtype == dtype; });
    };
    if (!std::any_of(files.begin(), files.end(), has)) continue;
    config.set(config.has("dtype") ? "dtype" : "torch_dtype", dtype == DType::f32   ? "float32"
                                                              : dtype == DType::f64 ? "float64"
                                                              : dtype == DType::f16 ? "float16"
                                                                                    : "bfloat16");
    break;
  }
  replace_text(folder / "config.json", config.json());
  static const std::regex weights("model(-\\d{5}-of-\\d{5})?\\.safetensors(\\.index\\.json)?");
  std::error_code ignored;
  for (auto& f : std::filesystem::directory_iterator(folder, ignored)) {
    const auto name = f.path().filename().string();
    if (!names.contains(name) && std::regex_match(name, weights))
      std::filesystem::remove(f.path(), ignored);
  }
  sync_folder(folder.string());
}

}  // namespace

void detail::load_pretrained(const std::string& folder, const std::vector<StateEntry>& entries,
                             const LoadPretrainedOptions& o) {
  with_location(kLoadFolder, o.at, [&] {
    auto& group = all_processes();
    auto renamed = entries;
    const StateOptions options{o.allow_missing,
                               o.allow_unused,
                               o.allow_other_shape,
                               o.convert,
                               o.mismatch,
                               o.prefix,
                               true,
                               o.at};
    on_all_processes(group, [&] {
      const PretrainedFiles files(folder);
      remove_base_prefix(renamed, files, o);
      load_entries(kLoadFolder, renamed, files, options, group);
    });
  });
}
std::vector<Tensor> list_pretrained(const std::string& folder, SourceLocation at) {
  return with_location("list_pretrained", at, [&] {
    std::vector<Tensor> out;
    const PretrainedFiles files(folder);
    for (auto& t : files.tensors()) out.push_back({t.name, t.dtype, t.shape, {}});
    return out;
  });
}
void detail::save_pretrained(const std::string& folder, const std::vector<StateEntry>& entries,
                             const ModelConfig& config, const SavePretrainedOptions& options) {
  with_location(kSaveFolder, options.at, [&] {
    if (options.max_shard_bytes < 1)
      fail(kSaveFolder, "max_shard_bytes is {}; it must be at least 1", options.max_shard_bytes);
    if (options.dtype && !is_float(*options.dtype))
      fail(kSaveFolder, "dtype is {}; expected a float", name_of(*options.dtype));
    const auto files = files_of(entries, options);
    auto& group = all_processes();
    on_all_processes(group, [&] {
      std::error_code failed;
      if (group.rank == 0) std::filesystem::create_directories(folder, failed);
      if (failed) fail(kSaveFolder, "{} cannot be created: {}", folder, failed.message());
    });
    on_all_processes(group, [&] {
      const auto written = write_weights(folder, entries, files, group.rank == 0);
      if (group.rank == 0) publish(folder, written, files, config);
    });
  });
}

}  // namespace haliax
