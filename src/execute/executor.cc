#include "execute/executor.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "execute/mesh_groups.h"
#include "execute/rank_context.h"
#include "execute/rank_runner.h"
#include "execute/team.h"
#include "execute/watchdog.h"

namespace mw::execute {
namespace {

// Why a run failed. Keeps what kind of error it was, with the place before its text.
struct Failure {
  enum class Kind { kError, kCheck, kRun } kind = Kind::kRun;
  std::vector<std::string> findings;  // kError: each with the place; otherwise one text

  std::string text() const { return join(findings, "\n"); }
  [[noreturn]] void raise() const {
    switch (kind) {
      case Kind::kError: throw Error(findings);
      case Kind::kCheck: throw CheckFailure(text());
      case Kind::kRun: break;
    }
    throw RunError(text());
  }
};

// REQUIRES: called while an exception is handled.
Failure current_failure(const std::string& place) {
  Failure failure;
  const auto add = [&](const std::string& text) {
    failure.findings.push_back(place + ": " + text);
  };
  try {
    throw;
  } catch (const Error& error) {
    failure.kind = Failure::Kind::kError;
    for (const std::string& finding : error.findings()) add(finding);
  } catch (const CheckFailure& error) {
    failure.kind = Failure::Kind::kCheck;
    add(error.what());
  } catch (const std::exception& error) {
    add(error.what());
  } catch (...) {
    add("threw something that is not a std::exception");
  }
  return failure;
}

}  // namespace

struct Executor::Impl {
  Impl(std::vector<const pipeline::Program*> programs_in, Backend& backend,
       ExecutorOptions options_in);

  // Runs job(rank) on every rank's thread; a rank that throws aborts the others. `place` says where
  // a rank is.
  void on_all_ranks(const std::function<void(int)>& job,
                    const std::function<std::string(int)>& place);
  // Runs job(rank) on all ranks, watched, of which the program `which` is traced.
  void run(int which, int64_t calls, trace::Trace* trace, const std::function<void(int)>& job);
  // Whether it came to its end.
  bool run_flow(const Flow& flow, int rank, bool traced);
  // How a rank's job ends. end_rank() throws comm::Aborted if the ranks were stopped before: all
  // ranks of a run get past it, or the run fails.
  void end_rank();
  void fail(Failure failure);
  std::string place_of_run(int rank) const;
  // The ranks' progress for the watchdog.
  std::vector<uint64_t> progress() const;
  // What the rank is about, for a report; `works` where it waits for nobody.
  std::string state_of_run(int rank, const std::vector<comm::Waiting>& waiting, bool& works) const;
  bool report_stall(Seconds stalled);  // whether it ends the run
  // Adds the spans of the run that has just ended.
  void add_to(trace::Trace& trace) const;

