#include "trace/chrome_trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
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
std::string microseconds(int64_t ns) {
  const uint64_t magnitude = static_cast<uint64_t>(ns < 0 ? -ns : ns);
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", magnitude / 1000, magnitude % 1000);
}
std::string plain_name(RankId rank) { return fmt::format("rank {}", rank.value); }
Seconds seconds_of(double us) { return Seconds(static_cast<double>(std::llround(us * 1e3)) / 1e9); }

class Writer {
 public:
  explicit Writer(const Trace& trace) : trace_(trace) {}

  std::string write() {
    add("{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"schema\":{},\"program_hash\":{},"
        "\"producer\":{},"
        "\"dropped\":{}{}}},\"traceEvents\":[",
        quoted(kSchema), quoted(trace_.program_hash), quoted(trace_.producer), trace_.dropped,
        trace_.step > 0 ? fmt::format(",\"step\":{}", trace_.step) : "");
    for (RankId rank : ranks(trace_)) write_process(rank);
    for (const StreamName& stream : trace_.streams) {
      write_thread(stream.rank, stream.stream, stream.name);
    }
    for (const Span& span : trace_.spans) {
      write_span(span);
      write_flow(span);
    }
    for (RankId rank : ranks(trace_)) write_memory(rank);
    out_ += "\n]}\n";
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  void begin_event(char phase, RankId rank) {
    add("{}\n{{\"ph\":\"{}\",\"pid\":{}", first_ ? "" : ",", phase, pid(rank));
    first_ = false;
  }

  void write_process(RankId rank) {
    begin_event('M', rank);
    const auto named = std::find_if(trace_.rank_names.begin(), trace_.rank_names.end(),
                                    [&](const RankName& name) { return name.rank == rank; });
    add(",\"name\":\"process_name\",\"args\":{{\"name\":{}}}}}",
        quoted(named == trace_.rank_names.end() ? plain_name(rank) : named->name));
    begin_event('M', rank);
    add(",\"name\":\"process_sort_index\",\"args\":{{\"sort_index\":{}}}}}", rank.value);
    const bool has_loose =
        std::any_of(trace_.spans.begin(), trace_.spans.end(),
                    [&](const Span& span) { return span.rank == rank && !span.stream.valid(); });
    if (has_loose) write_thread(rank, StreamId(), "steps");
  }

  void write_thread(RankId rank, StreamId stream, std::string_view name) {
    begin_event('M', rank);
    add(",\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":{}}}}}", tid(stream),
        quoted(name));
    begin_event('M', rank);
    add(",\"tid\":{},\"name\":\"thread_sort_index\",\"args\":{{\"sort_index\":{}}}}}", tid(stream),
        tid(stream));
  }

  void write_span(const Span& span) {
    const int64_t start = nanoseconds(span.start), end = nanoseconds(span.end());
    begin_event('X', span.rank);
    add(",\"tid\":{},\"ts\":{},\"dur\":{},\"cat\":\"{}\",\"name\":{},\"args\":{{", tid(span.stream),
        microseconds(start), microseconds(end - start), category_name(span.category),
        quoted(trace_.name(span)));
    const char* comma = "";
    const auto arg = [&](std::string_view key, bool is_set, const auto& value) {
      if (!is_set) return;
      add("{}\"{}\":{}", comma, key, value);
      comma = ",";
    };
    arg("bytes", span.bytes.value != 0, span.bytes.value);
    arg("flops", span.flops.value != 0, format_float(span.flops.value));
    arg("microbatch", span.microbatch.valid(), span.microbatch.value);
    arg("stage", span.stage.valid(), span.stage.value);
    arg("command", span.command >= 0, span.command);
    arg("flow_out", span.flow_out >= 0, span.flow_out);
    arg("flow_in", span.flow_in >= 0, span.flow_in);
    out_ += "}}";
  }

  // An arrow leaves at the sender's start and arrives within the receiver's last nanosecond: a
  // viewer binds it to the span that encloses the moment.
  void write_flow(const Span& span) {
    const int64_t start = nanoseconds(span.start);
    if (span.flow_out >= 0) {
      begin_event('s', span.rank);
      add(",\"tid\":{},\"ts\":{},\"cat\":\"message\",\"name\":\"message\",\"id\":{}}}",
          tid(span.stream), microseconds(start), span.flow_out);
    }
    if (span.flow_in >= 0) {
      begin_event('f', span.rank);
      add(",\"tid\":{},\"ts\":{},\"cat\":\"message\",\"name\":\"message\",\"id\":{},\"bp\":\"e\"}}",
          tid(span.stream), microseconds(std::max(start, nanoseconds(span.end()) - 1)),
          span.flow_in);
    }
  }

  void write_memory(RankId rank) {
    std::array<Bytes, kMemoryCategories> last = {};
    for (const MemoryPoint& point : memory_curve(trace_, rank)) {
      if (point.by_category == last) continue;
      last = point.by_category;
      const std::string ts = microseconds(nanoseconds(point.time));
      begin_event('C', rank);
      add(",\"ts\":{},\"name\":\"memory\",\"args\":{{", ts);
      for (int c = 0; c < kMemoryCategories; ++c) {
        add("{}\"{}\":{}", c == 0 ? "" : ",", memory_category_name(static_cast<MemoryCategory>(c)),
            point.by_category[c].value);
      }
      out_ += "}}";
      begin_event('C', rank);
      add(",\"ts\":{},\"name\":\"memory total\",\"args\":{{\"bytes\":{}}}}}", ts,
          point.total.value);
    }
  }

  const Trace& trace_;
  std::string out_;
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

std::string to_chrome_json(const Trace& trace) { return Writer(trace).write(); }

Trace from_chrome_json(std::string_view text, std::string_view file) {
  const Json json = parse_json(text, file);
  return Reader(json, file).read();
}

}  // namespace mw::trace
