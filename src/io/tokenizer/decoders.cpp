// Post-processors, which add tokens to a sequence of ids, and decoders, which turn tokens into
// text.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "graph/fail.h"
#include "io/tokenizer/pattern.h"
#include "io/tokenizer/steps.h"
#include "io/tokenizer/unicode.h"

namespace haliax {
namespace {

constexpr const char* kPostProcessors =
    "Sequence, TemplateProcessing, ByteLevel, RobertaProcessing, BertProcessing";
constexpr const char* kDecoders =
    "Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, BPEDecoder";
constexpr std::string_view kUnknownByte = "\xef\xbf\xbd";  // U+FFFD

class AffixTokens final : public PostProcessor {
 public:
  AffixTokens(std::vector<int> before, std::vector<int> after)
      : before_(std::move(before)), after_(std::move(after)) {}
  void apply(std::vector<int>& ids) const override {
    ids.insert(ids.begin(), before_.begin(), before_.end());
    ids.insert(ids.end(), after_.begin(), after_.end());
  }

 private:
  std::vector<int> before_, after_;
};
class ProcessorSequence final : public PostProcessor {
 public:
  explicit ProcessorSequence(const TokenizerJson& steps) {
    for (auto& s : steps) steps_.push_back(post_processor_of(s));
  }
  void apply(std::vector<int>& ids) const override {
    for (auto& s : steps_)
      if (s) s->apply(ids);
  }

 private:
  std::vector<std::unique_ptr<const PostProcessor>> steps_;
};
std::unique_ptr<const PostProcessor> template_of(const TokenizerJson& spec) {
  std::vector<int> before, after;
  bool passed = false;
  for (auto& part : spec.at("single")) {
    if (part.contains("Sequence")) {
      if (std::exchange(passed, true))
        fail("Tokenizer", "a template that repeats the sequence is not supported");
      continue;
    }
    const std::string name = part.at("SpecialToken").at("id");
    const std::vector<int> ids = spec.at("special_tokens").at(name).at("ids");
    auto& to = passed ? after : before;
    to.insert(to.end(), ids.begin(), ids.end());
  }
  return std::make_unique<AffixTokens>(std::move(before), std::move(after));
}

template <class F> class DecoderOf final : public Decoder {
 public:
  explicit DecoderOf(F f) : f_(std::move(f)) {}
  void apply(Tokens& tokens) const override { f_(tokens); }

 private:
  F f_;
};
template <class F> std::unique_ptr<const Decoder> decoder(F f) {
  return std::make_unique<DecoderOf<F>>(std::move(f));
}
std::string concatenated(const Tokens& tokens) {
  std::string out;
  for (auto& t : tokens) out += t;
  return out;
}

// A token with a character that stands for no byte is text.
void decode_byte_level(Tokens& tokens) {
  static const auto bytes = [] {
    std::unordered_map<std::string_view, char> out;
    for (int b = 0; b < 256; ++b) out[characters_of_bytes()[std::size_t(b)]] = char(b);
    return out;
  }();
  std::string text;
  for (auto& t : tokens) {
    const auto mark = text.size();
    for (std::size_t at = 0; at < t.size();) {
      const auto length = utf8_length(t[at]);
      const auto found = bytes.find(std::string_view(t).substr(at, length));
      if (found == bytes.end()) {
        text.resize(mark);
        text += t;
        break;
      }
      text += found->second;
      at += length;
    }
  }
  std::string storage;
  tokens = {std::string(valid_utf8(text, storage))};
}
// Returns the byte of a token such as <0x0A>, or -1.
int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with(">")) return -1;
  int out = 0;
  for (char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return -1;
    out = out * 16 + digit;
  }
  return out;
}
void decode_byte_fallback(Tokens& tokens) {
  Tokens out;
  std::string bytes, storage;
  auto flush = [&] {
    if (bytes.empty()) return;
    if (valid_utf8(bytes, storage).data() == bytes.data())
      out.push_back(bytes);
    else
      out.insert(out.end(), bytes.size(), std::string(kUnknownByte));
    bytes.clear();
  };
  for (auto& t : tokens) {
    if (const int byte = byte_of_token(t); byte >= 0) {
      bytes += char(byte);
    } else {
      flush();
      out.push_back(std::move(t));
    }
  }
  flush();
  tokens = std::move(out);
}
// Removes up to `start` marks from the start of each token, and up to `stop` from its end.
void decode_strip(Tokens& tokens, const std::string& mark, int start, int stop) {
  if (mark.empty()) return;
  for (auto& t : tokens) {
    std::string_view rest = t;
    for (int i = 0; i < start && rest.starts_with(mark); ++i) rest.remove_prefix(mark.size());
    for (int i = 0; i < stop && rest.ends_with(mark); ++i) rest.remove_suffix(mark.size());
    t = std::string(rest);
  }
}
void decode_metaspace(Tokens& tokens, const Pattern& mark, bool prepended) {
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = mark.replaced(tokens[i], i == 0 && prepended ? "" : " ");
}

}  // namespace

std::unique_ptr<const PostProcessor> post_processor_of(const TokenizerJson& spec) {
  if (spec.is_null()) return nullptr;
  const auto type = type_of_step("post-processor", spec);
  if (type == "ByteLevel") return nullptr;  // it moves offsets alone
  if (type == "TemplateProcessing") return template_of(spec);
  if (type == "RobertaProcessing" || type == "BertProcessing")
    return std::make_unique<AffixTokens>(std::vector<int>{spec.at("cls").at(1)},
                                         std::vector<int>{spec.at("sep").at(1)});
  if (type == "Sequence") return std::make_unique<ProcessorSequence>(spec.at("processors"));
  fail_unsupported("post-processor", spec, kPostProcessors);
}

std::unique_ptr<const Decoder> decoder_of(const TokenizerJson& spec) {
  if (spec.is_null()) return nullptr;
  const auto type = type_of_step("decoder", spec);
  if (type == "ByteLevel") return decoder(decode_byte_level);
  if (type == "ByteFallback") return decoder(decode_byte_fallback);
  if (type == "Fuse") return decoder([](Tokens& tokens) { tokens = {concatenated(tokens)}; });
  if (type == "Replace") {
    const std::string by = spec.at("content");
    return decoder([by, pattern = Pattern(spec.at("pattern"))](Tokens& tokens) {
      for (auto& t : tokens) t = pattern.replaced(t, by);
    });
  }
  if (type == "Strip") {
    const std::string mark = spec.at("content");
    const int start = spec.at("start"), stop = spec.at("stop");
    return decoder([=](Tokens& tokens) { decode_strip(tokens, mark, start, stop); });
  }
  if (type == "Metaspace") {
    const bool prepended = spec.contains("prepend_scheme") ? spec["prepend_scheme"] != "never"
                                                           : spec.value("add_prefix_space", true);
    return decoder([mark = Pattern::literal(spec.at("replacement")), prepended](Tokens& tokens) {
      decode_metaspace(tokens, mark, prepended);
    });
  }
  if (type == "BPEDecoder") {
    return decoder([suffix = Pattern::literal(spec.at("suffix"))](Tokens& tokens) {
      for (std::size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = suffix.replaced(tokens[i], i + 1 == tokens.size() ? "" : " ");
    });
  }
  if (type == "Sequence") {
    std::vector<std::shared_ptr<const Decoder>> steps;
    for (auto& s : spec.at("decoders")) steps.push_back(decoder_of(s));
    return decoder([steps](Tokens& tokens) {
      for (auto& s : steps)
        if (s) s->apply(tokens);
    });
  }
  fail_unsupported("decoder", spec, kDecoders);
}

}  // namespace haliax
