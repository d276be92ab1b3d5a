// Loading a state: tensors are matched with the arrays by name, shape and dtype, and then read in
// parallel into the memory of the new arrays.
#include "io/load_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <set>

#include "base/name.h"
#include "base/thread_pool.h"
#include "graph/fail.h"
#include "graph/node.h"
#include "io/read_region.h"
#include "io/sharded_arrays.h"
#include "io/state_names.h"

namespace haliax {
namespace {

constexpr std::int64_t kTaskBytes = 8 << 20;  // bytes of the file per task
constexpr std::size_t kListed = 10;           // differences that an error lists

// A tensor of an array; null if the array, or this part of it, keeps its value.
struct TensorOfEntry {
  std::vector<std::int64_t> index;  // positions of the split axes
  const StoredTensor* tensor;
};
using TensorsOfEntry = std::vector<TensorOfEntry>;

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

class Matching {
 public:
  Matching(const char* op, const TensorSource& source, const StateOptions& options)
      : op_(op), source_(source), options_(options) {
    const auto start = options.prefix.empty() ? "" : options.prefix + ".";
    for (auto& t : source.tensors())
      if (t.name.starts_with(start)) unused_.insert(t.name);
  }
  std::vector<TensorsOfEntry> match(const std::vector<StateEntry>& entries) {
    check_count(entries);
    compare_layers(entries);
    std::vector<TensorsOfEntry> out;
    for (auto& e : entries) out.push_back(tensors_for(e));
    for (auto& name : unused_) {
      if (!options_.allow_unused) {
        accepting_.insert("allow_unused = true");
        report([&name] { return name + " is unexpected"; });
      }
      wrong_.unused.emplace_back(name);
    }
    if (options_.mismatch) *options_.mismatch = wrong_;
    raise();
    return out;
  }

