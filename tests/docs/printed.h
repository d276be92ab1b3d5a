// Captures std::cout, so that a test can compare the output of a block of a page with the page.
#pragma once
#include <iostream>
#include <sstream>
#include <string>

class Printed {
 public:
  Printed() : before_(std::cout.rdbuf()) {}
  ~Printed() { std::cout.rdbuf(before_); }
  Printed(const Printed&) = delete;
  // Starts to capture. Failed checks print to std::cout as well, so each capture is short.
  void start() {
    out_.str("");
    std::cout.rdbuf(out_.rdbuf());
  }
  // Ends the capture. Returns its text without the newline at the end.
  std::string text() {
    std::cout.rdbuf(before_);
    auto text = out_.str();
    if (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }

 private:
  std::ostringstream out_;
  std::streambuf* before_;
};
