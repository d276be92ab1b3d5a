// Loading checkpoints: new arrays are read part by part, and replace those of the state after all
// are complete.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <span>

#include "base/name.h"
#include "base/thread_pool.h"
#include "io/checkpoint_io.h"
#include "io/safetensors.h"
#include "io/joint_errors.h"
#include "io/state_names.h"

namespace haliax {
namespace {

constexpr const char* kReading = "load_checkpoint";

// Returns the array in the checkpoint for each entry. Raises if any does not match.
std::vector<const SavedArray*> matched(const std::vector<StateEntry>& entries, const Manifest& m,
                                       const std::string& which) {
  std::map<std::string_view, const SavedArray*> left;
  std::vector<std::string> problems;
  for (auto& a : m.arrays) left[a.name] = &a;
  std::vector<const SavedArray*> out;
  for (auto& e : entries) {
    auto found = left.find(e.path);
    if (found == left.end()) {
      problems.push_back(e.path + " is missing" +
                         did_you_mean(e.path, m.arrays, &SavedArray::name));
      continue;
    }
    auto& a = *found->second;
    auto axes = e.array->axes();
    auto dtype = e.array->dtype();
    auto differs = [&](auto is, auto requested) {
      problems.push_back(fmt::format("{} is {}, but the model expects {}", e.path, is, requested));
    };
    if (a.axes != axes)
      differs(to_string(a.axes), to_string(axes));
    else if (a.dtype != dtype)
      differs(name_of(a.dtype), name_of(dtype));
    out.push_back(&a);
    left.erase(found);
  }
  for (auto& a : m.arrays)
    if (left.contains(a.name)) problems.push_back(a.name + " is unexpected");
  if (problems.empty()) return out;
  constexpr std::size_t most = 10;
  auto text = fmt::format("{} is of another model; {} array{} not match:", which, problems.size(),
                          problems.size() == 1 ? " does" : "s do");
  for (std::size_t i = 0; i < std::min(problems.size(), most); ++i) text += "\n  " + problems[i];
  if (problems.size() > most) text += fmt::format("\n  and {} more", problems.size() - most);
  throw Error("[load_checkpoint] " + text);
}

// Reads all parts of all arrays, one task per block, on the thread pool.
void read_all(const CheckpointReader& reader, const std::vector<const SavedArray*>& arrays,
              const std::vector<ArrayByParts>& created) {
  struct Task {
    std::size_t array;
    const SavedBlock* block;
  };
  std::vector<Task> tasks;
  for (std::size_t k = 0; k < created.size(); ++k)
    for (auto& block : arrays[k]->blocks) tasks.push_back({k, &block});
  // largest blocks first, so that no thread runs one alone at the end
  std::stable_sort(tasks.begin(), tasks.end(), [](auto& a, auto& b) {
    return a.block->checksums.size() > b.block->checksums.size();
  });
  std::mutex telling;
  std::exception_ptr wrong;
  parallel_for(std::int64_t(tasks.size()), threads(), [&](std::int64_t k, int) {
    auto& t = tasks[std::size_t(k)];
    try {
      reader.read(*arrays[t.array], *t.block, created[t.array].parts_to_fill());
    } catch (...) {
      std::lock_guard hold(telling);
      if (!wrong) wrong = std::current_exception();
    }
  });
  if (wrong) std::rethrow_exception(wrong);
}

// Reads the arrays of a state into `loaded`. On an error nothing is changed.
std::int64_t read_state(const std::string& path, std::int64_t step,
                        const std::vector<StateEntry>& entries, const ProcessGroup& group,
                        std::vector<NamedArray>& loaded, CheckpointNumbers& numbers) {
  CheckpointReader reader(path, step);
  const auto arrays = matched(entries, reader.manifest(), path);
  std::vector<ArrayByParts> created;
  for (std::size_t k = 0; k < entries.size(); ++k)
    created.emplace_back(arrays[k]->axes, arrays[k]->dtype, placement_like(*entries[k].array),
                         group);
  read_all(reader, arrays, created);
  loaded.clear();
  for (auto& m : created) loaded.push_back(m.finish());
  numbers = reader.manifest().numbers;
  return reader.bytes_read();
}

// Corruption on one process counts for all processes.
struct Restored {
  std::vector<NamedArray> arrays;
  CheckpointNumbers numbers;
  std::int64_t bytes_read = 0;
  std::string damage;  // empty: none
};
Restored attempt(const std::string& path, std::int64_t step, const std::vector<StateEntry>& entries,
                 const ProcessGroup& group) {
  Restored out;
  auto errors = on_all_processes(group, [&]() -> std::string {
    try {
      out.bytes_read = read_state(path, step, entries, group, out.arrays, out.numbers);
      return "";
    } catch (const CorruptCheckpoint& e) {
      return e.what();
    }
  });
  for (std::size_t r = 0; r < errors.size() && out.damage.empty(); ++r)
    if (!errors[r].empty())
      out.damage = group.count == 1 ? errors[r] : fmt::format("process {}: {}", r, errors[r]);
  return out;
}

// Returns the step folders that process 0 finds, newest first, so that all processes try the same
// ones.
std::vector<StepFolder> candidates(const std::string& folder, std::optional<std::int64_t> step,
                                   const ProcessGroup& group) {
  auto seen = on_all_processes(group, [&] {
    std::string text;
    if (group.rank == 0)
      for (auto& s : step_folders(folder)) text += fmt::format("{} {} ", s.step, s.attempt);
    return text;
  });
  std::vector<StepFolder> out;
  std::size_t at = 0;
  auto number = [&] {
    auto end = seen[0].find(' ', at);
    auto n = std::stoll(seen[0].substr(at, end - at));
    at = end + 1;
    return n;
  };
  while (at < seen[0].size()) {
    StepFolder s{number()};
    s.attempt = int(number());
    if (!step || s.step == *step) out.insert(out.begin(), s);
  }
  return out;
}

std::string listed(const std::vector<std::int64_t>& steps) {
  constexpr std::size_t most = 10;
  std::vector<std::int64_t> last(steps.end() - std::ptrdiff_t(std::min(most, steps.size())),
                                 steps.end());
  return steps.empty()
             ? "none"
             : fmt::format("{}{}", steps.size() > most ? "..., " : "", fmt::join(last, ", "));
}

bool load(const std::string& folder, std::optional<std::int64_t> step,
          const std::vector<StateEntry>& entries, const ProcessGroup& group,
          detail::LoadedCheckpoint& loaded) {
  const auto all = candidates(folder, step, group);
  if (all.empty() && !step) return false;
  if (all.empty())
    throw Error(fmt::format("[{}] {} has no checkpoint of step {}; it has steps {}", kReading,
                            folder, *step, listed(checkpoint_steps(folder))));
  std::string damaged;
  for (auto& candidate : all) {
    const auto path = folder + "/" + candidate.name();
    auto got = attempt(path, candidate.step, entries, group);
    if (got.damage.empty()) {
      for (std::size_t k = 0; k < entries.size(); ++k) *entries[k].array = std::move(got.arrays[k]);
      loaded = {candidate.step, got.bytes_read, std::move(got.numbers)};
      return true;
    }
    damaged += fmt::format("\n  {} is damaged: {}", path, got.damage);
    if (!step && group.rank == 0)
      fmt::print(stderr, "haliax: warning: [{}] {} is damaged and skipped: {}\n", kReading, path,
                 got.damage);
  }
  throw Error(fmt::format("[{}] all checkpoints are damaged:{}", kReading, damaged));
}

}  // namespace

bool detail::load_checkpoint(const std::string& folder, std::optional<std::int64_t> step,
                             const std::vector<StateEntry>& entries,
                             const CheckpointOptions& options, LoadedCheckpoint& loaded,
                             SourceLocation at) {
  auto& group = options.group ? *options.group : all_processes();
  return with_location(kReading, at, [&] { return load(folder, step, entries, group, loaded); });
}
std::int64_t detail::number_in(const CheckpointNumbers& numbers, std::string_view name,
                               SourceLocation at) {
  for (auto& [known, value] : numbers)
    if (known == name) return value;
  CallSite here(at);
  fail(kReading, "there is no number {} in the checkpoint{}", printable(name),
       did_you_mean(name, numbers, [](auto& n) { return n.first; }));
}
std::vector<std::int64_t> checkpoint_steps(const std::string& folder) {
  std::vector<std::int64_t> out;
  for (auto& s : step_folders(folder))
    if (out.empty() || out.back() != s.step) out.push_back(s.step);
  return out;
}

void write_one_file(const std::string& folder, std::int64_t step, const std::string& path,
                    const std::string& prefix, SourceLocation at) {
  with_location("write_one_file", at, [&] {
    auto found = step_folders(folder);
    std::erase_if(found, [&](auto& s) { return s.step != step; });
    if (found.empty())
      throw Error(fmt::format("[{}] {} has no checkpoint of step {}", kReading, folder, step));
    const auto name = folder + "/" + found.back().name();
    const auto unfinished = path + ".tmp." + std::to_string(::getpid());
    try {
      CheckpointReader reader(name, step);
      std::vector<const SavedArray*> order;
      for (auto& a : reader.manifest().arrays)
        if (a.name.starts_with(prefix)) order.push_back(&a);
      if (order.empty())
        throw Error(fmt::format("[{}] {} has no array with the prefix {}", kReading, name,
                                printable(prefix)));
      std::stable_sort(order.begin(), order.end(),
                       [](auto* a, auto* b) { return bytes_of(a->dtype) > bytes_of(b->dtype); });
      std::vector<TensorHead> heads;
      for (auto* a : order)
        for (auto& t : tensors_of(*a, full_part(a->axes))) {
          t.name.erase(0, prefix.size());
          heads.push_back(std::move(t));
        }
      OutputFile file("write_one_file", unfinished);
      const auto head = safetensors_head(heads, {{"format", "pt"}});
      file.write(std::as_bytes(std::span(head)));
      for (auto* a : order) {
        Buffer full(a->bytes());
        const ArrayByParts::PartToFill all{full_part(a->axes), full.data()};
        for (auto& block : a->blocks) reader.read(*a, block, {&all, 1});
        file.write({full.data(), std::size_t(a->bytes())});
      }
      file.sync_and_close();
      if (std::rename(unfinished.c_str(), path.c_str()) != 0)
        throw Error("[write_one_file] " + path + " cannot be written");
    } catch (const CorruptCheckpoint& e) {
      ::unlink(unfinished.c_str());
      throw Error(fmt::format("[{}] {} is damaged: {}", kReading, name, e.what()));
    } catch (...) {
      ::unlink(unfinished.c_str());
      throw;
    }
  });
}

}  // namespace haliax
