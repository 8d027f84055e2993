// meshwright: the one catch, the one place that chooses the exit code.

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/core.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/explain.h"
#include "cli/standard_error.h"

namespace {

enum ExitCode { kDone = 0, kRunFailed = 1, kWrongInput = 2 };

int report(const char* prefix, const std::exception& error, int code) {
  mw::cli::tell(fmt::format("{}{}", prefix, error.what()));
  return code;
}

// `words` outlive the parser.
std::unique_ptr<CLI::App> make_parser(const mw::Diagnostics& words) {
  auto app = std::make_unique<CLI::App>(
      "meshwright compiles a training step for every rank of a cluster, proves it sound and runs "
      "it.",
      "meshwright");
  app->require_subcommand(1);
  app->set_help_all_flag("--help-all", "Help of every subcommand");
  app->set_version_flag("--version", "meshwright " MESHWRIGHT_VERSION);
  for (const auto add :
       {mw::cli::add_train, mw::cli::add_verify, mw::cli::add_inspect, mw::cli::add_simulate,
        mw::cli::add_what_if, mw::cli::add_plan, mw::cli::add_schedule, mw::cli::add_validate,
        mw::cli::add_calibrate, mw::cli::add_profile, mw::cli::add_generate, mw::cli::add_data,
        mw::cli::add_checkpoint})
    add(*app, words);
  return app;
}

// What the subcommand has against its input, were the wrong words not there.
std::vector<std::string> other_findings(const mw::cli::WrongLine& line) {
  mw::Diagnostics words;
  for (const std::string& finding : line.findings) words.add("{}", finding);
  const std::unique_ptr<CLI::App> parser = make_parser(words);
  std::vector<std::string> rest(line.rest.rbegin(), line.rest.rend());  // as CLI11 wants it
  try {
    parser->parse(rest);
  } catch (const CLI::Success&) {  // --help among the words
    return {};
  } catch (const CLI::ParseError& error) {
    mw::cli::WrongLine more = mw::cli::explain(*parser, error, line.rest);
    more.findings.insert(more.findings.begin(), line.findings.begin(), line.findings.end());
    std::vector<std::string> left = mw::cli::without_repeats(line.findings, more.findings);
    if (more.rest.empty() || more.rest.size() >= line.rest.size()) return left;
    for (std::string& finding : other_findings(more)) left.push_back(std::move(finding));
    return left;
  } catch (const mw::Error& error) {
    return mw::cli::without_repeats(line.findings, error.findings());
  }
  MW_CHECK(false, "a subcommand went on though words were wrong");
}

int refuse(const mw::cli::WrongLine& line) {
  std::vector<std::string> findings = line.findings;
  if (!line.rest.empty()) {
    for (std::string& finding : other_findings(line)) findings.push_back(std::move(finding));
  }
  findings.push_back(line.hint);
  mw::cli::tell("meshwright: " + mw::join(findings, "\n"));
  return kWrongInput;
}

int not_written(const std::string& why) {
  mw::cli::tell("meshwright: standard output: cannot be written: " + why);
  return kRunFailed;
}

// What was printed may not have come out: a full disk, a closed output.
int written() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return kDone;
  return not_written(errno != 0 ? std::strerror(errno) : "an earlier write failed");
}

}  // namespace

// From where nothing can be allocated or thrown.
[[noreturn]] static void end_with(std::string_view text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  ::_exit(kRunFailed);
}

// Data and checkpoints are read in place: what is behind a file's new end is no memory.
extern "C" void end_cut_short(int) {
  end_with("meshwright: a file was cut short, or could not be read, while it was in use\n");
}

// In a thread, or while an error is told, there may be no memory either.
static void end_uncaught() {
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    end_with("meshwright: out of memory\n");
  } catch (...) {  // is told below
  }
  __gnu_cxx::__verbose_terminate_handler();
}

// Where one of the three is closed, the next file that is opened would be in its place, and what is
// printed would go there.
static void hold_standard_files() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    const bool closed = ::fcntl(fd, F_GETFD) < 0 && errno == EBADF;
    // It is the lowest that is free; who writes there is told that it cannot be.
    if (closed && ::open("/dev/null", O_RDONLY) < 0) ::_exit(kRunFailed);
  }
}

int main(int argc, char** argv) {
  hold_standard_files();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error like a full disk
  std::signal(SIGBUS, end_cut_short);
  std::set_terminate(end_uncaught);
  const mw::Diagnostics no_words;
  const std::unique_ptr<CLI::App> parser = make_parser(no_words);
  try {
    try {
      parser->parse(argc, argv);
      return written();
    } catch (const CLI::Success& help) {
      const int code = parser->exit(help);
      return code == kDone ? written() : code;
    } catch (const CLI::ParseError& error) {
      return refuse(mw::cli::explain(*parser, error, {argv + 1, argv + argc}));
    }
  } catch (const mw::Error& error) {
    return report("meshwright: ", error, kWrongInput);
  } catch (const mw::RunError& error) {
    return report("meshwright: ", error, kRunFailed);
  } catch (const std::filesystem::filesystem_error& error) {
    return report("meshwright: ", error, kRunFailed);
  } catch (const std::system_error& error) {  // fmt::print's
    return not_written(error.code().message());
  } catch (const std::bad_alloc&) {
    mw::cli::tell("meshwright: out of memory");
    return kRunFailed;
  } catch (const std::exception& error) {
    return report("meshwright: internal error: ", error, kRunFailed);
  }
}
