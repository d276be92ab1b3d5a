// The command lines of the examples, the tools and the benches. CLI11, which costs each file that
// includes it seconds to compile, stands behind it, in command_line.cpp.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace examples {

// What may be said about an option; CommandLine has it.
class Option {
 public:
  Option& range(double least, double most);  // both may be given
  Option& positive();
  Option& not_negative();
  Option& one_of(std::vector<std::string> words);
  Option& required();
  Option& needs(const Option& other);  // only beside that one
  Option& excludes(const Option& other);

 private:
  friend class CommandLine;
  Option(void* known, bool real) : known_(known), real_(real) {}
  void* known_;
  bool real_;  // takes numbers with a fraction
};

// Options and what they are written to, whose values stay where an option is not given; --help
// prints both.
class CommandLine {
 public:
  explicit CommandLine(const std::string& about);
  ~CommandLine();
  CommandLine(CommandLine&&) noexcept;

  // "--name", or "name" for a word without one.
  Option option(const std::string& name, std::string& value, const std::string& help = "");
  Option option(const std::string& name, int& value, const std::string& help = "");
  Option option(const std::string& name, std::int64_t& value, const std::string& help = "");
  Option option(const std::string& name, double& value, const std::string& help = "");
  Option option(const std::string& name, std::vector<std::string>& values,
                const std::string& help = "");
  Option flag(const std::string& name, bool& value, const std::string& help = "");
  // A word that comes first, with options of its own; of those that there are one has to be given.
  CommandLine& command(const std::string& name, const std::string& about);
  bool given() const;  // whether this command was

  // The exit status where the program ends here: after --help, or 2 and `program: what is wrong`
  // for a mistake.
  std::optional<int> parse(int argc, char** argv);

 private:
  struct Impl;
  explicit CommandLine(std::unique_ptr<Impl>);
  template <class T>
  Option add(const std::string& name, T& value, const std::string& help, bool real = false);
  std::unique_ptr<Impl> impl_;
};

}  // namespace examples
