// CUDA on the host: the text of kernels is compiled by the host's compiler, memory is the host's, threads that wait for each
// other are fibers.
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <unordered_map>

#include "../api.h"
#include "base/environment.h"
#include "base/scalar.h"
#include "fibers.h"
#include "haliax/error.h"

namespace haliax::cuda {
namespace {

struct Compiled {
  void (*run)(const void* words) = nullptr;
  void (*set_thread)(SimulatedThread*) = nullptr;
};

// Where texts and what is made of them lie: for good, if somebody says where.
std::filesystem::path folder() {
  static const std::filesystem::path made = [] {
    if (auto* cache = std::getenv("HALIAX_CACHE"); cache && *cache) {
      std::error_code failed;
      std::filesystem::create_directories(cache, failed);
      if (failed) refuse_asked("HALIAX_CACHE", cache, "a folder, or one that can be made (" + failed.message() + ")");
      return std::filesystem::path(cache);
    }
    auto pattern = (std::filesystem::temp_directory_path() / "haliax-XXXXXX").string();
    if (!mkdtemp(pattern.data()))
      throw Error("[cuda] no folder can be made in " + std::filesystem::temp_directory_path().string());
    static const struct Removed {
      std::string at;
      ~Removed() {
        std::error_code ignored;
        std::filesystem::remove_all(at, ignored);
      }
    } removed{pattern};
    return std::filesystem::path(pattern);
  }();
  return made;
}
// Compiled, or as it was compiled before: by the text and how it is compiled. It appears at once or not at all, and what cannot
// be opened is made anew.
void* library_of(const std::string& text) {
  auto* asked = std::getenv("HALIAX_CXX");
  const auto compiler = fmt::format("{} -std=c++20 -O1 -w -ffp-contract=off -fPIC -shared", asked && *asked ? asked : "c++");
  const auto name = folder() / fmt::format("sim-{:016x}", std::hash<std::string>()(compiler + text));
  const auto library = name.string() + ".so", mine = fmt::format("{}-{}", name.string(), getpid());
  if (auto* known = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) return known;
  std::ofstream(mine + ".cpp") << text;
  const auto command = fmt::format("{0} '{1}.cpp' -o '{1}.so'", compiler, mine);
  const bool made = std::system(command.c_str()) == 0;
  std::filesystem::remove(mine + ".cpp");
  if (!made) throw Error("[cuda] the host's compiler (HALIAX_CXX, or else c++) refuses a kernel: " + command);
  std::filesystem::rename(mine + ".so", library);
  auto* opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!opened) throw Error(std::string("[cuda] ") + dlerror());
  return opened;
}

std::vector<void*> compile(const std::vector<Kernel>& kernels) {
  static std::mutex lock;
  static auto* known = new std::unordered_map<std::string, Compiled>;
  std::lock_guard hold(lock);
  auto text = prelude(true);
  std::vector<std::string> added;
  for (auto& k : kernels) {
    if (known->count(k.name) || std::count(added.begin(), added.end(), k.name)) continue;
    added.push_back(k.name);
    text +=
        k.text + fmt::format("extern \"C\" void {0}_run(const void* w) {{ {0}(*static_cast<const {0}_words*>(w)); }}\n", k.name);
  }
  if (!added.empty()) {
    text += "}\n";
    auto* library = library_of(text);
    auto symbol = [&](const std::string& name) { return dlsym(library, name.c_str()); };
    for (auto& name : added)
      (*known)[name] = {reinterpret_cast<void (*)(const void*)>(symbol(name + "_run")),
                        reinterpret_cast<void (*)(SimulatedThread*)>(symbol("haliax_set_thread"))};
  }
  std::vector<void*> out;
  for (auto& k : kernels) out.push_back(&known->at(k.name));
  return out;
}

void launch(void* kernel, const Launch& l, const std::int64_t* words) {
  auto& k = *static_cast<Compiled*>(kernel);
  std::vector<std::int64_t> copy(words, words + std::max<std::size_t>(l.words.size(), 1));
  std::vector<unsigned char> shared(std::size_t(l.shared) + 16);
  SimulatedThread at{0, 0, unsigned(l.threads), unsigned(l.blocks), shared.data(), nullptr, nullptr};
  k.set_thread(&at);
  for (at.block = 0; at.block < at.blocks; ++at.block) {
    std::memset(shared.data(), 0xff, shared.size());  // NaN: nobody has written it yet
    if (l.waits)
      run_block(
          at, [&] { k.run(copy.data()); }, at.block);
    else
      for (at.x = 0; at.x < at.threads; ++at.x) k.run(copy.data());
  }
}

// What cuBLASLt is told is taken at its word.
template <class Sum> std::vector<Sum> wide(const Matrix& m, const void* from, std::int64_t at) {
  std::vector<Sum> out(std::size_t(m.rows * m.cols));
  auto* p = static_cast<const std::byte*>(from);
  for (std::int64_t c = 0; c < m.cols; ++c)
    for (std::int64_t r = 0; r < m.rows; ++r)
      out[std::size_t(m.transposed ? r * m.cols + c : c * m.rows + r)] =
          Sum(scalar::load(m.dtype, p + (at + c * m.ld + r) * bytes_of(m.dtype)).real);
  return out;
}
template <class Sum> void multiply_as(const Product& p, const void* a, const void* b, void* out) {
  const auto m = p.out.rows, n = p.out.cols, k = p.a.transposed ? p.a.rows : p.a.cols;
  for (std::int64_t i = 0; i < p.batch; ++i) {
    auto x = wide<Sum>(p.a, a, i * p.a.step), y = wide<Sum>(p.b, b, i * p.b.step);   // (m, k) and (k, n), column by column
    std::vector<Sum> column(static_cast<std::size_t>(m));
    std::vector<double> some(column.size());               // a card rounds a product and its sum at once
    for (std::int64_t c = 0; c < n; ++c) {
      auto* to = static_cast<std::byte*>(out) + (i * p.out.step + c * p.out.ld) * bytes_of(p.out.dtype);
      auto each = [&](auto f) {
        for (std::int64_t r = 0; r < m; ++r) f(column[std::size_t(r)], to + r * bytes_of(p.out.dtype));
      };
      each([&](Sum& s, std::byte* e) { s = p.accumulate ? Sum(scalar::load(p.out.dtype, e).real) : 0; });
      for (std::int64_t from = 0; from < k; from += 32) {   // sums of few terms are summed, as a card's are
        std::fill(some.begin(), some.end(), 0);
        for (std::int64_t q = from; q < std::min(k, from + 32); ++q)
          for (std::int64_t r = 0; r < m; ++r) some[std::size_t(r)] += double(x[std::size_t(q * m + r)]) * double(y[std::size_t(c * k + q)]);
        for (std::int64_t r = 0; r < m; ++r) column[std::size_t(r)] += Sum(some[std::size_t(r)]);
      }
      each([&](Sum& s, std::byte* e) { scalar::store(p.out.dtype, e, {double(s), 0}); });
    }
  }
}
void multiply(const Product& p, const void* a, const void* b, void* out) {
  auto [k, depth] = std::pair{p.a.transposed ? p.a.rows : p.a.cols, p.b.transposed ? p.b.cols : p.b.rows};
  auto [m, n] = std::pair{p.a.transposed ? p.a.cols : p.a.rows, p.b.transposed ? p.b.rows : p.b.cols};
  auto refuse = [](const char* why) { throw Error(std::string("[cuda] a product of matrices ") + why); };
  if (k != depth || m != p.out.rows || n != p.out.cols || p.out.transposed) refuse("has sizes that do not fit");
  for (auto* x : {&p.a, &p.b, &p.out})
    if (x->ld < x->rows) refuse("has a leading dimension of less than its rows");
  if (p.batch > 1 && p.out.step == 0) refuse("writes a batch into one matrix");
  for (auto [x, at] : {std::pair{&p.a, a}, std::pair{&p.b, b}, std::pair<const Matrix*, const void*>{&p.out, out}}) {
    auto bytes = x->step * bytes_of(x->dtype);
    if (reinterpret_cast<std::uintptr_t>(at) % std::uintptr_t(x->alignment) != 0 || bytes % x->alignment != 0)
      refuse("lies less aligned than it says");
  }
  p.out.dtype == DType::f64 ? multiply_as<double>(p, a, b, out) : multiply_as<float>(p, a, b, out);
}

}  // namespace

const Api& simulated() {
  static const Api api{"cuda-sim", compile, launch, multiply};
  return api;
}

}  // namespace haliax::cuda
