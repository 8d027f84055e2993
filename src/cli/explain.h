// What is wrong with a command line.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace mw::cli {

struct WrongLine {
  std::vector<std::string> findings;
  std::string hint;  // which --help explains all
  // The line without the options and words that are wrong, for a second parse that finds out what
  // else is; empty: the parser cannot go on without them.
  std::vector<std::string> rest;
};

// The parser's findings, with the nearest subcommand or option for a word that it does not know.
// `arguments` as they were given.
WrongLine explain(CLI::App& app, const CLI::ParseError& error,
                  const std::vector<std::string>& arguments);

// Of `findings`, which begin with those about words: the others not about the same options, which a
// second parse did not have.
std::vector<std::string> without_repeats(const std::vector<std::string>& words,
                                         const std::vector<std::string>& findings);

}  // namespace mw::cli
