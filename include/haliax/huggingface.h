// Model folders of Hugging Face: config.json, and weights in one or several safetensors files. See
// docs/how-to/huggingface.md. haliax.h does not include this header.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "haliax/state_dict.h"

namespace [[gnu::visibility("default")]] haliax {

/// The values of a `config.json`: a JSON object with typed access. Copies share no state.
///
///     auto config = load_config("gpt2");
///     auto layers = config.get<int>("n_layer");
///     auto eps = config.get("layer_norm_epsilon", 1e-5);   // with a default
class ModelConfig {
 public:
  /// Creates an empty object.
  ModelConfig();
  /// Parses a JSON object.
  /// @param json    source text
  /// @param source  path that errors name
  /// @throws haliax::Error if the text is not a JSON object
  static ModelConfig parse(std::string_view json, std::string source = "the configuration",
                           SourceLocation at = SourceLocation::current());

  /// Returns true if the object has a key whose value is not null.
  bool has(std::string_view key) const;
  /// Returns true if the object has a key whose value is a list. Some values are either one item or
  /// a list, such as `eos_token_id`.
  bool has_list(std::string_view key) const;
  /// Returns the value of a key.
  ///
  /// `T` is `bool`, `int`, `std::int64_t`, `double`, `std::string`, `ModelConfig` (a nested
  /// object), or a `std::vector` of one of them. An integer is also a valid `double`.
  ///
  /// @throws haliax::Error if there is no such key, or if its value has another type
  template <class T>
  T get(std::string_view key, SourceLocation at = SourceLocation::current()) const {
    T value{};
    read(key, value, at);
    return value;
  }
  /// Returns the value of a key, or a default if there is no such key or its value is null.
  /// @throws haliax::Error if the value has another type
  template <class T>
  T get(std::string_view key, const T& otherwise,
        SourceLocation at = SourceLocation::current()) const {
    return has(key) ? get<T>(key, at) : otherwise;
  }
  /// Returns the value of the first of several keys that the object has: configurations have
  /// different names for the same size.
  ///
  ///     auto embed = config.get_any<int>({"hidden_size", "n_embd", "d_model"});
  ///
  /// @throws haliax::Error if the object has none of the keys
  template <class T>
  T get_any(std::initializer_list<std::string_view> keys,
            SourceLocation at = SourceLocation::current()) const {
    for (auto key : keys)
      if (has(key)) return get<T>(key, at);
    return get<T>(keys.size() ? *keys.begin() : std::string_view(), at);
  }
  /// Returns the keys, in alphabetical order.
  std::vector<std::string> keys() const;

  /// Sets the value of a key, of one of the types of `get`.
  template <class T> ModelConfig& set(std::string_view key, const T& value) {
    write(key, value);
    return *this;
  }
  ModelConfig& set(std::string_view key, const char* value) { return set(key, std::string(value)); }
  /// Removes a key.
  ModelConfig& erase(std::string_view key);

  /// Returns the architecture: the first string of `architectures`, or else `model_type`.
  /// @throws haliax::Error if the object has neither
  std::string architecture(SourceLocation at = SourceLocation::current()) const;
  /// Returns the architecture, which must be one of `known`.
  /// @throws haliax::Error if it is not; the error lists the known ones
  std::string architecture(const std::vector<std::string>& known,
                           SourceLocation at = SourceLocation::current()) const;

  /// Returns the object as indented JSON, with keys in alphabetical order.
  std::string json() const;
  /// Returns the path of the file, for error messages.
  const std::string& source() const { return source_; }

