// Reads text files and draws random windows of bytes from them.
#include "data.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include <haliax/view.h>

namespace gpt2 {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in.is_open() || in.bad())
    throw std::runtime_error("cannot read " + path.string() + ": " +
                             std::strerror(errno ? errno : EIO));
  return text;
}

bool is_hidden(const fs::path& path) {
  auto name = path.filename().string();
  return name.size() > 1 && name[0] == '.';
}

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  for (auto it = fs::recursive_directory_iterator(folder); it != fs::recursive_directory_iterator();
       ++it) {
    if (is_hidden(it->path()))
      it.disable_recursion_pending();
    else if (it->is_regular_file())
      files.push_back(it->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::string read_text(const std::vector<std::string>& paths) {
  std::string all;
  for (auto& path : paths) {
    try {
      if (!fs::is_directory(path)) {
        all += read_file(path);
        continue;
      }
      for (auto& file : files_below(path))
        // Files with a zero byte are not text.
        if (auto text = read_file(file); text.find('\0') == text.npos) all += text;
    } catch (const fs::filesystem_error& e) {
      throw std::runtime_error("cannot read " + path + ": " + e.code().message());
    }
  }
  if (all.empty()) throw std::runtime_error("there is no text to train on in the given paths");
  return all;
}

static std::string checked(std::string text, std::int64_t seq_len) {
  if (std::int64_t(text.size()) < seq_len)
    throw std::runtime_error("the text has " + std::to_string(text.size()) +
                             " bytes, but an example requires " + std::to_string(seq_len) +
                             "; use more text or a smaller --seq");
  return text;
}
Batches::Batches(std::string text, std::int64_t batch, std::int64_t seq_len, std::int64_t seed)
    : loader_(haliax::Tokens::of_bytes(checked(std::move(text), seq_len)), {"batch", batch},
              {"position", seq_len}, {.stride = 1, .key = haliax::random::key(seed)}) {}

std::vector<std::int32_t> Batches::next() {
  auto ids = loader_.next();
  auto all = haliax::as_span<std::int32_t>(ids);
  return {all.begin(), all.end()};
}

}  // namespace gpt2
