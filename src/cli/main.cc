// meshwright: the one catch, the one place that chooses the exit code.

#include <cstdio>
#include <exception>

#include <fmt/core.h>

#include "base/error.h"
#include "cli/command.h"
#include "cli/explain.h"

namespace {

enum ExitCode { kDone = 0, kRunFailed = 1, kWrongInput = 2 };

int report(const char* prefix, const std::exception& error, int code) {
  fmt::print(stderr, "{}{}\n", prefix, error.what());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "meshwright compiles a training step for every rank of a cluster, proves it sound and runs "
      "it.",
      "meshwright");
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of every subcommand");
  mw::cli::add_train(app);
  mw::cli::add_verify(app);
  mw::cli::add_inspect(app);
  mw::cli::add_simulate(app);
  mw::cli::add_what_if(app);
  mw::cli::add_plan(app);
  mw::cli::add_schedule(app);
  mw::cli::add_validate(app);
  mw::cli::add_calibrate(app);
  mw::cli::add_profile(app);
  mw::cli::add_generate(app);
  mw::cli::add_data(app);
  mw::cli::add_checkpoint(app);
  try {
    app.parse(argc, argv);
    return kDone;
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "meshwright: {}\n", mw::cli::explain(app, error, argc > 1 ? argv[1] : ""));
    return kWrongInput;
  } catch (const mw::Error& error) {
    return report("meshwright: ", error, kWrongInput);
  } catch (const mw::RunError& error) {
    return report("meshwright: ", error, kRunFailed);
  } catch (const std::exception& error) {
    return report("meshwright: internal error: ", error, kRunFailed);
  }
}
