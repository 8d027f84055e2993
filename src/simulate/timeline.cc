#include "simulate/timeline.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include "base/in_parallel.h"
#include "ops/op_def.h"
#include "pipeline/trace_category.h"

namespace mw::simulate {
namespace {

using trace::MemoryCategory;
using trace::NameId;
using trace::Span;

constexpr int32_t kFirstMessageStream = 1;

std::string wait_name(const Wait& wait) {
  switch (wait.reason) {
    case WaitReason::kReceive:
      return fmt::format("waits for a value from pipeline rank {}", wait.peer);
    case WaitReason::kSlot: return fmt::format("waits for a slot from pipeline rank {}", wait.peer);
    case WaitReason::kCollective:
      return fmt::format("waits for pipeline rank {} in a collective", wait.peer);
    case WaitReason::kSend: return "waits until its value has arrived";
    case WaitReason::kGather: return "waits for its weights";
  }
  return "waits";
}

class TraceMaker {
 public:
  TraceMaker(const LoopInput& input, EventLoop& loop, const Labels& labels,
             const std::vector<RankId>& devices)
      : in_(input), loop_(loop), labels_(labels), devices_(devices), messages_(loop.messages()) {}

  trace::Trace make() {
    trace_.producer = "simulate";
    step_name_ = names_.intern("step");
    wait_names_.resize(kWaitReasons * (devices_.size() + 1));
    for (const pipeline::Channel& channel : in_.program.channels) {
      send_names_.push_back(names_.intern("send " + channel.name));
      receive_names_.push_back(names_.intern("receive " + channel.name));
    }
    reserve();
    collect_peers();
    collect_messages();
    // As they are sorted in the end, where ops are no spans of their own.
    std::vector<size_t> order(devices_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return devices_[a] < devices_[b]; });
    for (const size_t r : order) add_rank(r);
    trace_.names = names_.names();
    trace::sort(trace_);
    std::erase_if(trace_.streams,
                  [&](const trace::StreamName& stream) { return !has_span(stream); });
    return std::move(trace_);
  }

 private:
  // An end of a message on its way, on the rank there: when it goes onto its link, or arrives.
  struct End {
    StreamId stream;
    double start = 0;
    int32_t message = 0;
    bool arrives = false;
  };

  // Not every rank has collectives of every label. REQUIRES: the trace is sorted.
  bool has_span(const trace::StreamName& stream) const {
    const auto before = [](const Span& span, const trace::StreamName& than) {
      return std::tie(span.rank, span.stream) < std::tie(than.rank, than.stream);
    };
    const auto at = std::lower_bound(trace_.spans.begin(), trace_.spans.end(), stream, before);
    return at != trace_.spans.end() && at->rank == stream.rank && at->stream == stream.stream;
  }

  // Messages with a peer have a stream of their own, on both ranks.
  void collect_peers() {
    peers_.resize(devices_.size());
    for (const FlatChannel& channel : in_.flat.channels) {
      for (const auto& [here, there] :
           {std::pair{channel.from, channel.to}, std::pair{channel.to, channel.from}}) {
        std::vector<int32_t>& peers = peers_[static_cast<size_t>(here)];
        const auto at = std::lower_bound(peers.begin(), peers.end(), there);
        if (at == peers.end() || *at != there) peers.insert(at, there);
      }
    }
    for (const std::vector<int32_t>& peers : peers_)
      most_peers_ = std::max(most_peers_, static_cast<int32_t>(peers.size()));
  }
  StreamId message_stream(int32_t here, int32_t there) const {
    const std::vector<int32_t>& peers = peers_[static_cast<size_t>(here)];
    const auto at = std::lower_bound(peers.begin(), peers.end(), there) - peers.begin();
    return StreamId(kFirstMessageStream + static_cast<int32_t>(at));
  }

