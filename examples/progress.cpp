// Prints the progress bar, the progress lines and the plot of the losses.
#include "examples/progress.h"

#include <haliax/ranks.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace examples {
namespace {

double resident_mib() {
  std::ifstream in("/proc/self/statm");
  double total = 0, resident = 0;
  in >> total >> resident;
  return resident * double(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

std::string clock_text(double seconds) {
  auto s = std::int64_t(std::max(0.0, seconds) + 0.5);
  char text[32];
  std::snprintf(text, sizeof text, "%d:%02d", int(s / 60), int(s % 60));
  return text;
}

}  // namespace

void speak_alone(const std::string& logs) {
  const int rank = haliax::this_rank();
  if (rank == 0) return;
  const auto file = logs.empty() ? "/dev/null" : logs + "/rank-" + std::to_string(rank) + ".log";
  if (!logs.empty()) std::filesystem::create_directories(logs);
  if (!std::freopen(file.c_str(), "w", stdout)) throw std::runtime_error("cannot write " + file);
}

Progress::Progress(std::int64_t steps, double seconds, std::int64_t tokens_per_step,
                   std::int64_t before)
    : steps_(steps), tokens_per_step_(tokens_per_step), before_(before), seconds_(seconds),
      out_(haliax::this_rank() == 0 ? stderr : stdout), terminal_(isatty(fileno(out_))),
      start_(std::chrono::steady_clock::now()) {}

double Progress::elapsed() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}
double Progress::done() const {
  double by_steps = steps_ > 0 ? double(step()) / double(steps_) : 0,
         by_time = seconds_ > 0 ? elapsed() / seconds_ : 0;
  return std::min(1.0, std::max(by_steps, by_time));
}

void Progress::add(double loss) {
  losses_.push_back(loss);
  if (losses_.size() == 1) first_ = elapsed();  // the first step includes tracing and compiling
  smooth_ = losses_.size() == 1
                ? loss
                : smooth_ + (loss - smooth_) * std::max(0.05, 1.0 / double(losses_.size()));
  if (elapsed() - drawn_ >= (terminal_ ? 0.1 : 5)) draw(false);
}
void Progress::finish() {
  if (!losses_.empty() && (terminal_ || drawn_step_ != step())) draw(true);
}

void Progress::draw(bool last) {
  drawn_ = elapsed();
  drawn_step_ = step();
  auto n = std::int64_t(losses_.size());
  double speed =
             n > 1 && drawn_ > first_ ? double((n - 1) * tokens_per_step_) / (drawn_ - first_) : 0,
         share = done();
  std::string left = share > 0 ? clock_text(drawn_ / share * (1 - share)) : "?";
  char text[160];
  std::snprintf(text, sizeof text, "step %lld  loss %.4f  %.0f tokens/s  %s left  %.0f MiB",
                static_cast<long long>(step()), smooth_, speed, left.c_str(), resident_mib());
  if (!terminal_) {
    std::fprintf(out_, "%s\n", text);
    std::fflush(out_);
    return;
  }
  constexpr int width = 30;
  auto filled = int(share * width + 0.5);
  std::string bar(std::size_t(filled), '#');
  std::fprintf(out_, "\r[%s%*s] %s\x1b[K%s", bar.c_str(), width - filled, "", text,
               last ? "\n" : "");
}

void write_loss_curve(const std::string& path, const std::vector<double>& losses) {
  constexpr double width = 720, height = 360, margin = 48;
  double low = 0, high = 1;
  for (double l : losses)
    if (std::isfinite(l)) high = std::max(high, l);
  auto n = losses.size();
  auto x = [&](std::size_t i) {
    return margin + (width - 2 * margin) * (n > 1 ? double(i) / double(n - 1) : 0);
  };
  auto y = [&](double l) {
    return height - margin - (height - 2 * margin) * (l - low) / (high - low);
  };

  std::ofstream out(path);
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << width << ' ' << height
      << "\" font-family=\"sans-serif\" font-size=\"12\">\n"
      << "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  for (int i = 0; i <= 4; ++i) {
    double l = low + (high - low) * i / 4;
    char label[16];
    std::snprintf(label, sizeof label, "%.2f", l);
    out << "<line x1=\"" << margin << "\" x2=\"" << width - margin << "\" y1=\"" << y(l)
        << "\" y2=\"" << y(l) << "\" stroke=\"#ddd\"/>"
        << "<text x=\"" << margin - 6 << "\" y=\"" << y(l) + 4 << "\" text-anchor=\"end\">" << label
        << "</text>\n";
  }
  out << "<text x=\"" << width / 2 << "\" y=\"" << height - 12 << "\" text-anchor=\"middle\">" << n
      << " steps</text>\n"
      << "<text x=\"" << width / 2
      << "\" y=\"24\" text-anchor=\"middle\">loss</text>\n<polyline fill=\"none\" "
         "stroke=\"#2266cc\" points=\"";
  for (std::size_t i = 0; i < n; ++i)
    if (std::isfinite(losses[i])) out << x(i) << ',' << y(losses[i]) << ' ';
  out << "\"/>\n</svg>\n";
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path);
}

}  // namespace examples
