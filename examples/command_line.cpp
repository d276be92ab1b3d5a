// Implements command_line.h with CLI11.
#include "command_line.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <list>

namespace examples {

namespace {

CLI::Option& of(void* known) { return *static_cast<CLI::Option*>(known); }

}  // namespace

Option& Option::range(double least, double most) {
  if (real_)
    of(known_).check(CLI::Range(least, most));
  else
    of(known_).check(CLI::Range(std::int64_t(least), std::int64_t(most)));
  return *this;
}
Option& Option::positive() {
  of(known_).check(CLI::PositiveNumber);
  return *this;
}
Option& Option::not_negative() {
  of(known_).check(CLI::NonNegativeNumber);
  return *this;
}
Option& Option::one_of(std::vector<std::string> words) {
  of(known_).check(CLI::IsMember(std::move(words)));
  return *this;
}
Option& Option::required() {
  of(known_).required();
  return *this;
}
Option& Option::needs(const Option& other) {
  of(known_).needs(&of(other.known_));
  return *this;
}
Option& Option::excludes(const Option& other) {
  of(known_).excludes(&of(other.known_));
  return *this;
}

struct CommandLine::Impl {
  std::unique_ptr<CLI::App> own;  // empty for a subcommand
  CLI::App* app;
  std::list<CommandLine> commands;
};

CommandLine::CommandLine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CommandLine::CommandLine(const std::string& about) : impl_(std::make_unique<Impl>()) {
  impl_->own = std::make_unique<CLI::App>(about);
  impl_->app = impl_->own.get();
}
CommandLine::CommandLine(CommandLine&&) noexcept = default;
CommandLine::~CommandLine() = default;

template <class T>
Option CommandLine::add(const std::string& name, T& value, const std::string& help, bool real) {
  return {impl_->app->add_option(name, value, help)->capture_default_str(), real};
}
Option CommandLine::option(const std::string& name, std::string& value, const std::string& help) {
  return add(name, value, help);
}
Option CommandLine::option(const std::string& name, int& value, const std::string& help) {
  return add(name, value, help);
}
Option CommandLine::option(const std::string& name, std::int64_t& value, const std::string& help) {
  return add(name, value, help);
}
Option CommandLine::option(const std::string& name, double& value, const std::string& help) {
  return add(name, value, help, true);
}
Option CommandLine::option(const std::string& name, std::vector<std::string>& values,
                           const std::string& help) {
  return {impl_->app->add_option(name, values, help), false};
}
Option CommandLine::flag(const std::string& name, bool& value, const std::string& help) {
  return {impl_->app->add_flag(name, value, help), false};
}

CommandLine& CommandLine::command(const std::string& name, const std::string& about) {
  auto made = std::make_unique<Impl>();
  made->app = impl_->app->require_subcommand(1)->add_subcommand(name, about);
  return impl_->commands.emplace_back(CommandLine(std::move(made)));
}
bool CommandLine::given() const { return impl_->app->parsed(); }

std::optional<int> CommandLine::parse(int argc, char** argv) {
  try {
    impl_->app->parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::Success& e) {
    return impl_->app->exit(e);
  } catch (const CLI::ParseError& e) {
    std::fprintf(stderr, "%s: %s\n", std::filesystem::path(argv[0]).filename().c_str(), e.what());
    return 2;
  }
}

}  // namespace examples
