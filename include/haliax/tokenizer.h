// Tokenizers of Hugging Face, from tokenizer.json. See docs/how-to/huggingface.md. haliax.h does
// not include this header.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "haliax/where.h"

namespace [[gnu::visibility("default")]] haliax {

/// Options of `Tokenizer::encode`.
struct EncodeOptions {
  /// Adds the tokens of the post-processor, such as `<s>` at the start.
  bool add_special_tokens = true;
};
/// Options of `Tokenizer::decode`.
struct DecodeOptions {
  bool skip_special_tokens = true;  ///< Omits special tokens.
};

/// A byte-pair tokenizer: byte-level as in GPT-2, Llama 3 and Qwen, or with the vocabulary of
/// SentencePiece as in Llama 2. The ids equal those of Hugging Face's package `tokenizers`.
///
///     auto tokenizer = Tokenizer::load("gpt2");
///     auto ids = tokenizer.encode("Named tensors");
///     auto text = tokenizer.decode(ids);
///
/// A tokenizer is immutable, and copies share it. All functions are thread safe.
///
/// Supported are: models `BPE` (with `byte_fallback`, `fuse_unk`, `ignore_merges`, and affixes of
/// subwords); normalizers `NFC`, `NFD`, `NFKC`, `NFKD`, `Lowercase`, `Strip`, `StripAccents`,
/// `Prepend`, `Replace` and `ByteLevel`; pre-tokenizers `ByteLevel`, `Split`, `Metaspace`,
/// `Digits`, `Punctuation`, `Whitespace` and `WhitespaceSplit`; post-processors
/// `TemplateProcessing`, `ByteLevel`, `RobertaProcessing` and `BertProcessing`; decoders
/// `ByteLevel`, `ByteFallback`, `Fuse`, `Replace`, `Strip`, `Metaspace` and `BPEDecoder`; and
/// sequences of them.
class Tokenizer {
 public:
  /// Reads `tokenizer.json`.
  /// @param path  the file, or a folder that contains it
  /// @throws haliax::Error if the file does not exist or is corrupt, or if a part is of a kind that
  ///     is not supported; the error names the kind
  static Tokenizer load(const std::string& path, SourceLocation at = SourceLocation::current());
  /// Parses the text of a `tokenizer.json`. Raises as `load` does.
  static Tokenizer parse(std::string_view json, SourceLocation at = SourceLocation::current());

  /// Returns the ids of the tokens of a text. Bytes that are not UTF-8 are replaced by U+FFFD. A
  /// character that is not in the vocabulary becomes the tokens of its bytes, or the token for
  /// unknown characters, or nothing, as the file specifies. Truncation and padding of the file are
  /// not applied.
  std::vector<int> encode(std::string_view text, const EncodeOptions& options = {},
                          SourceLocation at = SourceLocation::current()) const;
  /// Returns the text of tokens. Ids that are not in the vocabulary are skipped.
  std::string decode(const std::vector<int>& ids, const DecodeOptions& options = {},
                     SourceLocation at = SourceLocation::current()) const;

  /// Returns the size of the vocabulary: 1 plus the largest id, added tokens included.
  int vocab_size() const;
  /// Returns the id of a token, or nothing. A token of a byte-level vocabulary is spelled as in the
  /// file: `"Ġthe"`.
  std::optional<int> id_of(std::string_view token) const;
  /// Returns the token with this id, as spelled in the file, or nothing. An added token that is
  /// found in the normalized text is spelled as there: `foo` for `Foo` with `Lowercase`.
  std::optional<std::string> token_of(int id) const;
  /// Returns true if the id is that of a special token, such as `<|endoftext|>`.
  bool is_special(int id) const;

 private:
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace haliax
