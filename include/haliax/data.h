// Batches of tokens from memory-mapped files, shuffled by a formula. A training run resumes at any
// position, on any mesh, in the same order. See docs/how-to/data.md. haliax.h does not include this
// header.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "haliax/array.h"
#include "haliax/mesh.h"
#include "haliax/random.h"

namespace [[gnu::visibility("default")]] haliax {

struct ProcessGroup;  // src/io/process_group.h

/// The tokens of one or more files, or of a string. Copies share the files.
class Tokens {
 public:
  /// Maps files into memory. The files must not change while they are in use.
  ///
  /// @param paths  files. A `.npy` file has one axis of `u8`, `u16`, `u32`, `i32` or `i64`. Any
  ///     other file has little-endian tokens only.
  /// @param raw    dtype of the tokens of other files: `u8`, `u16` or `u32`
  /// @throws haliax::Error if a file cannot be read, is empty or truncated, or has another content
  explicit Tokens(const std::vector<std::string>& paths, DType raw = DType::u16,
                  SourceLocation at = SourceLocation::current());
  /// Returns the bytes of a string as tokens.
  static Tokens of_bytes(std::string text);
  /// Returns the number of tokens in all files.
  std::int64_t size() const;

 private:
  friend class TokenLoader;
  struct Data;
  Tokens() = default;
  std::shared_ptr<const Data> data_;
};

/// Options of `TokenLoader`.
struct TokenLoaderOptions {
  /// Tokens between the starts of two examples. 0: the length of an example.
  std::int64_t stride = 0;
  /// Key of the order, which differs in each epoch. Empty: the order of the files.
  Key key = {};
  std::int64_t vocab = 0;         ///< Raises for a token of at least this number. 0: no check.
  std::optional<Mesh> mesh = {};  ///< Mesh of the batches. Not set: the mesh in scope.
  /// Mapping of the batches. Not set: the mapping in scope.
  std::optional<Mapping> axis_resources = {};
  const ProcessGroup* group = nullptr;  ///< Null: the processes of this program. For tests.
};

/// Reads batches of examples. An example is a window of consecutive tokens of one file. Each epoch
/// has every example once.
///
///     TokenLoader batches(Tokens({"train.bin"}), Batch, Pos, {.key = random::key(1)});
///     auto ids = batches.next();  // (batch, position)
class TokenLoader {
 public:
  /// Creates a loader at position 0.
  ///
  /// @param tokens   tokens
  /// @param Batch    axis of the examples of a batch
  /// @param Pos      axis of the tokens of an example
  /// @param options  order, checks and sharding
  /// @throws haliax::Error if no file has enough tokens for one example, or if the stride is
  ///     negative
  TokenLoader(Tokens tokens, const Axis& Batch, const Axis& Pos, TokenLoaderOptions options = {},
              SourceLocation at = SourceLocation::current());
  /// Returns the next examples. On a mesh, a process reads only the rows of its own devices.
  ///
  /// @return `i32 (Batch, Pos)`
  /// @throws haliax::Error if a token is not in the vocabulary, or is 2^31 or more; the position
  ///     does not advance then
  NamedArray next(SourceLocation at = SourceLocation::current());
  /// Returns the number of examples read so far, in all epochs. Save it to resume.
  std::int64_t position() const { return position_; }
  /// Sets the position.
  /// @throws haliax::Error if `position` is negative
  void seek(std::int64_t position, SourceLocation at = SourceLocation::current());
  /// Returns the number of examples in an epoch.
  std::int64_t examples() const;
  /// Returns the epoch of the next example, from 0.
  std::int64_t epoch() const { return position_ / examples(); }
  /// Returns the number of tokens that this process has read.
  std::int64_t tokens_read() const { return tokens_read_; }

 private:
  void read(std::int64_t example, std::int64_t first, std::int64_t count, std::int32_t* to) const;
  Tokens tokens_;
  Axis batch_, pos_;
  TokenLoaderOptions options_;
  std::vector<std::int64_t> examples_before_;  // examples before each file, then all examples
  std::uint64_t key_ = 0;
  std::int64_t position_ = 0, tokens_read_ = 0;
};

}  // namespace haliax