  void collect_messages() {
    ends_.resize(devices_.size());
    for (size_t m = 0; m < messages_.size(); ++m) {
      const MessageRecord& record = messages_[m];
      const FlatChannel& channel = channel_of(record);
      const auto message = static_cast<int32_t>(m);
      ends_[static_cast<size_t>(channel.from)].push_back(
          {message_stream(channel.from, channel.to), record.begin, message, false});
      ends_[static_cast<size_t>(channel.to)].push_back(
          {message_stream(channel.to, channel.from), record.arrival, message, true});
    }
    in_parallel(ends_.size(), threads_for(messages_.size()), [&](size_t r) {
      const auto sort = [&] {
        const auto command = [&](const End& end) {  // of one time those go in order of commands
          return end.arrives ? -1 : messages_[static_cast<size_t>(end.message)].command;
        };
        std::stable_sort(ends_[r].begin(), ends_[r].end(), [&](const End& a, const End& b) {
          return std::tuple(a.stream, a.start, command(a)) <
                 std::tuple(b.stream, b.start, command(b));
        });
      };
      sort();
      if (queue_sends(ends_[r])) sort();
    });
  }
  // Messages to one rank go one after the other: each leaves when the one before is there. Whether
  // one leaves later than it was published. REQUIRES: the ends are in order.
  bool queue_sends(std::vector<End>& ends) {
    StreamId stream;
    double free = 0;
    bool waited = false;
    for (End& end : ends) {
      if (end.stream != stream) free = 0;
      stream = end.stream;
      if (end.arrives) continue;
      waited = waited || free > end.start;
      end.start = std::max(end.start, free);
      free = messages_[static_cast<size_t>(end.message)].arrival;
    }
    return waited;
  }
  const FlatChannel& channel_of(const MessageRecord& message) const {
    return in_.flat.channels[static_cast<size_t>(message.channel)];
  }

  void reserve() {
    size_t spans = devices_.size() + 2 * messages_.size(), samples = 0;
    for (const RankLog& log : loop_.logs()) {
      spans += log.calls.size() + log.waits.size();
      samples += log.memory.size();
    }
    trace_.spans.reserve(spans);
    trace_.memory.reserve(samples);
  }

  Span span(size_t r, trace::Category category, NameId name, double begin, double end,
            int32_t c) const {
    Span span;
    span.rank = devices_[r];
    span.stream = StreamId(0);
    span.category = category;
    span.name = name;
    span.start = Seconds(begin);
    span.duration = Seconds(end) - Seconds(begin);
    span.command = c;
    if (c < 0) return span;
    const pipeline::Command& command = in_.program.ranks[r].commands[static_cast<size_t>(c)];
    span.stage = command.action.stage;
    if (command.action.stage.valid()) span.microbatch = MicrobatchId(command.action.first);
    return span;
  }

  void add_rank(size_t r) {
    RankLog& log = loop_.logs()[r];
    Span step = span(r, trace::Category::kStep, step_name_, 0, loop_.end(), -1);
    step.stream = StreamId();
    step.command = 0;
    trace_.spans.push_back(step);
    auto wait = log.waits.begin();  // calls and waits in the order of time
    const auto add_waits = [&](double until) {
      for (; wait != log.waits.end() && wait->begin.value <= until; ++wait) {
        trace_.spans.push_back(span(r, trace::Category::kWait, name_of(*wait), wait->begin.value,
                                    wait->end.value, wait->command));
      }
    };
    for (const CallRecord& call : log.calls) {
      add_waits(call.begin);
      add_call(r, call);
    }
    add_waits(loop_.end());
    for (const End& end : ends_[r]) add_message(end);
    add_memory(r);
    name_rank(r);
  }

