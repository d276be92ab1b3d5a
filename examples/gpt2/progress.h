// What a person sees while a model trains: a bar on a terminal, a line now and then elsewhere; and
// the curve of the losses.
#pragma once
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace gpt2 {

class Progress {
 public:
  // 0: no limit of that kind. `before`: steps of the run that is resumed, which count; seconds do
  // not.
  Progress(std::int64_t steps, double seconds, std::int64_t tokens_per_step,
           std::int64_t before = 0);
  double elapsed() const;
  double done() const;  // 0 ... 1, by the limit that is nearer
  void add(double loss);
  void finish();
  std::int64_t step() const { return before_ + std::int64_t(losses_.size()); }  // made so far
  const std::vector<double>& losses() const { return losses_; }

 private:
  void draw(bool last);

  std::int64_t steps_, tokens_per_step_, before_;
  double seconds_, smooth_ = 0, drawn_ = -1e9, first_ = 0;
  std::int64_t drawn_step_ = -1;
  std::FILE* out_;  // the errors' place; of other ranks than the first their log's
  bool terminal_;
  std::vector<double> losses_;
  std::chrono::steady_clock::time_point start_;
};

// A drawing of the losses, step by step; raises if it cannot be written.
void write_loss_curve(const std::string& path, const std::vector<double>& losses);

}  // namespace gpt2
