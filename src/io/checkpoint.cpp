// Saving checkpoints: a thread writes a hidden folder and renames it when it is complete.
//
//   .lock                     held by the job that writes here; released when the job dies
//   .saving-step-00000200     being written
//   .removed-step-00000100    being removed
//   step-00000200             complete
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>
#include <thread>

#include "graph/fail.h"
#include "io/checkpoint_io.h"
#include "devices/device_memory.h"
#include "io/joint_errors.h"

namespace haliax {
namespace {

namespace fs = std::filesystem;
constexpr const char* kOp = "Checkpoints";

[[noreturn]] void cannot(const std::string& path, const char* what, const std::error_code& why) {
  throw Error(fmt::format("[{}] {} cannot be {}: {}", kOp, path, what, why.message()));
}

}  // namespace

// The exclusive right to write into a folder.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder) {
    const auto path = folder + "/.lock";
    descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) cannot(path, "opened", {errno, std::generic_category()});
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      char holder[128] = {};
      auto n = ::pread(descriptor_, holder, sizeof holder - 1, 0);
      ::close(descriptor_);
      throw Error(fmt::format(
          "[{0}] another job ({2}) is writing to {1}; wait for it, or use another folder", kOp,
          folder, n > 0 ? printable(holder) : "unknown"));
    }
    char host[64] = {};
    ::gethostname(host, sizeof host - 1);
    const auto mine = fmt::format("process {} on {}", ::getpid(), host);
    // The text only informs people. A failed write shows up in the writes that follow.
    if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, mine.data(), mine.size(), 0) < 0)
      return;
  }
  ~FolderLock() { ::close(descriptor_); }
  FolderLock(const FolderLock&) = delete;

 private:
  int descriptor_;
};

namespace {

void remove_all(const std::string& path) {
  std::error_code why;
  fs::remove_all(path, why);
  if (why) cannot(path, "removed", why);
}
// Renames the folder first, so that readers see it disappear at once, however long its removal
// takes.
void remove_step(const std::string& folder, const StepFolder& step) {
  const auto hidden = folder + "/.removed-" + step.name();
  std::error_code why;
  fs::rename(folder + "/" + step.name(), hidden, why);
  if (why) cannot(folder + "/" + step.name(), "removed", why);
  remove_all(hidden);
}

}  // namespace

struct Checkpoints::Impl {
  std::string folder;
  CheckpointOptions options;
  const ProcessGroup *group = nullptr, *all = nullptr;  // all: for the training thread
  ProcessGroup own;                  // for the writing thread, since other threads communicate too
  std::unique_ptr<FolderLock> lock;  // process 0 only
  std::thread writing;
  pid_t process = ::getpid();  // after a fork, the child has no writing thread
  std::string wrong;           // error of the last save, or empty
  SourceLocation saved_at;

  bool first() const { return group->rank == 0; }
  void open();
  void write(std::int64_t step, std::vector<ArrayToSave>&&, const CheckpointNumbers&);
  void make_visible(const StepFolder&, const std::string& hidden, Manifest);
  void remove_old(const StepFolder& written) const;
  void join() {
    if (!writing.joinable()) return;
    if (process == ::getpid())
      writing.join();
    else
      writing.detach();
  }
};

void Checkpoints::Impl::open() {
  on_all_processes(*group, [&] {
    if (!first()) return;
    std::error_code why;
    fs::create_directories(folder, why);
    if (why || !fs::is_directory(folder))
      cannot(folder, "created", why ? why : std::make_error_code(std::errc::not_a_directory));
    sync_folder(fs::path(folder).parent_path().empty() ? "."
                                                       : fs::path(folder).parent_path().string());
    lock = std::make_unique<FolderLock>(folder);
    std::vector<std::string> left;  // folders that a killed job left
    for (auto it = fs::directory_iterator(folder, why); !why && it != fs::directory_iterator();
         it.increment(why))
      if (auto name = it->path().filename().string();
          name.starts_with(".saving-step-") || name.starts_with(".removed-step-"))
        left.push_back(it->path().string());
    if (why) cannot(folder, "read", why);
    for (auto& path : left) remove_all(path);
  });
}

