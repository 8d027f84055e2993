// The subcommands: each adds its options to the parser and a callback that runs it.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <string>
#include <vector>

namespace mw::cli {

// Checks of an option's value, with messages that say what would be right.
CLI::Validator at_least(int64_t least);
CLI::Validator one_of(std::vector<std::string> names);

void add_train(CLI::App& app);
void add_verify(CLI::App& app);
void add_inspect(CLI::App& app);
void add_simulate(CLI::App& app);
void add_what_if(CLI::App& app);
void add_plan(CLI::App& app);
void add_schedule(CLI::App& app);
void add_validate(CLI::App& app);
void add_calibrate(CLI::App& app);
void add_profile(CLI::App& app);
void add_generate(CLI::App& app);
void add_data(CLI::App& app);
void add_checkpoint(CLI::App& app);

}  // namespace mw::cli
