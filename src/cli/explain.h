// What is wrong with a command line.
#pragma once

#include <string>

#include "cli/command.h"

namespace mw::cli {

// The parser's finding, with the nearest subcommand or option for a word that it does not know.
// `first` is the first argument.
std::string explain(CLI::App& app, const CLI::ParseError& error, const std::string& first);

}  // namespace mw::cli
