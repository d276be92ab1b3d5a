// Normalizers: changes to the whole text.
#include <nlohmann/json.hpp>

#include "graph/fail.h"
#include "io/file.h"
#include "io/tokenizer/pattern.h"
#include "io/tokenizer/steps.h"
#include "io/tokenizer/unicode.h"

namespace haliax {
namespace {

constexpr const char* kNormalizers =
    "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, ByteLevel";

template <class F> class NormalizerOf final : public Normalizer {
 public:
  explicit NormalizerOf(F f) : f_(std::move(f)) {}
  void apply(std::string& text, bool& moved) const override {
    if constexpr (std::is_invocable_v<const F&, std::string&>)
      f_(text);
    else
      f_(text, moved);
  }

 private:
  F f_;
};
template <class F> std::unique_ptr<const Normalizer> normalizer_from(F f) {
  return std::make_unique<NormalizerOf<F>>(std::move(f));
}
auto form(NormalForm f) {
  return normalizer_from([f](std::string& text) { text = normalized(text, f); });
}
void strip(std::string& text, bool left, bool right) {
  std::string_view rest = text;
  while (left && !rest.empty()) {
    std::size_t at = 0;
    if (!is_space(next_character(rest, at))) break;
    rest.remove_prefix(at);
  }
  while (right && !rest.empty()) {
    auto start = start_of_previous(rest, rest.size()), at = start;
    if (!is_space(next_character(rest, at))) break;
    rest = rest.substr(0, start);
  }
  text = std::string(rest);
}
void strip_accents(std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();)
    if (auto c = next_character(text, at); !is_combining_mark(c)) append_character(out, c);
  text = std::move(out);
}

}  // namespace

std::string type_of_step(const char* step, const TokenizerJson& spec) {
  if (spec.is_object() && spec.contains("type") && spec["type"].is_string()) return spec["type"];
  fail("Tokenizer", "the {} {} has no type", step, printable(spec.dump()));
}
void fail_unsupported(const char* step, const TokenizerJson& spec, const char* supported) {
  fail("Tokenizer", "the {} {} is not supported; supported are {}", step,
       printable(type_of_step(step, spec)), supported);
}

std::unique_ptr<const Normalizer> normalizer_of(const TokenizerJson& spec) {
  if (spec.is_null()) return nullptr;
  const auto type = type_of_step("normalizer", spec);
  if (type == "NFC") return form(NormalForm::nfc);
  if (type == "NFD") return form(NormalForm::nfd);
  if (type == "NFKC") return form(NormalForm::nfkc);
  if (type == "NFKD") return form(NormalForm::nfkd);
  if (type == "Lowercase")
    return normalizer_from([](std::string& text) { text = lowercase(text); });
  if (type == "StripAccents") return normalizer_from(strip_accents);
  if (type == "ByteLevel")
    return normalizer_from([](std::string& text) { text = bytes_as_characters(text); });
  if (type == "Strip") {
    const bool left = spec.at("strip_left"), right = spec.at("strip_right");
    return normalizer_from([=](std::string& text, bool& moved) {
      const auto size = text.size();
      strip(text, left, false);
      moved = moved || text.size() != size;
      strip(text, false, right);
    });
  }
  if (type == "Prepend") {
    const std::string prefix = spec.at("prepend");
    return normalizer_from([=](std::string& text) {
      if (!text.empty()) text.insert(0, prefix);
    });
  }
  if (type == "Replace") {
    const std::string by = spec.at("content");
    return normalizer_from([by, pattern = Pattern(spec.at("pattern"))](std::string& text) {
      text = pattern.replaced(text, by);
    });
  }
  if (type == "Sequence") {
    std::vector<std::shared_ptr<const Normalizer>> steps;
    for (auto& s : spec.at("normalizers")) steps.push_back(normalizer_of(s));
    return normalizer_from([steps](std::string& text, bool& moved) {
      for (auto& s : steps)
        if (s) s->apply(text, moved);
    });
  }
  fail_unsupported("normalizer", spec, kNormalizers);
}

}  // namespace haliax