  void add_call(size_t r, const CallRecord& call) {
    const pipeline::Command& command =
        in_.program.ranks[r].commands[static_cast<size_t>(call.command)];
    const TimedFragment& fragment = in_.fragments[static_cast<size_t>(call.timed)];
    if (!in_.options.op_spans) {
      Span made =
          span(r, fragment.cost.update ? trace::Category::kUpdate : trace::Category::kCompute,
               name_of(command), call.begin, call.end, call.command);
      made.flops = Flops(fragment.cost.flops);
      made.bytes =
          Bytes(std::accumulate(fragment.cost.sent.begin(), fragment.cost.sent.end(), int64_t{0}));
      trace_.spans.push_back(made);
      return;
    }
    const ir::Graph& graph = in_.program.fragments[command.fragment.index()].graph;
    const std::vector<int64_t> sent = sent_by_op(fragment.cost);
    const auto which = static_cast<size_t>(call.which);
    const std::vector<OpSpan>& spans =
        call.walk >= 0   ? loop_.logs()[r].walks[static_cast<size_t>(call.walk)]
        : call.pair >= 0 ? in_.pairs[static_cast<size_t>(call.pair)].spans[which]
                         : fragment.spans;
    const double origin = call.walk >= 0 ? 0 : call.pair >= 0 ? call.pair_begin : call.begin;
    for (size_t o = 0; o < graph.ops.size(); ++o) {
      const OpCost& op = fragment.cost.ops[o];
      if (op.alias) continue;
      Span made = span(r, op.label < 0 ? trace::Category::kCompute : trace::Category::kComm,
                       names_.intern(ir::op_name(graph.ops[o].kind)), origin + spans[o].start,
                       origin + spans[o].end, call.command);
      if (op.label >= 0) made.stream = comm_stream(op.label, fragment.cost.update);
      made.bytes = Bytes(sent[o]);
      if (op.label < 0 && ops::op_def(graph.ops[o].kind).cost != nullptr)
        made.flops = Flops(ops::cost_of(graph, graph.ops[o]).flops);
      trace_.spans.push_back(made);
    }
  }

  static std::vector<int64_t> sent_by_op(const FragmentCost& cost) {
    std::vector<int64_t> sent(cost.ops.size(), 0);
    for (const FragmentCost::Collective& collective : cost.collectives_of)
      sent[static_cast<size_t>(collective.op)] = collective.sent();
    return sent;
  }

  // What the update sends may be under way beside the calls before it, and then has streams of its
  // own: spans of one stream do not overlap.
  bool update_goes_ahead() const {
    return in_.options.overlap.grad_reduce || in_.options.overlap.param_gather;
  }
  StreamId comm_stream(int32_t label, bool update) const {
    const auto labels = static_cast<int32_t>(labels_.size());
    return StreamId(kFirstMessageStream + most_peers_ + label +
                    (update && update_goes_ahead() ? labels : 0));
  }

  using CallKey = std::tuple<FragmentId, StageId, int32_t, int32_t>;  // slice, replica
  NameId name_of(const pipeline::Command& command) {
    const pipeline::Action& action = command.action;
    NameId& name = call_names_[{command.fragment, action.stage, action.slice, action.replica}];
    if (!name.valid()) {
      name = names_.intern(
          pipeline::call_name(command, in_.program.fragments[command.fragment.index()]));
    }
    return name;
  }
  // By reason and peer, made when it is first asked for.
  NameId name_of(const Wait& wait) {
    NameId& name = wait_names_[static_cast<size_t>(wait.reason) * (devices_.size() + 1) +
                               static_cast<size_t>(wait.peer + 1)];
    if (!name.valid()) name = names_.intern(wait_name(wait));
    return name;
  }

