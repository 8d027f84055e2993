#include "cli/explain.h"

#include <algorithm>

#include <fmt/core.h>

#include "base/text.h"

namespace mw::cli {
namespace {

// The deepest subcommand that was named.
CLI::App& deepest(CLI::App& app) {
  const std::vector<CLI::App*> named = app.get_subcommands();
  return named.empty() ? app : deepest(*named.front());
}

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::string unknown_words(const CLI::App& command) {
  std::vector<std::string> findings;
  for (const std::string& word : command.remaining(true)) {
    if (!starts_with(word, "-")) continue;
    const std::string name = word.substr(0, word.find('='));
    findings.push_back(
        fmt::format("{}: unknown option{}", name, did_you_mean(name, option_names(command))));
  }
  if (findings.empty()) {
    for (const std::string& word : command.remaining(true))
      findings.push_back(fmt::format("'{}' is one argument too many", word));
  }
  return join(findings, "\n");
}

// The parser stops at the first value that is wrong; these are of all options that were given.
std::vector<std::string> wrong_values(CLI::App& command) {
  std::vector<std::string> findings;
  for (CLI::Option* option : command.get_options([](const CLI::Option*) { return true; })) {
    for (std::string value : option->results()) {
      for (int i = 0;; ++i) {
        try {
          const std::string wrong = (*option->get_validator(i))(value);
          if (!wrong.empty()) findings.push_back(option->get_name() + ": " + wrong);
        } catch (const CLI::OptionNotFound&) {  // that was the last one
          break;
        }
      }
    }
  }
  return findings;
}

}  // namespace

CLI::Validator at_least(int64_t least) {
  return CLI::Validator(
      [least](std::string& text) {
        const auto number = parse_double(text);
        return number && *number >= static_cast<double>(least)
                   ? std::string()
                   : fmt::format("must be at least {}, is {}", least, text);
      },
      "");
}

CLI::Validator one_of(std::vector<std::string> names) {
  return CLI::Validator(
      [names](std::string& text) {
        if (std::find(names.begin(), names.end(), text) != names.end()) return std::string();
        return fmt::format("must be one of {}, is '{}'{}", join(names, ", "), text,
                           did_you_mean(text, names));
      },
      "");
}

std::string explain(CLI::App& app, const CLI::ParseError& error, const std::string& first) {
  CLI::App& command = deepest(app);
  const std::vector<std::string> subcommands = subcommand_names(command);
  std::string text = error.what();
  const std::string unknown = subcommands.empty() ? unknown_words(command) : "";
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    text = unknown_words(command);
  } else if (!unknown.empty()) {
    text += "\n" + unknown;
  }
  for (const std::string& finding : wrong_values(command)) {
    if (text != finding) text += "\n" + finding;
  }
  if (!subcommands.empty() && command.get_subcommands().empty()) {
    const std::vector<std::string> words = command.remaining(true);
    const std::string word = !words.empty() ? words.front() : &command == &app ? first : "";
    text = word.empty() ? fmt::format("a subcommand is missing; it must be one of {}",
                                      join(subcommands, ", "))
                        : fmt::format("'{}' is no subcommand{}; known are {}", word,
                                      did_you_mean(word, subcommands), join(subcommands, ", "));
  }
  const std::string path = &command == &app ? ""
                           : command.get_parent() == &app
                               ? command.get_name() + " "
                               : command.get_parent()->get_name() + " " + command.get_name() + " ";
  return fmt::format("{}\n(meshwright {}--help explains all)", text, path);
}

}  // namespace mw::cli
