// The subcommands: each adds its options to the parser and a callback that runs it.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

namespace mw::cli {

void add_train(CLI::App& app);
void add_verify(CLI::App& app);
void add_inspect(CLI::App& app);
void add_generate(CLI::App& app);
void add_data(CLI::App& app);
void add_checkpoint(CLI::App& app);

}  // namespace mw::cli
