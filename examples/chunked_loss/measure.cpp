// Measures one method in a child process, whose resident memory a thread samples during the run.
#include "measure.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

namespace chunked_loss {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double resident() {
  std::ifstream in("/proc/self/statm");
  double total = 0, pages = 0;
  in >> total >> pages;
  return pages * double(sysconf(_SC_PAGESIZE));
}

// Samples the memory of this process from a separate thread.
class Watch {
 public:
  Watch()
      : start_(now()), thread_([this] {
          while (!done_) {
            samples_.push_back({now() - start_, resident()});
            std::this_thread::sleep_for(std::chrono::microseconds(500));
          }
        }) {}
  ~Watch() {
    if (thread_.joinable()) stop();
  }
  void stop() {
    done_ = true;
    thread_.join();
    samples_.push_back({now() - start_, resident()});
  }
  double span() const { return samples_.back().first; }
  // Returns the peak in each of the equal intervals of time. An interval without a sample repeats
  // the previous one.
  std::vector<double> curve(double baseline) const {
    std::vector<double> most(curve_points, -1);
    for (auto& [t, bytes] : samples_) {
      auto& at = most[std::min(curve_points - 1, std::size_t(t / span() * curve_points))];
      at = std::max(at, bytes - baseline);
    }
    double last = 0;
    for (auto& m : most) m = last = std::max(0., m < 0 ? last : m);
    return most;
  }

 private:
  double start_;
  std::atomic<bool> done_{false};
  std::vector<std::pair<double, double>> samples_;
  std::thread thread_;
};

Measured run(const Method& method, const Sizes& sizes, int threads, int runs) {
  using namespace haliax;
  if (threads > 0) set_threads(threads);
  auto p = tree_map([](const NamedArray& a) { return a.eval(); }, make_parameters(sizes));
  auto ids = make_ids(sizes).eval();
  auto step = jit([loss = method.loss](const Parameters& q, const NamedArray& i) {
    return value_and_grad(loss)(q, i);
  });

  Measured m;
  auto report = step.compile(p, ids);
  m.planned = double(report.peak_bytes);
  m.contractions = report.contractions;
  m.loops = report.loops;
  const double baseline = resident();
  {
    Watch watch;
    auto [loss, gradients] = step(p, ids);
    m.loss = loss.item();
    watch.stop();
    m.curve = watch.curve(baseline);
    m.span = watch.span();
  }
  m.peak = *std::max_element(m.curve.begin(), m.curve.end());
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    const double start = now();
    step(p, ids);
    seconds.push_back(now() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  m.seconds = seconds.empty() ? m.span : seconds[seconds.size() / 2];
  return m;
}

// Serializes the result for a pipe: the error on the first line, then numbers.
void put(std::ostream& out, const Measured& m) {
  out.precision(17);
  out << m.error << '\n'
      << m.loss << ' ' << m.seconds << ' ' << m.planned << ' ' << m.peak << ' ' << m.contractions
      << ' ' << m.loops << ' ' << m.span << ' ' << m.curve.size();
  for (double v : m.curve) out << ' ' << v;
}
bool get(std::istream& in, Measured& m) {
  std::size_t n = 0;
  std::getline(in, m.error);
  in >> m.loss >> m.seconds >> m.planned >> m.peak >> m.contractions >> m.loops >> m.span >> n;
  m.curve.resize(std::min(n, curve_points));
  for (double& v : m.curve) in >> v;
  return bool(in);
}
void write_all(int fd, const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    auto n = write(fd, text.data() + at, text.size() - at);
    if (n <= 0) return;
    at += std::size_t(n);
  }
}

}  // namespace

Measured measure(const Method& method, const Sizes& sizes, int threads, int runs) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("no process");
  if (child == 0) {
    Measured m;
    try {
      m = run(method, sizes, threads, runs);
    } catch (const std::exception& e) {
      m.error = e.what();
    }
    std::ostringstream text;
    put(text, m);
    write_all(ends[1], text.str());
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, std::size_t(n));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  Measured m;
  std::istringstream in(text);
  if (!get(in, m) && m.error.empty()) m.error = "ended without a result: too little memory?";
  return m;
}

}  // namespace chunked_loss
