// Checkpoints: the state of a training in a folder, such that whatever happens to the process or
// the machine, the last whole one loads. docs/checkpoints.md. haliax.h does not include this.
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

// Whole numbers that belong to a state and are no arrays: {{"position", batches.position()}}.
using CheckpointNumbers = std::vector<std::pair<std::string, std::int64_t>>;

struct CheckpointOptions {
  int keep = 3;                         // the last so many stay; 0: all
  bool background = true;               // save returns at once, and a thread writes
  StateNames names = {};                // of fields, as in to_state_dict
  const ProcessGroup* group = nullptr;  // null: the processes of this program
};

namespace detail {
struct LoadedCheckpoint {
  std::int64_t step = -1, bytes_read = 0;
  CheckpointNumbers numbers;
};
// The latest whole one, or that of `step`; false: there is none. The arrays of the entries are set,
// all or none.
bool load_checkpoint(const std::string& folder, std::optional<std::int64_t> step,
                     const std::vector<StateEntry>&, const CheckpointOptions&, LoadedCheckpoint&,
                     SourceLocation);
std::int64_t number_in(const CheckpointNumbers&, std::string_view name, SourceLocation);
}  // namespace detail

// Writes the checkpoints of one training into a folder: step-00000200, ... The arrays of a state
// are those that to_state_dict finds, under the same names; each process writes the blocks that lie
// on its devices, once each, and no array is put together.
class Checkpoints {
 public:
  // Makes the folder where there is none, and sweeps up what a save that was killed has left.
  // Raises if it cannot be written, or if another job, or another object of this one, writes it.
  explicit Checkpoints(std::string folder, CheckpointOptions = {},
                       SourceLocation = SourceLocation::current());
  ~Checkpoints();  // waits; an error that nobody has been told yet becomes a warning
  Checkpoints(const Checkpoints&) = delete;

  // In the background the values are held as they are: what a step is given to write over before
  // they are written, it copies. Waits for the save before, and raises what went wrong in that.
  // Until a checkpoint is whole and on the disk it is not there; then those before the last `keep`
  // go. One of the same step is replaced.
  template <class T>
  void save(std::int64_t step, const T& state, const CheckpointNumbers& numbers = {},
            SourceLocation at = SourceLocation::current()) {
    T copy = state;
    save_entries(step, state_entries(copy, options().names, at), numbers, at);
  }
  // Until the last save is on the disk; raises what went wrong in it.
  void wait(SourceLocation = SourceLocation::current());
  const std::string& folder() const;
  const CheckpointOptions& options() const;

 private:
  void save_entries(std::int64_t step, const std::vector<StateEntry>&, const CheckpointNumbers&,
                    SourceLocation);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The steps that a folder has checkpoints of, in order; whether they are whole is seen when they
// are loaded.
std::vector<std::int64_t> checkpoint_steps(const std::string& folder);

template <class T> struct Restored {
  T state;
  std::int64_t step = 0;
  CheckpointNumbers numbers;
  std::int64_t bytes_read = 0;  // of values, by this process
  // raises if there is none
  std::int64_t number(std::string_view name, SourceLocation at = SourceLocation::current()) const {
    return detail::number_in(numbers, name, at);
  }
};

// `like`, which may be of eval_shape, with the arrays of a checkpoint. Each lies as that in `like`
// is placed, else as mesh and mapping in scope say, whatever mesh has saved it, and only what the
// devices of this process hold is read. Raises for an array that is missing, left over, or has
// other axes or another dtype, and lists the first ten; and for one that is damaged: what was read
// is compared with its checksums. Nothing is loaded then.
template <class T>
Restored<T> load_checkpoint(const std::string& folder, std::int64_t step, T like,
                            const CheckpointOptions& options = {},
                            SourceLocation at = SourceLocation::current()) {
  detail::LoadedCheckpoint loaded;
  detail::load_checkpoint(folder, step, state_entries(like, options.names, at), options, loaded,
                          at);
  detail::note_fields(walk_of(like, {.paths = true}));
  return {std::move(like), loaded.step, std::move(loaded.numbers), loaded.bytes_read};
}
// The latest that is whole; none: there is no checkpoint. One that is damaged or was never finished
// is passed over with a warning on stderr that says what is wrong with it; raises if all are.
template <class T>
std::optional<Restored<T>> latest_checkpoint(const std::string& folder, T like,
                                             const CheckpointOptions& options = {},
                                             SourceLocation at = SourceLocation::current()) {
  detail::LoadedCheckpoint loaded;
  if (!detail::load_checkpoint(folder, {}, state_entries(like, options.names, at), options, loaded,
                               at))
    return {};
  detail::note_fields(walk_of(like, {.paths = true}));
  return Restored<T>{std::move(like), loaded.step, std::move(loaded.numbers), loaded.bytes_read};
}

// One safetensors file of a checkpoint, whatever mesh has saved it: whole tensors, as
// write_safetensors(path, to_state_dict(...)) gives. `prefix`: only of arrays whose names begin so
// ("model."), without it. One array is held at a time. Raises as load_checkpoint, for a prefix that
// no array has, and for a file that cannot be written.
void write_one_file(const std::string& folder, std::int64_t step, const std::string& path,
                    const std::string& prefix = {}, SourceLocation = SourceLocation::current());

}  // namespace haliax
