#include "trace/chrome_trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/in_parallel.h"
#include "base/json.h"
#include "base/text.h"
#include "trace/memory_curve.h"

namespace mw::trace {
namespace {

constexpr std::string_view kSchema = "meshwright-trace-1";
constexpr int32_t kFirstStreamTid = 2;  // tid 1 is that of spans without a stream

int32_t pid(RankId rank) { return rank.value + 1; }
int32_t tid(StreamId stream) {
  return stream.valid() ? stream.value + kFirstStreamTid : kFirstStreamTid - 1;
}

// Times are integers of nanoseconds, so that spans that touch still touch after rounding.
int64_t nanoseconds(Seconds time) {
  MW_CHECK(std::isfinite(time.value), "a time of {} s in a trace", time.value);
  return std::llround(time.value * 1e9);
}
std::string plain_name(RankId rank) { return fmt::format("rank {}", rank.value); }
Seconds seconds_of(double us) { return Seconds(static_cast<double>(std::llround(us * 1e3)) / 1e9); }

// Events one behind the other. A trace has millions of them: texts and whole numbers go straight
// into the text.
class EventText {
 public:
  void begin(char phase, RankId rank) {
    text_ += ",\n{\"ph\":\"";
    text_ += phase;
    add("\",\"pid\":", pid(rank));
  }
  // Texts, characters and whole numbers.
  template <typename... Parts>
  void add(const Parts&... parts) {
    (append(parts), ...);
  }
  // In microseconds with three decimals.
  void add_time(std::string_view key, int64_t ns) {
    text_ += key;
    if (ns < 0) text_ += '-';
    const uint64_t magnitude = static_cast<uint64_t>(ns < 0 ? -ns : ns);
    append(magnitude / 1000);
    text_ += '.';
    const auto rest = static_cast<int>(magnitude % 1000);
    for (const int digit : {rest / 100, rest / 10 % 10, rest % 10})
      text_ += static_cast<char>('0' + digit);
  }
  // An argument of an event, of which `comma` parts those that are set.
  template <typename Value>
  void argument(bool is_set, std::string_view key, const Value& value, bool& comma) {
    if (!is_set) return;
    add(comma ? ",\"" : "\"", key, "\":", value);
    comma = true;
  }

  const std::string& text() const { return text_; }
  void clear() { text_.clear(); }

 private:
  void append(std::string_view part) { text_ += part; }
  void append(char part) { text_ += part; }
  template <std::integral T>
  void append(T part) {
    const fmt::format_int digits(part);
    text_.append(digits.data(), digits.size());
  }

  std::string text_;
};

// What is written is made in pieces, several at a time, and handed on in their order.
class Writer {
 public:
  Writer(const Trace& trace, const TextSink& sink) : trace_(trace), sink_(sink) {
    for (const std::string& name : trace.names) names_.push_back(quoted(name));
  }

  void write() {
    sink_(fmt::format(
        "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"schema\":{},\"program_hash\":{},"
        "\"producer\":{},\"dropped\":{}{}}},\"traceEvents\":[",
        quoted(kSchema), quoted(trace_.program_hash), quoted(trace_.producer), trace_.dropped,
        trace_.step > 0 ? fmt::format(",\"step\":{}", trace_.step) : ""));
    const std::vector<RankId> all = ranks(trace_);
    EventText names;
    for (RankId rank : all) write_process(names, rank);
    for (const StreamName& stream : trace_.streams)
      write_thread(names, stream.rank, stream.stream, stream.name);
    hand_on(names);
    const size_t spans = trace_.spans.size();
    in_pieces((spans + kSpans - 1) / kSpans, [&](EventText& to, size_t piece) {
      for (size_t s = piece * kSpans; s < std::min(spans, (piece + 1) * kSpans); ++s) {
        write_span(to, trace_.spans[s]);
        write_flow(to, trace_.spans[s]);
      }
    });
    in_pieces(all.size(), [&](EventText& to, size_t r) { write_memory(to, all[r]); });
    sink_("\n]}\n");
  }

 private:
  static constexpr size_t kSpans = 4096;  // a piece
  static constexpr size_t kAtOnce = 16;   // pieces

  template <typename Write>
  void in_pieces(size_t count, const Write& write) {
    std::vector<EventText> made(std::min(count, kAtOnce));
    for (size_t first = 0; first < count; first += kAtOnce) {
      const size_t pieces = std::min(kAtOnce, count - first);
      in_parallel(pieces, threads_for(pieces * kSpans), [&](size_t p) {
        made[p].clear();
        write(made[p], first + p);
      });
      for (size_t p = 0; p < pieces; ++p) hand_on(made[p]);
    }
  }
  // Every event begins with the comma behind the one before.
  void hand_on(const EventText& events) {
    std::string_view text = events.text();
    if (text.empty()) return;
    if (first_) text.remove_prefix(1);
    first_ = false;
    sink_(text);
  }

