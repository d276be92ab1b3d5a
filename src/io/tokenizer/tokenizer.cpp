// Tokenizers: added tokens are found first, then each part of the text is normalized, split into
// pieces, and encoded by the model.
#include "haliax/tokenizer.h"

#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>

#include "graph/fail.h"
#include "graph/node.h"
#include "io/file.h"
#include "io/joint_errors.h"
#include "io/tokenizer/added_tokens.h"
#include "io/tokenizer/bpe.h"
#include "io/tokenizer/steps.h"
#include "io/tokenizer/unicode.h"

namespace haliax {

struct Tokenizer::Impl {
  std::unique_ptr<const Normalizer> normalizer;
  std::unique_ptr<const PreTokenizer> pre_tokenizer;
  std::unique_ptr<const PostProcessor> post_processor;
  std::unique_ptr<const Decoder> decoder;
  std::unique_ptr<const Bpe> model;
  AddedTokens added;

  // Return the tokenizer of the text of a file, and of a file or a folder.
  static Tokenizer parse(std::string_view json);
  static Tokenizer load(const std::string& path);

  // EncodeMemory of a call. Concurrent calls do not share it.
  struct EncodeMemory {
    BpeMemory bpe;
    Pieces pieces;
    std::vector<TextPart> parts, normalized;
  };
  mutable std::mutex taking;
  mutable std::vector<std::unique_ptr<EncodeMemory>> idle;

  std::unique_ptr<EncodeMemory> take() const {
    std::lock_guard hold(taking);
    if (idle.empty()) return std::make_unique<EncodeMemory>();
    auto out = std::move(idle.back());
    idle.pop_back();
    return out;
  }
  void give_back(std::unique_ptr<EncodeMemory> memory) const {
    std::lock_guard hold(taking);
    idle.push_back(std::move(memory));
  }

  explicit Impl(const TokenizerJson& root) {
    auto part = [&](const char* key) { return root.value(key, TokenizerJson()); };
    model = std::make_unique<Bpe>(root.at("model"));
    normalizer = normalizer_of(part("normalizer"));
    pre_tokenizer = pre_tokenizer_of(part("pre_tokenizer"));
    post_processor = post_processor_of(part("post_processor"));
    decoder = decoder_of(part("decoder"));
    added = AddedTokens(root.value("added_tokens", TokenizerJson::array()), normalizer.get());
  }

  // Encodes text between added tokens that has been normalized.
  void encode_part(const Piece& part, EncodeMemory& m, std::vector<int>& to) const {
    auto& pieces = m.pieces;
    pieces.all.assign(1, part);
    pieces.memory.clear();
    if (pre_tokenizer) pre_tokenizer->apply(pieces);
    const bool maps = pre_tokenizer && pre_tokenizer->maps_bytes();
    for (auto& p : pieces.all) model->tokenize(p.text, maps, m.bpe, to);
  }
  void encode(std::string_view text, EncodeMemory& m, std::vector<int>& to) const {
    m.parts.clear();
    added.split(text, false, m.parts);
    std::string storage;
    for (auto& part : m.parts) {
      if (part.id >= 0) {
        to.push_back(part.id);
        continue;
      }
      auto content = part.text;
      bool moved = false;
      if (normalizer) {
        storage = std::string(content);
        normalizer->apply(storage, moved);
        content = storage;
      }
      m.normalized.clear();
      added.split(content, true, m.normalized);
      const bool first = part.text.data() == text.data() && !moved;
      for (auto& p : m.normalized)
        if (p.id >= 0)
          to.push_back(p.id);
        else
          encode_part({p.text, first && p.text.data() == content.data()}, m, to);
    }
  }
  const std::string* token(int id) const {
    if (auto* t = added.with_id(id)) return &t->decoded;
    return model->token(id);
  }
};

Tokenizer Tokenizer::Impl::parse(std::string_view json) {
  try {
    return Tokenizer(std::make_shared<const Impl>(TokenizerJson::parse(json)));
  } catch (const TokenizerJson::exception& e) {
    fail("Tokenizer", "the tokenizer is corrupt: {}", printable(e.what()));
  }
}
Tokenizer Tokenizer::Impl::load(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  auto file = fs::path(path);
  if (fs::is_directory(file, ignored)) file /= "tokenizer.json";
  if (!fs::exists(file, ignored)) {
    const auto model = file.parent_path() / "tokenizer.model";
    if (fs::exists(model, ignored))
      fail("Tokenizer", "{} is not read; save the tokenizer as tokenizer.json", model.string());
    fail("Tokenizer", "{} does not exist", file.string());
  }
  const auto bytes = contents_of("Tokenizer", file.string());
  try {
    return parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  } catch (const Error& e) {
    fail("Tokenizer", "{}: {}", file.string(), without_op(e.what()));
  }
}

Tokenizer Tokenizer::parse(std::string_view json, SourceLocation at) {
  return with_location("Tokenizer", at, [&] { return Impl::parse(json); });
}
Tokenizer Tokenizer::load(const std::string& path, SourceLocation at) {
  return with_location("Tokenizer", at, [&] { return Impl::load(path); });
}

std::vector<int> Tokenizer::encode(std::string_view text, const EncodeOptions& options,
                                   SourceLocation at) const {
  CallSite here(at);
  std::vector<int> ids;
  std::string storage;
  auto memory = impl_->take();
  impl_->encode(valid_utf8(text, storage), *memory, ids);
  impl_->give_back(std::move(memory));
  if (options.add_special_tokens && impl_->post_processor) impl_->post_processor->apply(ids);
  return ids;
}
std::string Tokenizer::decode(const std::vector<int>& ids, const DecodeOptions& options,
                              SourceLocation at) const {
  CallSite here(at);
  Tokens tokens;
  for (int id : ids)
    if (auto* t = impl_->token(id);
        t && !(options.skip_special_tokens && impl_->added.is_special(*t)))
      tokens.push_back(*t);
  std::string out;
  if (impl_->decoder) {
    impl_->decoder->apply(tokens);
    for (auto& t : tokens) out += t;
  } else {
    for (auto& t : tokens) out += (out.empty() ? "" : " ") + t;
  }
  return out;
}

int Tokenizer::vocab_size() const {
  int size = impl_->model->size();
  for (auto& t : impl_->added.all()) size = std::max(size, t.id + 1);
  return size;
}
std::optional<int> Tokenizer::id_of(std::string_view token) const {
  if (auto* t = impl_->added.with_text(token)) return t->id;
  const int id = impl_->model->find(token);
  return id >= 0 ? std::optional(id) : std::nullopt;
}
std::optional<std::string> Tokenizer::token_of(int id) const {
  auto* t = impl_->token(id);
  return t ? std::optional(*t) : std::nullopt;
}
bool Tokenizer::is_special(int id) const {
  if (auto* added = impl_->added.with_id(id)) return added->special;
  auto* t = impl_->token(id);
  return t && impl_->added.is_special(*t);
}

}  // namespace haliax