  const std::vector<const pipeline::Program*> programs;
  const ExecutorOptions options;
  const cluster::Mesh& mesh;
  const int ranks;
  comm::ThreadWorld world;
  std::vector<std::unique_ptr<RankContext>> contexts;
  std::vector<RankStatus> statuses;
  std::vector<RankRunner> runners;
  std::vector<Measured> measured;
  std::atomic<bool> stop{false};
  std::mutex failure_mutex;              // also of `unfinished`, and of setting `stop`
  std::optional<Failure> first_failure;  // who fails as a consequence comes behind it
  int unfinished = 0;                    // ranks whose job has not ended
  int64_t runs = 0;
  int running = 0;  // the program of the run in progress
  bool failed = false;
  trace::NameTable names;
  std::optional<Seconds> trace_origin;  // start of the first traced run
  std::optional<Watchdog> watchdog;
  Team team;
};

Executor::Impl::Impl(std::vector<const pipeline::Program*> programs_in, Backend& backend,
                     ExecutorOptions options_in)
    : programs(std::move(programs_in)),
      options(std::move(options_in)),
      mesh(programs.at(0)->mesh),
      ranks(static_cast<int>(mesh.size())),
      world(ranks, options.world),
      contexts(static_cast<size_t>(ranks)),
      statuses(static_cast<size_t>(ranks)),
      measured(static_cast<size_t>(ranks)),
      team(ranks) {
  for (const pipeline::Program* program : programs) {
    MW_CHECK(program->mesh == mesh, "program '{}' has mesh {}, the first one {}", program->name,
             cluster::to_string(program->mesh), cluster::to_string(mesh));
    MW_CHECK(static_cast<int64_t>(program->ranks.size()) == mesh.axis_size("pp"),
             "program '{}' has {} rank programs for {}", program->name, program->ranks.size(),
             cluster::to_string(mesh));
  }
  check_groups(programs);
  on_all_ranks(
      [&](int rank) {
        const DeviceContext device{&mesh, RankId(rank), options.threads_per_rank};
        contexts[static_cast<size_t>(rank)] =
            std::make_unique<RankContext>(programs, backend, world.endpoint(RankId(rank)), device);
      },
      [&](int rank) { return rank_text(mesh, RankId(rank)) + ", preparing"; });
  for (int rank = 0; rank < ranks; ++rank) {
    runners.emplace_back(*contexts[static_cast<size_t>(rank)], statuses[static_cast<size_t>(rank)],
                         stop);
  }
  watchdog.emplace(
      Seconds(options.stall_seconds), [this] { return progress(); },
      [this](Seconds stalled) { return report_stall(stalled); });
}

void Executor::Impl::on_all_ranks(const std::function<void(int)>& job,
                                  const std::function<std::string(int)>& place) {
  for (RankStatus& status : statuses) status.progress.store(0);
  unfinished = ranks;
  team.run([&](int rank) {
    try {
      job(rank);
      end_rank();
    } catch (...) {
      fail(current_failure(place(rank)));
    }
    statuses[static_cast<size_t>(rank)].progress.store(RankStatus::kEnded);
  });
  if (!first_failure) return;
  failed = true;
  first_failure->raise();
}

void Executor::Impl::fail(Failure failure) {
  {
    std::lock_guard lock(failure_mutex);
    if (!first_failure) first_failure = failure;
    stop.store(true);
    --unfinished;
  }
  world.abort(failure.text());
}

std::string Executor::Impl::place_of_run(int rank) const {
  return rank_text(mesh, RankId(rank)) + ", " + runners[static_cast<size_t>(rank)].where();
}

std::vector<uint64_t> Executor::Impl::progress() const {
  std::vector<uint64_t> list;
  bool any_runs = false;
  for (const RankStatus& status : statuses) {
    list.push_back(status.progress.load(std::memory_order_relaxed));
    any_runs = any_runs || RankStatus::runs(list.back());
  }
  if (!any_runs) list.clear();
  return list;
}

void Executor::Impl::end_rank() {
  std::lock_guard lock(failure_mutex);
  if (stop.load()) throw comm::Aborted("the run was stopped");
  --unfinished;
}

std::string Executor::Impl::state_of_run(int rank, const std::vector<comm::Waiting>& waiting,
                                         bool& works) const {
  std::string line = "  " + place_of_run(rank);
  bool waits = false;
  for (const comm::Waiting& wait : waiting) {
    if (wait.rank != RankId(rank)) continue;
    line += ": " + comm::describe(wait);
    waits = true;
  }
  if (waits) return line;
  switch (RankStatus::instruction(statuses[static_cast<size_t>(rank)].progress.load())) {
    case 0: works = true; return line + ": has not begun its program";
    case RankStatus::kEnded: return line + ": has ended its program";
    default: works = true; return line + ": works, and waits for no other rank";
  }
}

bool Executor::Impl::report_stall(Seconds stalled) {
  const std::vector<comm::Waiting> waiting = world.waiting();
  Failure failure;
  failure.findings.push_back(fmt::format("no rank has made progress for {:.3g} s:", stalled.value));
  bool works = false;
  for (int rank = 0; rank < ranks; ++rank)
    failure.findings.push_back(state_of_run(rank, waiting, works));
  if (works) {
    if (options.on_slow) options.on_slow(failure.text());
    return false;
  }
  {
    // The last rank may have ended since the watchdog looked.
    std::lock_guard lock(failure_mutex);
    if (unfinished == 0) return false;
    if (!first_failure) first_failure = failure;
    stop.store(true);
  }
  world.abort(failure.text());
  return true;
}

void Executor::Impl::add_to(trace::Trace& trace) const {
  std::vector<const trace::Recorder*> recorders;
  for (const RankRunner& runner : runners) recorders.push_back(&runner.recorder());
  trace::Trace added = trace::merge(recorders, names,
                                    pipeline::program_hash(*programs[static_cast<size_t>(running)]),
                                    "execute", trace_origin);
  trace::name_stream(added, StreamId(0), "compute");
  if (trace.spans.empty()) {
    trace = std::move(added);
  } else {
    const std::vector<trace::Trace> both = {std::move(trace), std::move(added)};
    trace = trace::merge(both);
  }
}

void Executor::Impl::run(int which, int64_t calls, trace::Trace* trace,
                         const std::function<void(int)>& job) {
  MW_CHECK(!failed, "the executor's last run failed; it cannot run again");
  MW_CHECK(which >= 0 && static_cast<size_t>(which) < programs.size(), "no program {}", which);
  running = which;
  if (trace != nullptr) {
    for (RankRunner& runner : runners) runner.prepare_trace(which, names);
    if (!trace_origin) trace_origin = steady_clock().now();
  }
  {
    const Watch watch(*watchdog);
    on_all_ranks(job, [&](int rank) { return place_of_run(rank); });
  }
  runs += calls;
  if (trace != nullptr) add_to(*trace);
}

bool Executor::Impl::run_flow(const Flow& flow, int rank, bool traced) {
  const auto r = static_cast<size_t>(rank);
  // Ends with flow.calls: the validation of the last one. What has been amended is validated: there
  // is nothing to find when its call begins again.
  bool amended = false;
  for (size_t call = 0; call <= flow.calls;) {
    const std::function<bool()> validated = [&] {
      return call == 0 || amended || flow.validated(RankId(rank), call - 1);
    };
    RunRequest request;
    const Loader loader = flow.loader(std::min(call, flow.calls - 1));
    request.which = call < flow.calls ? flow.train : flow.validate;
    request.run = runs + static_cast<int64_t>(call);
    request.loader = &loader;
    request.check_finite = options.check_finite;
    request.traced = traced && call == 0;
    request.validated = &validated;
    const Measured ran = runners[r].run(request);
    if (ran.end == Measured::End::kEnded) {
      if (request.which == flow.train) measured[r] = ran;
      flow.ended(RankId(rank), request.which, ran);
      amended = false;
      ++call;
      continue;
    }
    MW_CHECK(call > 0 && !amended, "there is no step before that could be amended");
    RunRequest amend = request;
    amend.which = flow.amend;
    const Loader before = flow.loader(call - 1);
    amend.loader = &before;
    amend.validated = nullptr;
    flow.ended(RankId(rank), flow.amend, runners[r].run(amend));
    if (ran.end == Measured::End::kStopped) return false;
    if (call == flow.calls) break;
    amended = true;
  }
  return true;
}

Executor::Executor(std::vector<const pipeline::Program*> programs, Backend& backend,
                   ExecutorOptions options)
    : impl_(std::make_unique<Impl>(std::move(programs), backend, std::move(options))) {}

Executor::~Executor() = default;

void Executor::run(int which, const Loader& loader, trace::Trace* trace) {
  const RunRequest request{which, impl_->runs, &loader, impl_->options.check_finite,
                           trace != nullptr};
  impl_->run(which, 1, trace, [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    impl_->measured[r] = impl_->runners[r].run(request);
  });
}

void Executor::run(const Flow& flow, trace::Trace* trace) {
  MW_CHECK(flow.calls > 0, "a flow of no calls");
  std::atomic<bool> stopped{false};
  impl_->run(flow.train, static_cast<int64_t>(flow.calls), trace, [&](int rank) {
    if (!impl_->run_flow(flow, rank, trace != nullptr)) stopped.store(true);
  });
  impl_->failed = stopped.load();
}

const std::vector<Measured>& Executor::measured() const { return impl_->measured; }

void* Executor::state_data(RankId rank, BufferId buffer) {
  RankContext& context = *impl_->contexts.at(rank.index());
  const pipeline::RankProgram& program = *context.program(0).rank_program;
  MW_CHECK(buffer.valid() && static_cast<int32_t>(buffer.value) < program.states,
           "buffer {} is not a state", buffer.value);
  // A state may be a view of another.
  int64_t offset = 0;
  BufferId at = buffer;
  while (program.buffers[at.index()].storage.kind == pipeline::Storage::Kind::kView) {
    const pipeline::Storage& view = program.buffers[at.index()].storage;
    offset += view.offset + impl_->mesh.index(rank, view.part->axes) * view.part->stride;
    at = view.parent;
  }
  const pipeline::Storage& storage = program.buffers[at.index()].storage;
  MW_CHECK(storage.kind == pipeline::Storage::Kind::kState,
           "state '{}' does not lie in the state arena", program.buffers[buffer.index()].name());
  return context.states().data() + storage.offset + offset;
}

BufferId Executor::find_state(RankId rank, const std::string& name) const {
  const pipeline::RankProgram& program = *impl_->contexts.at(rank.index())->program(0).rank_program;
  for (int32_t b = 0; b < program.states; ++b) {
    if (program.buffers[static_cast<size_t>(b)].value == name) return BufferId(b);
  }
  return BufferId();
}

}  // namespace mw::execute
