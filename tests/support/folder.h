// A temporary folder that is removed at the end of the test.
#pragma once
#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

// Returns a folder in memory for tests that write many files, since its files are not synced to a
// disk. Without one, returns the system's temporary folder.
inline std::filesystem::path memory_folder() {
  return std::filesystem::exists("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path();
}

struct Folder {
  std::filesystem::path path;
  explicit Folder(const std::filesystem::path& inside = std::filesystem::temp_directory_path()) {
    std::string name = (inside / "haliax-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string operator/(const char* name) const { return (path / name).string(); }
  std::size_t files() const {
    return std::size_t(std::distance(std::filesystem::directory_iterator(path), {}));
  }
};
