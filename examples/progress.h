// Displays the progress of training: a bar on a terminal, occasional lines elsewhere, and a plot of
// the losses.
#pragma once
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace examples {

class Progress {
 public:
  // A limit of 0 means no limit. `before` is the number of steps of the resumed run: they count for
  // the limit, their seconds do not.
  Progress(std::int64_t steps, double seconds, std::int64_t tokens_per_step,
           std::int64_t before = 0);
  double elapsed() const;
  double done() const;  // 0 ... 1, by the limit that is reached first
  void add(double loss);
  void finish();
  std::int64_t step() const { return before_ + std::int64_t(losses_.size()); }  // steps so far
  const std::vector<double>& losses() const { return losses_; }

 private:
  void draw(bool last);

  std::int64_t steps_, tokens_per_step_, before_;
  double seconds_, smooth_ = 0, drawn_ = -1e9, first_ = 0;
  std::int64_t drawn_step_ = -1;
  std::FILE* out_;  // stderr; on ranks other than 0, their log
  bool terminal_;
  std::vector<double> losses_;
  std::chrono::steady_clock::time_point start_;
};

// On ranks other than 0, sends stdout to a file of the folder `logs`, or to nothing if it is empty.
// Raises if the file cannot be written.
void speak_alone(const std::string& logs = "");

// Draws the loss of each step. Raises if the file cannot be written.
void write_loss_curve(const std::string& path, const std::vector<double>& losses);

}  // namespace examples
