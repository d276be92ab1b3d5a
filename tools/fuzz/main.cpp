// fuzz [TARGET|FILE ...] [--runs N] [--seed S] [--seconds T] [--keep FOLDER]
//
// Runs each target (all of them by default) on random mutations of its seeds and of the files in
// tests/fuzz/TARGET, or on the given files alone. Any exception except an Error is a finding: its
// input is written to FOLDER, and belongs into tests/fuzz/TARGET once it is fixed. A crash writes
// its input there too. With clang, `libfuzz` runs the same targets under libFuzzer (HALIAX_FUZZ
// names the target).
#include <csignal>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "examples/command_line.h"
#include "fuzz.h"
#include "haliax/error.h"

namespace {

using fuzz::Bytes;
using fuzz::Target;

struct Options {
  std::vector<const Target*> targets;
  std::vector<std::string> files;
  std::string keep = ".";
  std::int64_t runs = 1000, seed = 1;
  double seconds = 1e9;
};

const Target* find(const std::string& name) {
  for (auto& t : fuzz::targets())
    if (name == t.name) return &t;
  return nullptr;
}
Bytes bytes_in(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

// The current target and input, for the signal handler.
const Target* now = nullptr;
const Bytes* input = nullptr;
char crash_file[512];
void write_input(const char* path) {
  if (auto* f = std::fopen(path, "wb")) {
    std::fwrite(input->data(), 1, input->size(), f);
    std::fclose(f);
  }
}
[[maybe_unused]] void on_signal(int signal) {  // libFuzzer has its own handler
  write_input(crash_file);
  std::fprintf(stderr, "%s: signal %d; the input is %s\n", now->name, signal, crash_file);
  std::_Exit(2);
}

long refused = 0;
// Returns true if the target accepts the input or raises an Error.
bool passes(const Target& t, const Bytes& bytes, const std::string& keep) {
  now = &t;
  input = &bytes;
  std::snprintf(
      crash_file, sizeof crash_file, "%s/%s-%016zx", keep.c_str(), t.name,
      std::hash<std::string_view>()({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  try {
    t.run(bytes);
    return true;
  } catch (const haliax::Error& e) {
    if (++refused; e.what()[0] == '[') return true;
    std::fprintf(stderr, "%s: an Error without an op: %s\n", t.name, e.what());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", t.name, e.what());
  }
  write_input(crash_file);
  std::fprintf(stderr, "%s: the input is %s\n", t.name, crash_file);
  return false;
}

Bytes changed(Bytes b, std::mt19937_64& random) {
  auto below = [&](std::size_t n) { return n ? std::size_t(random() % n) : 0; };
  static const std::string words[] = {"->",
                                      "{",
                                      "}",
                                      "(",
                                      ")",
                                      "...",
                                      ",",
                                      ":",
                                      "=",
                                      "\"",
                                      "[",
                                      "0",
                                      "-1",
                                      "99999999999999999999",
                                      "null",
                                      "a",
                                      "b",
                                      " ",
                                      "\xff\xff\xff\xff\xff\xff\xff\x7f",
                                      "{}",
                                      "1e400",
                                      "\\u0000"};
  for (auto n = 1 + below(6); n > 0; --n) {
    auto at = below(b.size() + 1);
    switch (below(5)) {
      case 0:
        if (at < b.size()) b[at] = std::uint8_t(random());
        break;
      case 1:
        if (at < b.size()) b[at] ^= std::uint8_t(1 << below(8));
        break;
      case 2:
        b.erase(b.begin() + std::ptrdiff_t(at),
                b.begin() + std::ptrdiff_t(at + below(b.size() - at + 1)));
        break;
      case 3:
        b.insert(b.begin() + std::ptrdiff_t(at), std::uint8_t(random()));
        break;
      default: {
        auto& w = words[below(std::size(words))];
        b.insert(b.begin() + std::ptrdiff_t(at), w.begin(), w.end());
      }
    }
  }
  return b;
}
[[maybe_unused]] long run(const Target& t, const Options& o) {
  std::vector<Bytes> seeds;
  for (auto& s : t.seeds) seeds.emplace_back(s.begin(), s.end());
  long finds = 0, runs = 0;
  refused = 0;
  for (auto* folder : {"tests/fuzz", "../tests/fuzz"})
    if (auto path = std::filesystem::path(folder) / t.name; std::filesystem::is_directory(path))
      for (auto& f : std::filesystem::directory_iterator(path)) seeds.push_back(bytes_in(f.path()));
  for (auto& s : seeds) {
    finds += !passes(t, s, o.keep);
    ++runs;
  }

  std::mt19937_64 random(std::uint64_t(o.seed) * 1000003);
  const auto start = std::chrono::steady_clock::now();
  auto past = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >
           o.seconds;
  };
  for (; runs < o.runs && !past() && finds < 5; ++runs) {
    auto bytes = std::string_view(t.name) == "ops"
                     ? Bytes(200)
                     : changed(seeds[random() % seeds.size()], random);
    if (std::string_view(t.name) == "ops" || random() % 8 == 0)
      for (auto& b : bytes) b = std::uint8_t(random());
    finds += !passes(t, bytes, o.keep);
  }
  std::printf("%s: %ld runs, %ld refused, %ld finds\n", t.name, runs, refused, finds);
  return finds;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Target* target =
      find(std::getenv("HALIAX_FUZZ") ? std::getenv("HALIAX_FUZZ") : "safetensors");
  if (!target) {
    std::fprintf(stderr, "HALIAX_FUZZ names no target\n");
    std::_Exit(1);
  }

  try {
    target->run({data, size});
  } catch (const haliax::Error& e) {  // other exceptions propagate, and libFuzzer saves the input
    if (e.what()[0] != '[') throw;
  }
  return 0;
}

#ifndef HALIAX_LIBFUZZER
int main(int argc, char** argv) {
  Options o;
  std::string names;
  for (auto& t : fuzz::targets()) names += (names.empty() ? "" : ", ") + std::string(t.name);
  examples::CommandLine line(
      "Runs parsers and one-op programs on random inputs. Stores inputs that crash the program, or "
      "that raise any exception except an Error.");
  std::vector<std::string> words;
  line.option("inputs", words,
              "targets (" + names +
                  "; default: all), and files to use as inputs; default: random changes of known "
                  "inputs");
  line.option("--runs", o.runs, "number of inputs per target");
  line.option("--seed", o.seed, "seed of the random inputs");
  line.option("--seconds", o.seconds, "time limit per target in seconds");
  line.option("--keep", o.keep, "folder for inputs that fail");
  if (auto status = line.parse(argc, argv)) return *status;
  for (auto& word : words) {
    if (auto* t = find(word))
      o.targets.push_back(t);
    else if (std::filesystem::exists(word))
      o.files.push_back(word);
    else {
      std::fprintf(stderr, "%s is neither a target nor a file\n", word.c_str());
      return 1;
    }
  }
  if (o.targets.empty())
    for (auto& t : fuzz::targets()) o.targets.push_back(&t);
  for (int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGILL, SIGBUS}) std::signal(signal, on_signal);
  long finds = 0;
  for (auto* t : o.targets) {
    if (o.files.empty()) finds += run(*t, o);
    for (auto& f : o.files) finds += !passes(*t, bytes_in(f), o.keep);
  }
  return finds > 0;
}
#endif