  void write_process(EventText& to, RankId rank) const {
    const auto named = std::find_if(trace_.rank_names.begin(), trace_.rank_names.end(),
                                    [&](const RankName& name) { return name.rank == rank; });
    to.begin('M', rank);
    to.add(",\"name\":\"process_name\",\"args\":{\"name\":",
           quoted(named == trace_.rank_names.end() ? plain_name(rank) : named->name), "}}");
    to.begin('M', rank);
    to.add(",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":", rank.value, "}}");
    // Spans without a stream are the first of their rank.
    const auto first =
        std::lower_bound(trace_.spans.begin(), trace_.spans.end(), rank,
                         [](const Span& span, RankId before) { return span.rank < before; });
    const bool has_loose =
        first != trace_.spans.end() && first->rank == rank && !first->stream.valid();
    if (has_loose) write_thread(to, rank, StreamId(), "steps");
  }

  static void write_thread(EventText& to, RankId rank, StreamId stream, std::string_view name) {
    to.begin('M', rank);
    to.add(",\"tid\":", tid(stream), ",\"name\":\"thread_name\",\"args\":{\"name\":", quoted(name),
           "}}");
    to.begin('M', rank);
    to.add(",\"tid\":", tid(stream),
           ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":", tid(stream), "}}");
  }

  void write_span(EventText& to, const Span& span) const {
    const int64_t start = nanoseconds(span.start), end = nanoseconds(span.end());
    to.begin('X', span.rank);
    to.add(",\"tid\":", tid(span.stream));
    to.add_time(",\"ts\":", start);
    to.add_time(",\"dur\":", end - start);
    to.add(",\"cat\":\"", category_name(span.category), "\",\"name\":",
           span.name.valid() ? std::string_view(names_.at(span.name.index())) : "\"\"",
           ",\"args\":{");
    bool comma = false;
    to.argument(span.bytes.value != 0, "bytes", span.bytes.value, comma);
    if (span.flops.value != 0) to.argument(true, "flops", format_float(span.flops.value), comma);
    to.argument(span.microbatch.valid(), "microbatch", span.microbatch.value, comma);
    to.argument(span.stage.valid(), "stage", span.stage.value, comma);
    to.argument(span.command >= 0, "command", span.command, comma);
    to.argument(span.flow_out >= 0, "flow_out", span.flow_out, comma);
    to.argument(span.flow_in >= 0, "flow_in", span.flow_in, comma);
    to.add("}}");
  }

  // An arrow leaves at the sender's start and arrives within the receiver's last nanosecond: a
  // viewer binds it to the span that encloses the moment.
  static void write_flow(EventText& to, const Span& span) {
    const int64_t start = nanoseconds(span.start);
    const auto arrow = [&](char phase, int64_t at, int64_t id) {
      to.begin(phase, span.rank);
      to.add(",\"tid\":", tid(span.stream));
      to.add_time(",\"ts\":", at);
      to.add(",\"cat\":\"message\",\"name\":\"message\",\"id\":", id);
    };
    if (span.flow_out >= 0) {
      arrow('s', start, span.flow_out);
      to.add("}");
    }
    if (span.flow_in >= 0) {
      arrow('f', std::max(start, nanoseconds(span.end()) - 1), span.flow_in);
      to.add(",\"bp\":\"e\"}");
    }
  }

  void write_memory(EventText& to, RankId rank) const {
    std::array<Bytes, kMemoryCategories> last = {};
    for (const MemoryPoint& point : memory_curve(trace_, rank)) {
      if (point.by_category == last) continue;
      last = point.by_category;
      const int64_t at = nanoseconds(point.time);
      to.begin('C', rank);
      to.add_time(",\"ts\":", at);
      to.add(",\"name\":\"memory\",\"args\":{");
      bool comma = false;
      for (int c = 0; c < kMemoryCategories; ++c) {
        to.argument(true, memory_category_name(static_cast<MemoryCategory>(c)),
                    point.by_category[c].value, comma);
      }
      to.add("}}");
      to.begin('C', rank);
      to.add_time(",\"ts\":", at);
      to.add(",\"name\":\"memory total\",\"args\":{\"bytes\":", point.total.value, "}}");
    }
  }

  const Trace& trace_;
  const TextSink& sink_;
  std::vector<std::string> names_;  // in quotes
  bool first_ = true;
};

class Reader {
 public:
  Reader(const Json& json, std::string_view file) : json_(json), file_(file) {}

  Trace read() {
    const Json& meta = json_.at("otherData", file_);
    const std::string where = file_ + ": otherData";
    const std::string& schema = meta.at("schema", where).as_string(where + ".schema");
    if (schema != kSchema) {
      throw_error("{}.schema: is {}, must be {}; only traces written by meshwright can be read",
                  where, quoted(schema), quoted(kSchema));
    }
    trace_.program_hash = meta.at("program_hash", where).as_string(where + ".program_hash");
    trace_.producer = meta.at("producer", where).as_string(where + ".producer");
    trace_.dropped = meta.at("dropped", where).as_integer(where + ".dropped");
    if (const Json* step = meta.find("step")) trace_.step = step->as_integer(where + ".step");
    const JsonArray& events = json_.at("traceEvents", file_).as_array(file_ + ": traceEvents");
    for (size_t i = 0; i < events.size(); ++i) {
      read_event(events[i], fmt::format("{}: traceEvents[{}]", file_, i));
    }
    trace_.names = names_.names();
    sort(trace_);
    return std::move(trace_);
  }