// Writes a checkpoint. If any process fails, all processes stop, and the hidden folder is removed.
void Checkpoints::Impl::write(std::int64_t step, std::vector<ArrayToSave>&& all,
                              const CheckpointNumbers& numbers) {
  StepFolder name{step};
  for (auto& there : step_folders(folder))
    if (first() && there.step == step) name.attempt = there.attempt + 1;
  const auto hidden = folder + "/.saving-" + StepFolder{step}.name();
  on_all_processes(*group, [&] {
    if (!first()) return;
    remove_all(hidden);
    std::error_code why;
    if (!fs::create_directory(hidden, why)) cannot(hidden, "created", why);
  });
  try {
    auto parts = on_all_processes(*group, [&] {
      auto text =
          manifest_text(write_blocks(hidden, file_name(group->rank, group->count), step, all));
      all.clear();  // releases the values
      return text;
    });
    on_all_processes(*group, [&] {
      if (!first()) return;
      auto manifest = parse_manifest(parts[0], Complete::no);
      for (int r = 1; r < group->count; ++r)
        add(manifest, parse_manifest(parts[std::size_t(r)], Complete::no), r);
      manifest.numbers = numbers;
      make_visible(name, hidden, std::move(manifest));
      remove_old(name);
    });
  } catch (...) {
    std::error_code ignored;
    if (first()) fs::remove_all(hidden, ignored);
    throw;
  }
}
void Checkpoints::Impl::make_visible(const StepFolder& name, const std::string& hidden,
                                     Manifest manifest) {
  const auto text = manifest_text(manifest);
  parse_manifest(text);  // checks that the parts of all processes cover each element once
  OutputFile file(kOp, hidden + "/" + kManifestName);
  file.write(std::as_bytes(std::span(text)));
  file.sync_and_close();
  sync_folder(hidden);
  std::error_code why;
  fs::rename(hidden, folder + "/" + name.name(), why);
  if (why) cannot(folder + "/" + name.name(), "created", why);
  sync_folder(folder);
}
// Removes the steps before the last `keep`, and the folder that this one replaces.
void Checkpoints::Impl::remove_old(const StepFolder& written) const {
  auto there = step_folders(folder);
  std::set<std::int64_t> steps;
  for (auto& s : there) steps.insert(s.step);
  while (options.keep > 0 && int(steps.size()) > options.keep) steps.erase(steps.begin());
  for (auto& s : there)
    if (s != written && (s.step == written.step || !steps.contains(s.step))) remove_step(folder, s);
}

Checkpoints::Checkpoints(std::string folder, CheckpointOptions options, SourceLocation at)
    : impl_(std::make_unique<Impl>()) {
  auto& m = *impl_;
  m.folder = std::move(folder);
  m.options = std::move(options);
  m.group = m.options.group ? m.options.group : &all_processes();
  with_location(kOp, at, [&] { m.open(); });
  m.all = m.group;
  if (m.group->separate_group) {
    m.own = m.group->separate_group();
    m.group = &m.own;
  }
}
Checkpoints::~Checkpoints() {
  impl_->join();
  if (!impl_->wrong.empty()) fmt::print(stderr, "haliax: warning: [{}] {}\n", kOp, impl_->wrong);
}
const std::string& Checkpoints::folder() const { return impl_->folder; }
const CheckpointOptions& Checkpoints::options() const { return impl_->options; }

void Checkpoints::wait(SourceLocation) {
  auto& m = *impl_;
  m.join();
  if (m.wrong.empty()) return;
  CallSite here(m.saved_at);
  fail(kOp, std::exchange(m.wrong, {}));
}

void Checkpoints::save_entries(std::int64_t step, const std::vector<StateEntry>& entries,
                               const CheckpointNumbers& numbers, SourceLocation at) {
  wait(at);
  auto& m = *impl_;
  // an all-gather, so that a process that saves alone raises here
  if (m.all->separate_group) (void)m.all->all_gather({});
  std::vector<ArrayToSave> all;
  std::vector<NamedArray> arrays;
  for (auto& e : entries) arrays.push_back(*e.array);
  eval(arrays, at);
  {
    CallSite here(at);
    if (step < 0) fail(kOp, "step {} is negative", step);
    std::set<std::string> seen;
    for (auto& e : entries) {
      if (!seen.insert(e.path).second)
        fail(kOp, "two arrays have the name {}; rename one of their fields", e.path);
      all.push_back({saved_array(e), first_copies(*e.array->node(), *m.group)});
      for (auto& p : all.back().parts)  // borrowed memory may change during the save
        if (m.options.background && p.data->is_borrowed()) p.data = DeviceMemory().copy(*p.data);
    }
  }
  m.saved_at = at;
  auto work = [&m, step, numbers, all = std::move(all)]() mutable {
    try {
      m.write(step, std::move(all), numbers);
    } catch (const std::exception& e) {
      m.wrong = without_op(e.what());
    }
  };
  if (m.options.background) {
    m.writing = std::thread(std::move(work));
  } else {
    work();
    wait(at);
  }
}

}  // namespace haliax