  // The memory curve of the buffers, and workspace during calls.
  void add_memory(size_t r) {
    const RankLog& log = loop_.logs()[r];
    std::vector<trace::MemorySample> buffers;
    buffers.reserve(log.memory.size());
    int64_t metrics = 0, data = 0;  // both are "other" in a trace
    for (const MemoryRecord& record : log.memory) {
      int64_t bytes = record.bytes;
      if (record.category == pipeline::Category::kMetrics) {
        metrics = bytes;
        bytes += data;
      } else if (record.category == pipeline::Category::kData) {
        data = bytes;
        bytes += metrics;
      }
      buffers.push_back({devices_[r], Seconds(record.time),
                         pipeline::trace_category(record.category), Bytes(bytes)});
    }
    std::vector<trace::MemorySample> workspace;
    for (const CallRecord& call : log.calls) {
      const pipeline::Command& command =
          in_.program.ranks[r].commands[static_cast<size_t>(call.command)];
      const int64_t bytes = in_.flat.ranks[r].workspace_of(
          call.command, in_.fragments[command.fragment.index()].cost.workspace_end);
      if (bytes == 0) continue;
      workspace.push_back(
          {devices_[r], Seconds(call.begin), MemoryCategory::kWorkspace, Bytes(bytes)});
      workspace.push_back({devices_[r], Seconds(call.end), MemoryCategory::kWorkspace, Bytes(0)});
    }
    // Some buffers are temporaries, too, which live from one call to another.
    Bytes of_buffers, of_call;
    const auto add = [&](trace::MemorySample sample, Bytes& now, Bytes other) {
      now = sample.bytes;
      sample.bytes += other;
      trace_.memory.push_back(sample);
    };
    auto next = workspace.begin();
    const auto add_workspace = [&](Seconds until) {
      for (; next != workspace.end() && next->time < until; ++next) add(*next, of_call, of_buffers);
    };
    for (const trace::MemorySample& sample : buffers) {
      add_workspace(sample.time);
      if (sample.category == MemoryCategory::kWorkspace) {
        add(sample, of_buffers, of_call);
      } else {
        trace_.memory.push_back(sample);
      }
    }
    add_workspace(Seconds(std::numeric_limits<double>::infinity()));
  }

  void name_rank(size_t r) {
    trace_.rank_names.push_back(
        {devices_[r], fmt::format("rank {}, pipeline rank {}", devices_[r].value, r)});
    trace_.streams.push_back({devices_[r], StreamId(0), "compute"});
    for (const int32_t peer : peers_[r]) {  // the report's page knows these by their first word
      trace_.streams.push_back({devices_[r], message_stream(static_cast<int32_t>(r), peer),
                                fmt::format("messages, pipeline rank {}", peer)});
    }
    if (!in_.options.op_spans) return;
    for (size_t l = 0; l < labels_.size(); ++l) {
      const auto label = static_cast<int32_t>(l);
      const auto& [axes, entry, divides] = labels_[l];
      const std::string name = entry == axes ? axes : fmt::format("{} over {}", entry, axes);
      trace_.streams.push_back({devices_[r], comm_stream(label, false), name});
      if (update_goes_ahead())
        trace_.streams.push_back({devices_[r], comm_stream(label, true), name + " of the update"});
    }
  }

  void add_message(const End& end) {
    const MessageRecord& record = messages_[static_cast<size_t>(end.message)];
    const auto c = static_cast<size_t>(record.channel);
    const FlatChannel& channel = channel_of(record);
    Span& made =
        trace_.spans.emplace_back(span(static_cast<size_t>(channel.from), trace::Category::kComm,
                                       send_names_[c], end.start, record.arrival, record.command));
    made.stream = end.stream;
    if (!end.arrives) {
      made.bytes = Bytes(channel.sent);
      made.flow_out = end.message;
      return;
    }
    made.rank = devices_[static_cast<size_t>(channel.to)];
    made.name = receive_names_[c];
    made.command = -1;
    made.flow_in = end.message;
  }

  const LoopInput& in_;
  EventLoop& loop_;
  const Labels& labels_;
  const std::vector<RankId>& devices_;
  const std::vector<MessageRecord> messages_;
  trace::NameTable names_;
  NameId step_name_;
  std::vector<NameId> wait_names_, send_names_, receive_names_;
  std::map<CallKey, NameId> call_names_;
  std::vector<std::vector<int32_t>> peers_;  // [pipeline rank] in order
  int32_t most_peers_ = 0;
  std::vector<std::vector<End>> ends_;  // [pipeline rank] by stream, in order of time
  trace::Trace trace_;
};

}  // namespace

trace::Trace make_trace(const LoopInput& input, EventLoop& loop, const Labels& labels,
                        const std::vector<RankId>& devices) {
  return TraceMaker(input, loop, labels, devices).make();
}

}  // namespace mw::simulate
