// The steps of a tokenizer around its model: normalizers, pre-tokenizers, post-processors and
// decoders. Each is built from its object in tokenizer.json, and raises for an unsupported type.
#pragma once
#include <deque>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace haliax {

using TokenizerJson = nlohmann::json;

// Raises an error that names the type of a step.
[[noreturn]] void fail_unsupported(const char* step, const TokenizerJson&, const char* supported);
// Returns the type of a step.
std::string type_of_step(const char* step, const TokenizerJson&);

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Sets `moved` if it removes the start of the text.
  virtual void apply(std::string& text, bool& moved) const = 0;
};
std::unique_ptr<const Normalizer> normalizer_of(const TokenizerJson&);  // null: none

// A part of the text that is tokenized alone.
struct Piece {
  std::string_view text;
  bool first = false;  // starts at the start of the text
};
// Pieces, and the memory of those that are not parts of the text.
struct Pieces {
  std::vector<Piece> all, next;
  std::deque<std::string> memory;
  std::string_view keep(std::string text) { return memory.emplace_back(std::move(text)); }
};
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Pieces&) const = 0;
  // Returns true if the step ends with a map of each byte to a character, which `apply` skips.
  virtual bool maps_bytes() const { return false; }
};
// `last` is true if no step follows.
std::unique_ptr<const PreTokenizer> pre_tokenizer_of(const TokenizerJson&, bool last = true);

class PostProcessor {
 public:
  virtual ~PostProcessor() = default;
  virtual void apply(std::vector<int>& ids) const = 0;
};
std::unique_ptr<const PostProcessor> post_processor_of(const TokenizerJson&);

using Tokens = std::vector<std::string>;
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void apply(Tokens&) const = 0;
};
std::unique_ptr<const Decoder> decoder_of(const TokenizerJson&);

// The characters that stand for the 256 bytes in a byte-level vocabulary: the byte itself if it is
// printable in Latin-1, otherwise U+0100 and up.
const std::vector<std::string>& characters_of_bytes();
std::string bytes_as_characters(std::string_view bytes);

}  // namespace haliax
