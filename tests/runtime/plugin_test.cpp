// Backends in shared libraries: errors for libraries that cannot be used, and no library is opened
// without a request.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "haliax/haliax.h"
#include "program/plugin.h"
#include "runtime/run.h"
#include "support/raises.h"

using namespace haliax;
namespace fs = std::filesystem;

namespace {

// A folder for plugins. HALIAX_PLUGINS names it during its lifetime.
struct Folder {
  Folder() {
    auto pattern = (fs::temp_directory_path() / "haliax-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    at = pattern;
    ::setenv("HALIAX_PLUGINS", ("/none:" + pattern).c_str(), 1);
  }
  ~Folder() {
    ::unsetenv("HALIAX_PLUGINS");
    fs::remove_all(at);
  }
  // Builds a shared library from source code and link options.
  void make(const std::string& name, const std::string& text, const std::string& with = "") {
    const auto file = (at / ("lib" + name)).string();
    std::ofstream(file + ".cpp") << text;
    auto* requested = std::getenv("HALIAX_CXX");
    const std::string compiler = requested && *requested ? requested : "c++";
    REQUIRE(std::system((compiler + " -shared -fPIC " + file + ".cpp -o " + file + ".so " + with)
                            .c_str()) == 0);
  }
  fs::path at;
};
std::string error_for(const std::string& name) {
  return error_of([&] { return backend(name).name(); });
}
std::string plugin_of(const std::string& version, const std::string& abi,
                      const std::string& device = "nullptr") {
  return "struct P { const char *a, *b; void* (*f)(); "
         "};\nextern \"C\" const P* haliax_plugin() { static P p{\"" +
         version + "\", \"" + abi + "\", " + device + "}; return &p; }\n";
}
bool starts(const std::string& text, const std::string& with) { return text.starts_with(with); }
std::string output_of(const std::string& command) {
  auto* pipe = popen(command.c_str(), "r");
  std::string out(1 << 20, '\0');
  out.resize(fread(out.data(), 1, out.size(), pipe));
  pclose(pipe);
  return out;
}
const fs::path& builds() {  // the build folder of this program
  static const auto at = fs::canonical("/proc/self/exe").parent_path().parent_path();
  return at;
}

}  // namespace

TEST_CASE("plugins: a missing plugin raises with the folders that were searched") {
  Folder folder;
  auto text = error_for("nobodys");
  CHECK(starts(text,
               "[backend] there is no backend nobodys; available are cpu and reference; no plugin "
               "libhaliax_nobodys.so in /none, " +
                   folder.at.string() + ", " + (builds() / "tests").string() + ", " +
                   builds().string() + ", "));
  CHECK(has(text, "/haliax; HALIAX_PLUGINS=FOLDER adds a folder of plugins"));
  CHECK(has(error_for("cqu"), "did you mean cpu?"));
  CHECK(has(error_for("../../x"), "there is no backend ../../x"));
  CHECK(has(error_for(""), "there is no backend"));
}

TEST_CASE("plugins: another version, another ABI or a missing entry point raises") {
  Folder folder;
  const std::string version = program::library_version(), abi = program::abi_hash();
  folder.make("haliax_older", plugin_of("0.0.9", abi));
  folder.make("haliax_other", plugin_of(version, "feed"));
  folder.make("haliax_stranger", "extern \"C\" int nothing() { return 0; }\n");
  const auto file = [&](const char* name) {
    return name + (" (" + folder.at.string()) + "/libhaliax_" + name + ".so)";
  };
  const auto mine = ", but this is " + version + " (" + abi + "); build both from the same sources";
  CHECK(starts(error_for("older"), "[backend] " + file("older") +
                                       " cannot be used: it was built for haliax 0.0.9 (" + abi +
                                       ")" + mine));
  CHECK(starts(error_for("other"), "[backend] " + file("other") +
                                       " cannot be used: it was built for haliax " + version +
                                       " (feed)" + mine));
  CHECK(starts(error_for("stranger"),
               "[backend] " + file("stranger") + " cannot be used: it is not a plugin"));
  std::ofstream(folder.at / "libhaliax_text.so") << "no library";
  CHECK(has(error_for("text"), "cannot be used: "));
  CHECK(error_for("text").size() > file("text").size() + 30);
}

TEST_CASE("plugins: a missing dependency of a plugin is named") {
  Folder folder;
  folder.make("wanted", "extern \"C\" int wanted() { return 1; }\n");
  folder.make("haliax_needy",
              "extern \"C\" int wanted();\n" + plugin_of("", "", "(void* (*)())&wanted"),
              "-L" + folder.at.string() + " -lwanted");
  fs::remove(folder.at / "libwanted.so");
  CHECK(has(error_for("needy"),
            "cannot be used: it requires libwanted.so, which is not found; "
            "add the folder of libwanted.so to the loader's path"));
}

TEST_CASE("plugins: the factory of a device is called once, and its exception is raised") {
  Folder folder;
  const std::string version = program::library_version(), abi = program::abi_hash();
  folder.make("haliax_mine",
              "alignas(16) static int made = 0;\nstatic void* device() { return ++made == 1 ? "
              "&made : nullptr; }\n" +
                  plugin_of(version, abi, "device"));
  auto& first = backend("mine");
  CHECK(&backend("mine") == &first);
  folder.make("haliax_angry",
              "#include <stdexcept>\nstatic void* device() "
              "{ throw std::runtime_error(\"[angry] no\"); }\n" +
                  plugin_of(version, abi, "device"));
  CHECK(error_for("angry") == "[angry] no");
  CHECK(error_for("angry") == "[angry] no");
}

TEST_CASE("plugins: programs link no CUDA library and open none unless the backend is requested") {
  CHECK(jit([](const NamedArray& x) { return x + 1.; })(NamedArray(1.)).item() == 2);
  const char* const theirs[] = {"libcuda", "libcudart", "libnvrtc",
                                "libnccl", "libcublas", "libnvidia"};
  std::ostringstream maps;
  maps << std::ifstream("/proc/self/maps").rdbuf();
  for (auto* name : theirs) CHECK_MESSAGE(!has(maps.str(), name), name);
  int looked_at = 0;
  for (auto& folder : {builds(), builds() / "examples", builds() / "tests", builds() / "tools",
                       builds() / "bench"}) {
    if (!fs::exists(folder)) continue;
    for (auto& f : fs::directory_iterator(folder)) {
      const auto name = f.path().filename().string();
      bool is_program = f.is_regular_file() &&
                        (f.status().permissions() & fs::perms::owner_exec) != fs::perms::none;
      if (!is_program || has(name, "libhaliax_cuda")) continue;
      const auto needs = output_of("ldd " + f.path().string() + " 2>&1");
      ++looked_at;
      for (auto* n : theirs) CHECK_MESSAGE(!has(needs, n), (name + " needs " + n));
    }
  }
  CHECK(looked_at > 0);
}
