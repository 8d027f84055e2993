#include "cli/explain.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

// Whether an option takes one word each time that it is given (command.h).
bool takes_one_word(const CLI::Option& option) {
  return option.get_items_expected_max() > 1 && !option.get_allow_extra_args() &&
         !option.get_positional();
}

// The option whose second word this is: it takes one; "" where there is none.
std::string before_its_words(const std::string& word, const CLI::App& command,
                             const std::vector<std::string>& line) {
  auto at = std::find(line.rbegin(), line.rend(), word);
  while (at != line.rend() && !starts_with(*at, "-")) ++at;
  if (at == line.rend()) return "";
  const CLI::Option* option = command.get_option_no_throw(*at);
  return option != nullptr && takes_one_word(*option) ? *at : "";
}

std::vector<std::string> unknown_words(const CLI::App& command,
                                       const std::vector<std::string>& line) {
  std::vector<std::string> findings, left = command.remaining(true);
  const auto mark = std::find(left.begin(), left.end(), "--");  // no option stands behind it
  for (auto word = left.begin(); word != mark; ++word) {
    if (!starts_with(*word, "-")) continue;
    const std::string name = word->substr(0, word->find('='));
    const bool is_letter = name.size() == 2;  // each is near every other
    findings.push_back(fmt::format("{}: unknown option{}", clipped(name),
                                   is_letter ? "" : did_you_mean(name, option_names(command))));
  }
  if (findings.empty()) {
    if (mark != left.end()) left.erase(mark);
    for (const std::string& word : left) {
      const std::string option = before_its_words(word, command, line), text = clipped(word);
      findings.push_back(fmt::format(
          "'{}' is one argument too many{}", text,
          option.empty() ? "" : fmt::format("; for another {0} write {0} {1}", option, text)));
    }
  }
  return findings;
}

std::vector<CLI::Option*> options_of(CLI::App& command) {
  return command.get_options([](const CLI::Option*) { return true; });
}

// The parser stops at the first value that is wrong; these are all of an option.
std::vector<std::string> wrong_values(CLI::Option& option) {
  std::vector<std::string> findings;
  const auto most = static_cast<size_t>(option.get_items_expected_max());
  for (const std::string& value : option.results()) {
    if (most == 0 && value != "true" && value != "false")
      findings.push_back(
          fmt::format("{}: takes no value, is '{}'", option.get_name(), clipped(value)));
  }
  if (most == 1 && option.results().size() > 1)
    findings.push_back(fmt::format("{}: is there {} times; give it once", option.get_name(),
                                   option.results().size()));
  for (std::string value : option.results()) {
    for (int i = 0;; ++i) {
      try {
        const std::string wrong = (*option.get_validator(i))(value);
        if (!wrong.empty()) findings.push_back(option.get_name() + ": " + wrong);
      } catch (const CLI::OptionNotFound&) {  // that was the last one
        break;
      }
    }
  }
  return findings;
}

// The option that has another one in the place of its value, or of "--gpus: 1 required INT
// missing"; empty: something else is wrong.
std::string without_value(CLI::App& command, const CLI::ParseError& error) {
  const std::vector<std::string> names = option_names(command);
  for (const CLI::Option* option : options_of(command)) {
    for (const std::string& value : option->results()) {
      if (std::find(names.begin(), names.end(), value) != names.end()) return option->get_name();
    }
  }
  const std::string text = error.what();
  const size_t colon = text.find(": ");
  return colon != std::string::npos && ends_with(text, " missing") &&
                 dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr
             ? text.substr(0, colon)
             : std::string();
}

// The line without the option where it has no value: at the end, or before another option.
std::vector<std::string> without_bare(const std::vector<std::string>& line,
                                      const std::string& option) {
  std::vector<std::string> words;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool bare = i + 1 == line.size() || starts_with(line[i + 1], "--");
    if (line[i] != option || !bare) words.push_back(line[i]);
  }
  return words.size() < line.size() ? words : std::vector<std::string>();
}

bool is_excluded(const CLI::Option& option) {
  const auto& others = option.get_excludes();
  return std::any_of(others.begin(), others.end(),
                     [](const CLI::Option* other) { return other->count() > 0; });
}

// Whether a word stands behind an option that nobody knows, whose value it then is.
bool is_of_unknown(const std::string& word, const CLI::App& command,
                   const std::vector<std::string>& line) {
  const std::vector<std::string> unknown = command.remaining(true);
  for (size_t i = 1; i < line.size(); ++i) {
    if (line[i] == word && starts_with(line[i - 1], "-") && line[i - 1] != "--" &&
        std::find(unknown.begin(), unknown.end(), line[i - 1]) != unknown.end())
      return true;
  }
  return false;
}

// "meshwright plan --gpus 8 …" as the parser took it, without options whose values are wrong or
// that exclude each other; empty where a wrong word has a place that the next one would take.
std::vector<std::string> right_words(CLI::App& app, const std::vector<std::string>& line) {
  std::vector<std::string> words, positional;
  CLI::App* command = &app;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    words.push_back(command->get_name());
  }
  for (CLI::Option* option : options_of(*command)) {
    if (!wrong_values(*option).empty() && option->get_positional()) return {};
    if (!wrong_values(*option).empty() || is_excluded(*option)) continue;
    for (const std::string& value : option->results()) {
      if (option->get_positional()) {
        if (!is_of_unknown(value, *command, line)) positional.push_back(value);
        continue;
      }
      words.push_back("--" + option->get_lnames().front());
      if (option->get_items_expected_max() > 0) words.push_back(value);
    }
  }
  if (!positional.empty()) words.emplace_back("--");
  words.insert(words.end(), positional.begin(), positional.end());
  return words;
}

