// Command lines of the examples, tools and benchmarks. CLI11 is included only in command_line.cpp,
// since it adds seconds to the compile time of each file.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace examples {

// Constraints of an option that CommandLine returned.
class Option {
 public:
  Option& range(double least, double most);  // inclusive range
  Option& positive();
  Option& not_negative();
  Option& one_of(std::vector<std::string> words);
  Option& required();
  Option& needs(const Option& other);  // allowed only with the other option
  Option& excludes(const Option& other);

 private:
  friend class CommandLine;
  Option(void* known, bool real) : known_(known), real_(real) {}
  void* known_;
  bool real_;  // accepts fractions
};

// Options and the variables that receive them. An option that is not given leaves its variable
// unchanged. --help prints both.
class CommandLine {
 public:
  explicit CommandLine(const std::string& about);
  ~CommandLine();
  CommandLine(CommandLine&&) noexcept;

  // Adds "--name", or a positional "name".
  Option option(const std::string& name, std::string& value, const std::string& help = "");
  Option option(const std::string& name, int& value, const std::string& help = "");
  Option option(const std::string& name, std::int64_t& value, const std::string& help = "");
  Option option(const std::string& name, double& value, const std::string& help = "");
  Option option(const std::string& name, std::vector<std::string>& values,
                const std::string& help = "");
  Option flag(const std::string& name, bool& value, const std::string& help = "");
  // Adds a subcommand with its own options. One of the subcommands must be given.
  CommandLine& command(const std::string& name, const std::string& about);
  bool given() const;  // true if this subcommand was given

  // Returns the exit status if the program ends here: after --help, or 2 after printing `program:
  // message` for invalid arguments.
  std::optional<int> parse(int argc, char** argv);

 private:
  struct Impl;
  explicit CommandLine(std::unique_ptr<Impl>);
  template <class T>
  Option add(const std::string& name, T& value, const std::string& help, bool real = false);
  std::unique_ptr<Impl> impl_;
};

}  // namespace examples
