// Checkpoints: the state of a training run in a folder. If the process or the machine fails at any
// moment, the last complete checkpoint loads. See docs/how-to/checkpoints.md. haliax.h does not
// include this header.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "haliax/state_dict.h"

namespace [[gnu::visibility("default")]] haliax {

struct ProcessGroup;  // src/io/process_group.h

/// @name Save
/// @{

/// Integers that belong to a state and are not arrays: `{{"position", batches.position()}}`.
using CheckpointNumbers = std::vector<std::pair<std::string, std::int64_t>>;

/// Options of `Checkpoints`, and of loading.
struct CheckpointOptions {
  int keep = 3;                         ///< Number of checkpoints that remain; 0: all.
  bool background = true;               ///< `save` returns at once, and a thread writes.
  StateNames names = {};                ///< Other names for fields, as in `to_state_dict`.
  const ProcessGroup* group = nullptr;  ///< Null: the processes of this program. For tests.
};

/// @}

namespace detail {
struct LoadedCheckpoint {
  std::int64_t step = -1, bytes_read = 0;
  CheckpointNumbers numbers;
};
// Loads the latest complete checkpoint, or the one of `step`. Returns false if there is none. Sets
// all arrays of the entries, or none.
bool load_checkpoint(const std::string& folder, std::optional<std::int64_t> step,
                     const std::vector<StateEntry>&, const CheckpointOptions&, LoadedCheckpoint&,
                     SourceLocation);
std::int64_t number_in(const CheckpointNumbers&, std::string_view name, SourceLocation);
}  // namespace detail

/// @name Checkpoints
/// @{

/// Writes the checkpoints of one training run into a folder: `step-00000200`, ...
///
/// The arrays of a state are those of `to_state_dict`, under the same names, in the layout of their
/// axes: `state_fields` of a module is not used. On a mesh, each process writes the shards of its
/// own devices, and no process assembles a full array.
///
///     Checkpoints checkpoints("runs/a", {.keep = 3});
///     checkpoints.save(n, training, {{"position", batches.position()}});
class Checkpoints {
 public:
  /// Opens a folder. Creates the folder if it does not exist, and removes unfinished saves.
  /// @throws haliax::Error if the folder is not writable, or if another job, or another object of
  ///     this job, writes into it
  explicit Checkpoints(std::string folder, CheckpointOptions options = {},
                       SourceLocation at = SourceLocation::current());
  /// Waits for the last save. An error that no call has raised becomes a warning on stderr.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;

  /// Saves a state.
  ///
  /// A background save holds the current values. If a jitted function receives one of these arrays
  /// as a donated argument before it is written, the function copies the array first. A checkpoint
  /// becomes visible when it is complete and on the disk. Then all but the last `keep` checkpoints
  /// are removed. A checkpoint of the same step is replaced.
  ///
  /// @param step     number of the step, at least 0
  /// @param state    tree of named fields
  /// @param numbers  integers to save with the state
  /// @throws haliax::Error if `step` is negative, if two arrays have the same name, or if the
  ///     previous save failed
  template <class T>
  void save(std::int64_t step, const T& state, const CheckpointNumbers& numbers = {},
            SourceLocation at = SourceLocation::current()) {
    T copy = state;
    save_entries(step, detail::checkpoint_entries(copy, options().names, at), numbers, at);
  }
  /// Waits until the last save is on the disk.
  /// @throws haliax::Error if the last save failed
  void wait(SourceLocation at = SourceLocation::current());
  /// Returns the folder.
  const std::string& folder() const;
  /// Returns the options.
  const CheckpointOptions& options() const;

 private:
  void save_entries(std::int64_t step, const std::vector<StateEntry>&, const CheckpointNumbers&,
                    SourceLocation);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// @}

/// @name Load
/// @{

/// Returns the steps of the checkpoints in a folder, in order. Damage is only detected when a
/// checkpoint is loaded.
std::vector<std::int64_t> checkpoint_steps(const std::string& folder);

/// A loaded checkpoint.
template <class T> struct Restored {
  T state;                      ///< The state.
  std::int64_t step = 0;        ///< The step.
  CheckpointNumbers numbers;    ///< The integers.
  std::int64_t bytes_read = 0;  ///< Bytes of values that this process read.
  /// Returns the integer with this name.
  /// @throws haliax::Error if there is none
  std::int64_t number(std::string_view name, SourceLocation at = SourceLocation::current()) const {
    return detail::number_in(numbers, name, at);
  }
};

/// Loads a checkpoint.
///
/// A checkpoint loads on any mesh. Each array has the placement of the array in `like`, or else
/// that of the mesh and the mapping in scope. A process reads only the bytes of its own devices.
///
/// @param folder   folder of the checkpoints
/// @param step     step to load
/// @param like     tree with the expected axes and dtypes; its values are not read, so it may be a
///     result of `eval_shape`
/// @param options  `names` and `group`
/// @throws haliax::Error if there is no such checkpoint, if arrays are missing, unused, or have
///     other axes or dtypes (the error lists the first ten), or if a checksum does not match.
///     Nothing is loaded then.
template <class T>
Restored<T> load_checkpoint(const std::string& folder, std::int64_t step, T like,
                            const CheckpointOptions& options = {},
                            SourceLocation at = SourceLocation::current()) {
  detail::LoadedCheckpoint loaded;
  detail::load_checkpoint(folder, step, detail::checkpoint_entries(like, options.names, at),
                          options, loaded, at);
  detail::note_fields(walk_of(like, {.paths = true}));
  return {std::move(like), loaded.step, std::move(loaded.numbers), loaded.bytes_read};
}
/// Loads the latest complete checkpoint, or returns nothing if the folder has none. A damaged
/// checkpoint is skipped with a warning on stderr.
///
///     if (auto found = latest_checkpoint("runs/a", training)) training = found->state;
///
/// @throws haliax::Error if all checkpoints are damaged, or if the arrays do not match `like`
/// @see load_checkpoint
template <class T>
std::optional<Restored<T>> latest_checkpoint(const std::string& folder, T like,
                                             const CheckpointOptions& options = {},
                                             SourceLocation at = SourceLocation::current()) {
  detail::LoadedCheckpoint loaded;
  if (!detail::load_checkpoint(folder, {}, detail::checkpoint_entries(like, options.names, at),
                               options, loaded, at))
    return {};
  detail::note_fields(walk_of(like, {.paths = true}));
  return Restored<T>{std::move(like), loaded.step, std::move(loaded.numbers), loaded.bytes_read};
}

/// Converts a checkpoint, from any mesh, into one safetensors file of full tensors. The file is
/// that of `write_safetensors(path, to_state_dict(state))`. One array is in memory at a time.
///
/// @param folder  folder of the checkpoints
/// @param step    step to convert
/// @param path    file to write
/// @param prefix  converts only the arrays whose names start with it (`"model."`), and removes it
///     from the names
/// @throws haliax::Error if there is no such checkpoint, if it is damaged, if no array has the
///     prefix, or if the file cannot be written
void write_one_file(const std::string& folder, std::int64_t step, const std::string& path,
                    const std::string& prefix = {}, SourceLocation at = SourceLocation::current());

/// @}

}  // namespace haliax