CLI::Validator number(double least, bool equal, std::string must) {
  return CLI::Validator(
      [=](std::string& text) {
        const auto value = parse_double(text);
        if (value && !std::isfinite(*value))
          return fmt::format("must be a finite number {}, is {}", must, text);
        if (value && (equal ? *value >= least : *value > least)) return std::string();
        return fmt::format("must be {}, is {}", must, value ? text : "'" + clipped(text) + "'");
      },
      "");
}

}  // namespace

CLI::Validator whole(int64_t least, int64_t most) {
  return CLI::Validator(
      [=](std::string& text) {
        const auto value = parse_int64(text);
        if (!value) {
          const bool negative = starts_with(text, "-");
          const std::string digits = text.substr(negative ? 1 : 0);
          if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos)
            return fmt::format("must be a whole number, is '{}'", clipped(text));
          return fmt::format("must be at {} {}, is {}", negative ? "least" : "most",
                             negative ? least : most, clipped(text));
        }
        if (*value < least) return fmt::format("must be at least {}, is {}", least, text);
        return *value > most ? fmt::format("must be at most {}, is {}", most, text) : std::string();
      },
      "");
}
CLI::Validator any_whole() { return whole(std::numeric_limits<int64_t>::min()); }
CLI::Validator number_above(double least) {
  return number(least, false, fmt::format("above {}", least));
}
CLI::Validator number_at_least(double least) {
  return number(least, true, fmt::format("at least {}", least));
}

CLI::Validator one_of(std::vector<std::string> names) {
  return CLI::Validator(
      [names](std::string& text) {
        if (std::find(names.begin(), names.end(), text) != names.end()) return std::string();
        return fmt::format("must be one of {}, is '{}'{}", join(names, ", "), clipped(text),
                           did_you_mean(text, names));
      },
      "");
}

CLI::Option* one_word(CLI::Option* option, const char* many) {
  return option->take_all()->allow_extra_args(false)->option_text(many);
}

CLI::Validator not_empty() {
  return CLI::Validator(
      [](std::string& text) -> std::string { return text.empty() ? "must not be empty" : ""; }, "");
}

CLI::Validator written_file() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (text.empty()) return "must be a file's path, is empty";
        if (text == "-") return "must be a file's path, is '-'; standard output is /dev/stdout";
        return {};
      },
      "");
}

WrongLine explain(CLI::App& app, const CLI::ParseError& error,
                  const std::vector<std::string>& arguments) {
  const std::string first = arguments.empty() ? "" : arguments.front();
  CLI::App& command = deepest(app);
  const std::vector<std::string> subcommands = subcommand_names(command);
  const std::vector<std::string> unknown =
      subcommands.empty() ? unknown_words(command, arguments) : std::vector<std::string>();
  const bool of_extras = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  const bool of_two = dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr;
  WrongLine line;
  std::vector<std::string> values;
  for (CLI::Option* option : options_of(command)) {
    for (std::string& finding : wrong_values(*option)) values.push_back(std::move(finding));
  }
  const bool of_value =
      !values.empty() && (dynamic_cast<const CLI::ValidationError*>(&error) != nullptr ||
                          dynamic_cast<const CLI::ConversionError*>(&error) != nullptr ||
                          dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr);
  const std::string bare = without_value(command, error);
  if (!of_extras && !of_value)
    line.findings.push_back(bare.empty() ? error.what() : bare + ": a value is missing");
  line.findings.insert(line.findings.end(), values.begin(), values.end());
  line.findings.insert(line.findings.end(), unknown.begin(), unknown.end());
  if (!subcommands.empty() && command.get_subcommands().empty()) {
    const std::vector<std::string> words = command.remaining(true);
    const std::string word = !words.empty() ? words.front() : &command == &app ? first : "";
    line.findings = {
        word.empty()
            ? fmt::format("a subcommand is missing; it must be one of {}", join(subcommands, ", "))
            : fmt::format("'{}' is no subcommand{}; known are {}", clipped(word),
                          did_you_mean(word, subcommands), join(subcommands, ", "))};
  } else if (!bare.empty()) {  // the parser has not looked at what follows
    line.rest = without_bare(arguments, bare);
    if (!line.rest.empty()) line.findings = {bare + ": a value is missing"};
  } else if (of_extras || of_value || of_two) {
    line.rest = right_words(app, arguments);
  }
  const std::string path = &command == &app ? ""
                           : command.get_parent() == &app
                               ? command.get_name() + " "
                               : command.get_parent()->get_name() + " " + command.get_name() + " ";
  line.hint = fmt::format("(meshwright {}--help explains all)", path);
  return line;
}

std::vector<std::string> without_repeats(const std::vector<std::string>& words,
                                         const std::vector<std::string>& findings) {
  const auto option = [](const std::string& finding) {
    return starts_with(finding, "-") ? finding.substr(0, finding.find(':')) : std::string();
  };
  std::vector<std::string> left;
  for (size_t i = words.size(); i < findings.size(); ++i) {
    const std::string of = option(findings[i]);
    const bool told = !of.empty() && std::any_of(words.begin(), words.end(), [&](const auto& word) {
      return option(word) == of;
    });
    if (!told) left.push_back(findings[i]);
  }
  return left;
}

}  // namespace mw::cli
