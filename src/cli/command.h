// The subcommands: each adds its options to the parser and a callback that runs it.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"

namespace mw::cli {

// Checks of an option's value, with messages that say what would be right. Every option whose value
// is no text has one, so that all wrong values are found.
CLI::Validator whole(int64_t least, int64_t most = std::numeric_limits<int64_t>::max());
CLI::Validator any_whole();
CLI::Validator number_above(double least);
CLI::Validator number_at_least(double least);
CLI::Validator one_of(std::vector<std::string> names);
CLI::Validator not_empty();     // of a text
CLI::Validator written_file();  // of a path that is written: neither empty nor "-"
// An option that may be given several times takes one word each time: the next may be a positional.
// `many`: how --help says that there may be several.
CLI::Option* one_word(CLI::Option* option, const char* many = "TEXT, again for more");
inline constexpr const char* kCommas = "TEXT,TEXT...";
inline constexpr int64_t kMostWhole32 = std::numeric_limits<int32_t>::max();

// What has to be there and is empty is a finding: "run: is missing; give a run folder". Options
// that the parser requires hide all other findings.
inline void require(const std::string& value, const char* name, const char* give,
                    Diagnostics& diagnostics) {
  if (value.empty()) diagnostics.add("{}: is missing; give {}", name, give);
}

// A subcommand's `words` are findings about words of the command line that the parser does not take
// (explain.h): it tells them with its own, and does nothing then. They outlive the parser.
void add_train(CLI::App& app, const Diagnostics& words);
void add_verify(CLI::App& app, const Diagnostics& words);
void add_inspect(CLI::App& app, const Diagnostics& words);
void add_simulate(CLI::App& app, const Diagnostics& words);
void add_what_if(CLI::App& app, const Diagnostics& words);
void add_plan(CLI::App& app, const Diagnostics& words);
void add_schedule(CLI::App& app, const Diagnostics& words);
void add_validate(CLI::App& app, const Diagnostics& words);
void add_calibrate(CLI::App& app, const Diagnostics& words);
void add_profile(CLI::App& app, const Diagnostics& words);
void add_generate(CLI::App& app, const Diagnostics& words);
void add_data(CLI::App& app, const Diagnostics& words);
void add_checkpoint(CLI::App& app, const Diagnostics& words);

}  // namespace mw::cli
