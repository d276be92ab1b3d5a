// The configuration of a model folder.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/name.h"
#include "graph/fail.h"
#include "graph/node.h"
#include "haliax/huggingface.h"
#include "io/file.h"

namespace haliax {

struct ModelConfig::Object {
  nlohmann::json root = nlohmann::json::object();
};

namespace {

constexpr const char* kConfig = "load_config";

template <class T> inline constexpr bool is_vector = false;
template <class T> inline constexpr bool is_vector<std::vector<T>> = true;

// Returns the name of a type in messages.
template <class T> constexpr const char* described() {
  return std::is_same_v<T, bool>           ? "true or false"
         : std::is_same_v<T, int>          ? "a 32-bit integer"
         : std::is_same_v<T, std::int64_t> ? "an integer"
         : std::is_same_v<T, double>       ? "a number"
         : std::is_same_v<T, std::string>  ? "a string"
         : std::is_same_v<T, ModelConfig>  ? "an object"
                                           : "a list with elements of one type";
}
// Returns true if a value has this type.
template <class T> bool holds(const nlohmann::json& v) {
  if constexpr (is_vector<T>)
    return v.is_array() && std::all_of(v.begin(), v.end(), holds<typename T::value_type>);
  else if constexpr (std::is_same_v<T, bool>)
    return v.is_boolean();
  else if constexpr (std::is_same_v<T, double>)
    return v.is_number();
  else if constexpr (std::is_same_v<T, std::string>)
    return v.is_string();
  else if constexpr (std::is_same_v<T, ModelConfig>)
    return v.is_object();
  else if (!v.is_number_integer())
    return false;
  else if (v.is_number_unsigned())
    return v.get<std::uint64_t>() <= std::uint64_t(std::numeric_limits<T>::max());
  else
    return v.get<std::int64_t>() >= std::numeric_limits<T>::min();
}

}  // namespace

ModelConfig::ModelConfig()
    : object_(std::make_shared<const Object>()), source_("the configuration") {}

ModelConfig ModelConfig::parse(std::string_view json, std::string source, SourceLocation at) {
  CallSite here(at);
  ModelConfig out;
  out.source_ = std::move(source);
  try {
    Object object{nlohmann::json::parse(json)};
    if (object.root.is_object()) {
      out.object_ = std::make_shared<const Object>(std::move(object));
      return out;
    }
  } catch (const nlohmann::json::exception&) {}
  fail(kConfig, "{} is not a JSON object", out.source_);
}

bool ModelConfig::has(std::string_view key) const {
  auto found = object_->root.find(key);
  return found != object_->root.end() && !found->is_null();
}
bool ModelConfig::has_list(std::string_view key) const {
  auto found = object_->root.find(key);
  return found != object_->root.end() && found->is_array();
}
template <class T> T ModelConfig::value_of(std::string_view key, SourceLocation at) const {
  auto found = object_->root.find(key);
  CallSite here(at);
  if (found == object_->root.end() || found->is_null())
    fail(kConfig, "{} has no key {}{}", source_, key, did_you_mean(key, keys()));
  if (!holds<T>(*found))
    fail(kConfig, "{}: {} is {}; expected {}", source_, key, printable(found->dump()),
         described<T>());
  auto config = [&](const nlohmann::json& v) {
    ModelConfig out;
    out.object_ = std::make_shared<const Object>(Object{v});
    out.source_ = fmt::format("{} in {}", key, source_);
    return out;
  };
  if constexpr (std::is_same_v<T, ModelConfig>) {
    return config(*found);
  } else if constexpr (is_vector<T>) {
    T out;
    for (auto& v : *found)
      if constexpr (std::is_same_v<typename T::value_type, ModelConfig>)
        out.push_back(config(v));
      else
        out.push_back(v.template get<typename T::value_type>());
    return out;
  } else {
    return found->get<T>();
  }
}
template <class T> void ModelConfig::set_value(std::string_view key, const T& value) {
  auto object = *object_;
  auto& to = object.root[std::string(key)];
  if constexpr (std::is_same_v<T, ModelConfig>) {
    to = value.object_->root;
  } else if constexpr (std::is_same_v<T, std::vector<ModelConfig>>) {
    to = nlohmann::json::array();
    for (auto& v : value) to.push_back(v.object_->root);
  } else {
    to = value;
  }
  object_ = std::make_shared<const Object>(std::move(object));
}

void ModelConfig::read(std::string_view key, bool& to, SourceLocation at) const {
  to = value_of<bool>(key, at);
}
void ModelConfig::read(std::string_view key, int& to, SourceLocation at) const {
  to = value_of<int>(key, at);
}
void ModelConfig::read(std::string_view key, std::int64_t& to, SourceLocation at) const {
  to = value_of<std::int64_t>(key, at);
}
void ModelConfig::read(std::string_view key, double& to, SourceLocation at) const {
  to = value_of<double>(key, at);
}
void ModelConfig::read(std::string_view key, std::string& to, SourceLocation at) const {
  to = value_of<std::string>(key, at);
}
void ModelConfig::read(std::string_view key, ModelConfig& to, SourceLocation at) const {
  to = value_of<ModelConfig>(key, at);
}
void ModelConfig::read(std::string_view key, std::vector<bool>& to, SourceLocation at) const {
  to = value_of<std::vector<bool>>(key, at);
}
void ModelConfig::read(std::string_view key, std::vector<int>& to, SourceLocation at) const {
  to = value_of<std::vector<int>>(key, at);
}
void ModelConfig::read(std::string_view key, std::vector<std::int64_t>& to,
                       SourceLocation at) const {
  to = value_of<std::vector<std::int64_t>>(key, at);
}
void ModelConfig::read(std::string_view key, std::vector<double>& to, SourceLocation at) const {
  to = value_of<std::vector<double>>(key, at);
}
void ModelConfig::read(std::string_view key, std::vector<std::string>& to,
                       SourceLocation at) const {
  to = value_of<std::vector<std::string>>(key, at);
}
void ModelConfig::read(std::string_view key, std::vector<ModelConfig>& to,
                       SourceLocation at) const {
  to = value_of<std::vector<ModelConfig>>(key, at);
}
void ModelConfig::write(std::string_view key, const bool& value) { set_value(key, value); }
void ModelConfig::write(std::string_view key, const int& value) { set_value(key, value); }
void ModelConfig::write(std::string_view key, const std::int64_t& value) { set_value(key, value); }
void ModelConfig::write(std::string_view key, const double& value) { set_value(key, value); }
void ModelConfig::write(std::string_view key, const std::string& value) { set_value(key, value); }
void ModelConfig::write(std::string_view key, const ModelConfig& value) { set_value(key, value); }
void ModelConfig::write(std::string_view key, const std::vector<bool>& value) {
  set_value(key, value);
}
void ModelConfig::write(std::string_view key, const std::vector<int>& value) {
  set_value(key, value);
}
void ModelConfig::write(std::string_view key, const std::vector<std::int64_t>& value) {
  set_value(key, value);
}
void ModelConfig::write(std::string_view key, const std::vector<double>& value) {
  set_value(key, value);
}
void ModelConfig::write(std::string_view key, const std::vector<std::string>& value) {
  set_value(key, value);
}
void ModelConfig::write(std::string_view key, const std::vector<ModelConfig>& value) {
  set_value(key, value);
}

std::vector<std::string> ModelConfig::keys() const {
  std::vector<std::string> out;
  for (auto& [key, value] : object_->root.items()) out.push_back(key);
  return out;
}
ModelConfig& ModelConfig::erase(std::string_view key) {
  auto object = *object_;
  object.root.erase(std::string(key));
  object_ = std::make_shared<const Object>(std::move(object));
  return *this;
}

std::string ModelConfig::architecture(SourceLocation at) const {
  if (has("architectures"))
    if (auto names = get<std::vector<std::string>>("architectures", at); !names.empty())
      return names[0];
  if (has("model_type")) return get<std::string>("model_type", at);
  CallSite here(at);
  fail(kConfig, "{} names no architecture: it has neither architectures nor model_type", source_);
}
std::string ModelConfig::architecture(const std::vector<std::string>& known,
                                      SourceLocation at) const {
  auto name = architecture(at);
  if (std::find(known.begin(), known.end(), name) != known.end()) return name;
  CallSite here(at);
  fail(kConfig, fmt::format("{}: architecture {} is not supported; the supported ones are {}",
                            source_, printable(name), fmt::join(known, ", ")));
}
std::string ModelConfig::json() const {
  return object_->root.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

ModelConfig load_config(const std::string& folder, SourceLocation at) {
  CallSite here(at);
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) fail(kConfig, "{} is not a folder", folder);
  const auto path = (fs::path(folder) / "config.json").string();
  if (!fs::exists(path, ignored))
    fail(kConfig, "{} has no config.json; it must be a folder that save_pretrained wrote", folder);
  const auto bytes = contents_of(kConfig, path);
  return ModelConfig::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path, at);
}

}  // namespace haliax