 private:
  // Raises if the names of the tensors would be too many to list.
  void check_count(const std::vector<StateEntry>& entries) const {
    constexpr double most = 1e6;  // missing tensors
    for (auto& e : entries) {
      double expected = 1;
      for (auto axis : e.split) expected *= double(e.array->axes()[axis].size);
      if (expected > most + double(source_.tensors().size()))
        fail(op_, "{} in the model is {:.0f} tensors, but the file has {} in total", e.path,
             expected, source_.tensors().size());
    }
  }
  TensorsOfEntry tensors_for(const StateEntry& e) {
    TensorsOfEntry out;
    for (auto& [path, index] : tensors_of(e)) {
      auto name = with_prefix(options_.prefix, path);
      auto* t = source_.find(name);
      unused_.erase(name);
      if (!t)
        missing(name);
      else if (t->shape != e.shape)
        other_shape(*std::exchange(t, nullptr), e);
      else if (t->dtype != e.array->dtype())
        other_dtype(*t, e);
      out.push_back({index, t});
    }
    return out;
  }
  void missing(const std::string& name) {
    wrong_.missing.push_back(name);
    if (options_.allow_missing) return;
    accepting_.insert("allow_missing = true");
    report([this, name] {
      return name + " is missing" + did_you_mean(name, source_.tensors(), &StoredTensor::name);
    });
  }
  void other_shape(const StoredTensor& t, const StateEntry& e) {
    wrong_.other_shape.push_back(t.name);
    if (options_.allow_other_shape) return;
    accepting_.insert("allow_other_shape = true");
    report([&t, &e] {
      return fmt::format("{} has shape {}, but the model expects {}", t.name, shape_text(t.shape),
                         shape_text(e.shape));
    });
  }
  void other_dtype(const StoredTensor& t, const StateEntry& e) {
    const auto dtype = e.array->dtype();
    wrong_.other_dtype.push_back(t.name);
    if (options_.convert == ConvertDtypes::all ||
        (options_.convert == ConvertDtypes::floats && is_float(t.dtype) && is_float(dtype)))
      return;
    accepting_.insert(is_float(t.dtype) && is_float(dtype) ? "convert = ConvertDtypes::floats"
                                                           : "convert = ConvertDtypes::all");
    report([&t, dtype] {
      return fmt::format("{} is {}, but the model expects {}", t.name, name_of(t.dtype),
                         name_of(dtype));
    });
  }
  // Reports stacks of which the file has another number of layers.
  void compare_layers(const std::vector<StateEntry>& entries) {
    std::set<std::string> seen;
    for (auto& e : entries) {
      const auto path = with_prefix(options_.prefix, e.path);
      const auto hole = path.find("{}");
      if (e.layers < 0 || hole == path.npos || !seen.insert(path.substr(0, hole)).second) continue;
      std::set<std::string> numbers;
      for (auto& t : source_.tensors()) {
        if (t.name.compare(0, hole, path, 0, hole) != 0) continue;
        const auto end = t.name.find_first_not_of("0123456789", hole);
        if (end != hole && end != t.name.npos && t.name[end] == '.')
          numbers.insert(t.name.substr(hole, end - hole));
      }
      const auto count = std::int64_t(numbers.size());
      if (count == 0 || count == e.layers) continue;
      const auto stack = path.substr(0, hole + 2);
      if (count > e.layers) {  // the layer axis has another size
        wrong_.other_shape.push_back(stack);
        if (options_.allow_other_shape) continue;
        accepting_.insert("allow_other_shape = true");
      } else if (options_.allow_missing) {
        continue;
      }
      about_layers_.push_back(
          fmt::format("the file has {} layers {}, but the model has {}", count, stack, e.layers));
    }
  }
  // Nearest names are expensive to find, so that only the listed differences become text.
  template <class Text> void report(const Text& text) {
    if (problems_++ < kListed) texts_.push_back(text());
  }
  // Returns the first line of an error with several differences.
  std::string title() const {
    if (problems_ == 0) return "the layers do not match:";
    return fmt::format("{} tensor{} not match:", problems_, problems_ == 1 ? " does" : "s do");
  }
  void raise() const {
    if (problems_ == 0 && about_layers_.empty()) return;
    auto lines = about_layers_;
    lines.insert(lines.end(), texts_.begin(), texts_.end());
    // a renamed field is one that is missing and one that is unused
    if (options_.allow_unused && (!wrong_.missing.empty() || !about_layers_.empty())) {
      const auto shown = std::min(kListed - texts_.size(), wrong_.unused.size());
      for (std::size_t i = 0; i < shown; ++i) lines.push_back(wrong_.unused[i] + " is unexpected");
    }
    if (problems_ > kListed) lines.push_back(fmt::format("and {} more", problems_ - kListed));
    const bool one = lines.size() == 1;
    auto text = one ? lines[0] : title();
    if (!one)
      for (auto& line : lines) text += "\n  " + line;
    if (!accepting_.empty())
      text +=
          fmt::format("{}{{.{}}} accepts this", one ? "; " : "\n", fmt::join(accepting_, ", ."));
    fail(op_, text);
  }