 private:
  void read_event(const Json& event, const std::string& where) {
    const std::string& phase = event.at("ph", where).as_string(where + ".ph");
    const RankId rank(event.at("pid", where).as_integer(where + ".pid") - 1);
    if (phase == "X") return read_span(event, rank, where);
    const std::string& name = event.at("name", where).as_string(where + ".name");
    if (phase == "C" && name == "memory") return read_memory(event, rank, where);
    if (phase == "M" && name == "thread_name") return read_stream(event, rank, where);
    if (phase == "M" && name == "process_name") return read_process(event, rank, where);
    // The rest repeats what stands elsewhere.
  }

  static StreamId stream_of(const Json& event, const std::string& where) {
    const int64_t tid = event.at("tid", where).as_integer(where + ".tid");
    return tid < kFirstStreamTid ? StreamId() : StreamId(tid - kFirstStreamTid);
  }

  static Seconds time_of(const Json& event, std::string_view key, const std::string& where) {
    return seconds_of(event.at(key, where).as_number(where + "." + std::string(key)));
  }

  void read_span(const Json& event, RankId rank, const std::string& where) {
    Span span;
    span.rank = rank;
    span.stream = stream_of(event, where);
    span.start = time_of(event, "ts", where);
    span.duration = time_of(event, "dur", where);
    span.category = category_of(event.at("cat", where).as_string(where + ".cat"), where);
    const std::string& name = event.at("name", where).as_string(where + ".name");
    if (!name.empty()) span.name = names_.intern(name);
    const Json& args = event.at("args", where);
    const auto integer = [&](std::string_view key, int64_t fallback) {
      const Json* value = args.find(key);
      return value ? value->as_integer(where + ".args") : fallback;
    };
    span.bytes = Bytes(integer("bytes", 0));
    if (const Json* flops = args.find("flops"))
      span.flops = Flops(flops->as_number(where + ".args"));
    span.microbatch = MicrobatchId(integer("microbatch", -1));
    span.stage = StageId(integer("stage", -1));
    span.command = static_cast<int32_t>(integer("command", -1));
    span.flow_out = integer("flow_out", -1);
    span.flow_in = integer("flow_in", -1);
    trace_.spans.push_back(span);
  }

  static Category category_of(const std::string& name, const std::string& where) {
    for (int c = 0; c < kCategories; ++c) {
      if (category_name(static_cast<Category>(c)) == name) return static_cast<Category>(c);
    }
    throw_error("{}.cat: unknown category {}", where, quoted(name));
  }

  void read_stream(const Json& event, RankId rank, const std::string& where) {
    const StreamId stream = stream_of(event, where);
    if (!stream.valid()) return;
    const Json& args = event.at("args", where);
    trace_.streams.push_back({rank, stream, args.at("name", where).as_string(where + ".args")});
  }

  void read_process(const Json& event, RankId rank, const std::string& where) {
    const std::string& name = event.at("args", where).at("name", where).as_string(where + ".args");
    if (name != plain_name(rank)) trace_.rank_names.push_back({rank, name});
  }

  // Events of a rank come in the order of time; a sample is what differs from the rank's last
  // event.
  void read_memory(const Json& event, RankId rank, const std::string& where) {
    if (rank != memory_rank_) last_memory_ = {};
    memory_rank_ = rank;
    const Seconds time = time_of(event, "ts", where);
    const Json& args = event.at("args", where);
    for (int c = 0; c < kMemoryCategories; ++c) {
      const auto category = static_cast<MemoryCategory>(c);
      const Bytes bytes(args.at(memory_category_name(category), where).as_integer(where + ".args"));
      if (bytes == last_memory_[c]) continue;
      last_memory_[c] = bytes;
      trace_.memory.push_back({rank, time, category, bytes});
    }
  }

  const Json& json_;
  const std::string file_;
  Trace trace_;
  NameTable names_;
  RankId memory_rank_;
  std::array<Bytes, kMemoryCategories> last_memory_ = {};
};

}  // namespace

void write_chrome_json(const Trace& trace, const TextSink& sink) { Writer(trace, sink).write(); }

std::string to_chrome_json(const Trace& trace) {
  std::string text;
  write_chrome_json(trace, [&](std::string_view part) { text += part; });
  return text;
}

Trace from_chrome_json(std::string_view text, std::string_view file) {
  const Json json = parse_json(text, file);
  return Reader(json, file).read();
}

}  // namespace mw::trace
