// Batches of tokens from files that are mapped into memory, shuffled by a formula: any example is
// found at once, so that a training resumes at any position, on any mesh, with the same order.
// docs/checkpoints.md. haliax.h does not include this.
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

// Tokens that lie one after another in each of several files, or in memory. A handle: copies share
// them.
class Tokens {
 public:
  // A .npy file of one axis (u8, u16, u32, i32 or i64), or else nothing but tokens of this dtype,
  // u8, u16 or u32, little-endian. Files must stay as they are while they are used. Raises for one
  // that cannot be read, is cut short or holds something else.
  explicit Tokens(const std::vector<std::string>& paths, DType raw = DType::u16,
                  SourceLocation = SourceLocation::current());
  static Tokens of_bytes(std::string text);  // each byte is a token
  std::int64_t size() const;                 // in all files

 private:
  friend class TokenLoader;
  struct Data;
  Tokens() = default;
  std::shared_ptr<const Data> data_;
};

struct TokenLoaderOptions {
  // from the first token of an example to that of the next; 0: as long as it is
  std::int64_t stride = 0;
  Key key = {};            // of the order, another in each epoch; empty: the order of the files
  std::int64_t vocab = 0;  // raises for a token beyond; 0: does not look
  std::optional<Mesh> mesh = {};  // how batches lie; else as mesh and mapping in scope say
  std::optional<Mapping> axis_resources = {};
  const ProcessGroup* group = nullptr;  // null: the processes of this program
};

// An example is a window of tokens that lies in one file. All are drawn once in each epoch.
class TokenLoader {
 public:
  // Raises if no file has tokens for one example, and for a stride below 0.
  TokenLoader(Tokens, const Axis& Batch, const Axis& Pos, TokenLoaderOptions = {},
              SourceLocation = SourceLocation::current());
  // (batch, position), i32: the next examples. On a mesh each device's rows alone are read, and
  // only those of devices of this process. Raises for a token beyond the vocabulary, or 2^31, and
  // says where it is; the position stays then.
  NamedArray next(SourceLocation = SourceLocation::current());
  // examples that were taken so far, in all epochs: all that a resume needs
  std::int64_t position() const { return position_; }
  void seek(std::int64_t position, SourceLocation = SourceLocation::current());  // raises below 0
  std::int64_t examples() const;                                                 // in an epoch
  std::int64_t epoch() const { return position_ / examples(); }  // of the next example
  std::int64_t tokens_read() const { return tokens_read_; }      // by this process

 private:
  void read(std::int64_t example, std::int64_t first, std::int64_t count, std::int32_t* to) const;
  Tokens tokens_;
  Axis batch_, pos_;
  TokenLoaderOptions options_;
  std::vector<std::int64_t> examples_before_;  // in the files before each, and in all
  std::uint64_t key_ = 0;
  std::int64_t position_ = 0, tokens_read_ = 0;
};

}  // namespace haliax