  const char* op_;
  const TensorSource& source_;
  const StateOptions& options_;
  StateMismatch wrong_;
  std::set<std::string, std::less<>> unused_;
  std::vector<std::string> about_layers_, texts_;
  std::set<std::string> accepting_;  // options that accept the differences
  std::size_t problems_ = 0;
};

// A region of one tensor, and its place in memory.
struct ReadTask {
  const StoredTensor* tensor;
  std::vector<RegionDim> dims;
  DType dtype;
  std::byte* result;
};

// Appends tasks of at most kTaskBytes.
void add_tasks(std::vector<ReadTask>& tasks, ReadTask task) {
  std::int64_t elements = 1;
  for (auto& d : task.dims) elements *= d.size;
  if (!task.dims.empty()) {
    auto& outer = task.dims[0];
    const auto bytes = elements * bytes_of(task.tensor->dtype);
    const auto pieces = std::clamp<std::int64_t>(bytes / kTaskBytes, 1, outer.size);
    const auto each = (outer.size + pieces - 1) / pieces;
    for (std::int64_t i = 0; i < outer.size; i += each) {
      auto piece = task;
      piece.dims[0].start += i;
      piece.dims[0].size = std::min(each, outer.size - i);
      piece.result += i * outer.stride * bytes_of(task.dtype);
      tasks.push_back(std::move(piece));
    }
  } else {
    tasks.push_back(std::move(task));
  }
}
// Appends the tasks that fill a part of an array.
void add_part(std::vector<ReadTask>& tasks, const StateEntry& e, const TensorsOfEntry& tensors,
              const ArrayByParts::PartToFill& to) {
  const auto strides = program::row_major(to.part.sizes);
  const auto axes = e.array->axes();
  for (auto& [index, tensor] : tensors) {
    std::int64_t first = 0;
    bool here = tensor != nullptr;
    for (std::size_t k = 0; k < index.size(); ++k) {
      const auto axis = e.split[k];
      const auto i = index[k] - to.part.start[axis];
      here = here && i >= 0 && i < to.part.sizes[axis];
      first += i * strides[axis];
    }
    if (!here) continue;
    std::vector<RegionDim> dims;
    for (auto axis : order_of(e))
      dims.push_back({axes[axis].size, to.part.start[axis], to.part.sizes[axis], strides[axis]});
    add_tasks(tasks, {tensor, merged(std::move(dims)), e.array->dtype(),
                      to.data + first * bytes_of(e.array->dtype())});
  }
}
// Copies the old values of a part, for the tensors that are missing.
void keep_values(const StateEntry& e, const ArrayByParts::PartToFill& to) {
  const auto bytes = e.array->bytes();
  std::vector<std::int64_t> sizes;
  for (auto& a : e.array->axes()) sizes.push_back(a.size);
  const auto strides = program::row_major(sizes);
  std::int64_t first = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) first += to.part.start[d] * strides[d];
  const auto width = bytes_of(e.array->dtype());
  copy_strided(bytes.data() + first * width, strides, to.data, program::row_major(to.part.sizes),
               to.part.sizes, width);
}

void run_tasks(const TensorSource& source, std::vector<ReadTask> tasks) {
  // in the order of the file, so that reads are sequential
  std::stable_sort(tasks.begin(), tasks.end(), [](auto& a, auto& b) {
    return std::pair(a.tensor->file, a.tensor->begin) < std::pair(b.tensor->file, b.tensor->begin);
  });
  std::vector<ReadScratch> scratch(std::size_t(std::max(1, threads())));
  std::mutex failing;
  std::exception_ptr wrong;
  parallel_for(std::int64_t(tasks.size()), int(scratch.size()), [&](std::int64_t k, int worker) {
    auto& t = tasks[std::size_t(k)];
    try {
      read_region(source, *t.tensor, t.dims, t.dtype, t.result, scratch[std::size_t(worker)]);
    } catch (...) {
      std::lock_guard hold(failing);
      if (!wrong) wrong = std::current_exception();
    }
  });
  if (wrong) std::rethrow_exception(wrong);
}

}  // namespace

void load_entries(const char* op, const std::vector<StateEntry>& entries,
                  const TensorSource& source, const StateOptions& options,
                  const ProcessGroup& group) {
  const auto tensors = Matching(op, source, options).match(entries);
  struct Loaded {
    const StateEntry* entry;
    ArrayByParts array;
  };
  std::vector<Loaded> all;
  std::vector<ReadTask> tasks;
  for (std::size_t k = 0; k < entries.size(); ++k) {
    auto& e = entries[k];
    auto is_missing = [](auto& t) { return !t.tensor; };
    const auto missing = std::count_if(tensors[k].begin(), tensors[k].end(), is_missing);
    if (missing == std::int64_t(tensors[k].size()) && missing > 0) continue;
    all.push_back(
        {&e, ArrayByParts(e.array->axes(), e.array->dtype(), placement_like(*e.array), group)});
    for (auto& part : all.back().array.parts_to_fill()) {
      if (missing > 0) keep_values(e, part);
      add_part(tasks, e, tensors[k], part);
    }
  }
  run_tasks(source, std::move(tasks));
  std::vector<detail::StateConversion*> conversions;
  for (auto& loaded : all) {
    *loaded.entry->array = loaded.array.finish();
    for (auto* c = loaded.entry->conversion.get(); c; c = c->outer.get())
      if (std::find(conversions.begin(), conversions.end(), c) == conversions.end())
        conversions.push_back(c);
  }
  // the tree of an outer conversion holds the fields of an inner one
  std::stable_sort(conversions.begin(), conversions.end(),
                   [](auto* a, auto* b) { return a->depth() > b->depth(); });
  for (auto* c : conversions) c->load();
}

}  // namespace haliax