 private:
  struct Object;
  // Functions, because the shared library exports no instantiations of templates.
  void read(std::string_view, bool&, SourceLocation) const;
  void read(std::string_view, int&, SourceLocation) const;
  void read(std::string_view, std::int64_t&, SourceLocation) const;
  void read(std::string_view, double&, SourceLocation) const;
  void read(std::string_view, std::string&, SourceLocation) const;
  void read(std::string_view, ModelConfig&, SourceLocation) const;
  void read(std::string_view, std::vector<bool>&, SourceLocation) const;
  void read(std::string_view, std::vector<int>&, SourceLocation) const;
  void read(std::string_view, std::vector<std::int64_t>&, SourceLocation) const;
  void read(std::string_view, std::vector<double>&, SourceLocation) const;
  void read(std::string_view, std::vector<std::string>&, SourceLocation) const;
  void read(std::string_view, std::vector<ModelConfig>&, SourceLocation) const;
  void write(std::string_view, const bool&);
  void write(std::string_view, const int&);
  void write(std::string_view, const std::int64_t&);
  void write(std::string_view, const double&);
  void write(std::string_view, const std::string&);
  void write(std::string_view, const ModelConfig&);
  void write(std::string_view, const std::vector<bool>&);
  void write(std::string_view, const std::vector<int>&);
  void write(std::string_view, const std::vector<std::int64_t>&);
  void write(std::string_view, const std::vector<double>&);
  void write(std::string_view, const std::vector<std::string>&);
  void write(std::string_view, const std::vector<ModelConfig>&);
  template <class T> T value_of(std::string_view, SourceLocation) const;
  template <class T> void set_value(std::string_view, const T&);
  std::shared_ptr<const Object> object_;
  std::string source_;
};

/// Reads `config.json` in a folder.
/// @throws haliax::Error if the folder or the file does not exist, or if it is not a JSON object
ModelConfig load_config(const std::string& folder, SourceLocation at = SourceLocation::current());

/// Options of `load_pretrained`. The first six are those of `StateOptions`.
struct LoadPretrainedOptions {
  bool allow_missing = false;      ///< An array, or a layer, without a tensor keeps its value.
  bool allow_unused = true;        ///< Tensors that the model lacks are ignored.
  bool allow_other_shape = false;  ///< An array whose tensor has another shape keeps its value.
  ConvertDtypes convert = ConvertDtypes::floats;  ///< Dtypes that are converted.
  StateMismatch* mismatch = nullptr;              ///< If not null: receives all differences.
  std::string prefix = {};                        ///< Precedes all names.
  /// The prefix that only some files have, such as `"transformer"` for GPT-2: files of a model
  /// without a head have none. It is removed from all names if no tensor has it.
  std::string base_prefix = {};
  StateNames names = {};   ///< Other names for fields; usually the modules declare them.
  SourceLocation at = {};  ///< Location that errors name. Default: the line of the call.
};
namespace detail {
void load_pretrained(const std::string& folder, const std::vector<StateEntry>&,
                     const LoadPretrainedOptions&);
}
/// Returns `like` with the weights of a folder: `model.safetensors`, or the files that
/// `model.safetensors.index.json` lists. `folder` may also be the path of a safetensors file.
///
/// Data is read in pieces, directly into the memory of the arrays. Each array has the placement of
/// the array in `like`, or else that of the mesh and the mapping in scope. A process reads only the
/// bytes that its devices need. Apart from the arrays, it needs a few MiB of memory.
///
///     auto config = load_config(folder);
///     auto model = load_pretrained(folder, Gpt2::init(config, random::key(0)));
///
/// @param folder   folder with weights
/// @param like     model with the expected axes and dtypes; its values are not read
/// @param options  differences that are allowed, and names
/// @throws haliax::Error if a file is missing, truncated, corrupt, or not the one that the index
///     describes, or if tensors do not match, as in `from_state_dict`. Nothing is loaded then.
template <class T>
T load_pretrained(const std::string& folder, T like, LoadPretrainedOptions options = {},
                  SourceLocation at = SourceLocation::current()) {
  options = detail::located(std::move(options), at);
  detail::load_pretrained(folder, state_entries(like, options.names, true, options.at), options);
  detail::note_fields(walk_of(like, {.paths = true}));
  return like;
}
/// Returns the names, dtypes and shapes of the tensors of a folder, without data, sorted by name.
/// @throws haliax::Error as `load_pretrained` does
std::vector<Tensor> list_pretrained(const std::string& folder,
                                    SourceLocation at = SourceLocation::current());

/// Options of `save_pretrained`.
struct SavePretrainedOptions {
  std::int64_t max_shard_bytes = 5'000'000'000;  ///< Size of a file, unless one tensor is larger.
  std::optional<DType> dtype = {};  ///< Converts floats to this dtype. Default: as they are.
  std::string prefix = {};          ///< Precedes all names.
  StateNames names = {};            ///< Other names for fields; usually the modules declare them.
  SourceLocation at = {};           ///< Location that errors name. Default: the line of the call.
};
namespace detail {
void save_pretrained(const std::string& folder, const std::vector<StateEntry>&, const ModelConfig&,
                     const SavePretrainedOptions&);
}
/// Writes a folder that transformers opens: `config.json`, and the weights as `model.safetensors`,
/// or as several files with `model.safetensors.index.json`.
///
/// The configuration is written as it is, with `torch_dtype` of the weights. One array at a time is
/// copied to the host. Weights of an earlier call are replaced after the new files are complete.
/// Other files of the folder, such as those of a tokenizer, stay.
///
/// @param folder   folder; created if it does not exist
/// @param model    model, or any tree of named fields
/// @param config   configuration
/// @param options  size of the files, dtype and names
/// @throws haliax::Error if two arrays have the same name, or if a file cannot be written
template <class T>
void save_pretrained(const std::string& folder, T model, const ModelConfig& config,
                     SavePretrainedOptions options = {},
                     SourceLocation at = SourceLocation::current()) {
  options = detail::located(std::move(options), at);
  detail::save_pretrained(folder, state_entries(model, options.names, true, options.at), config,
                          options);
}

}  // namespace haliax
