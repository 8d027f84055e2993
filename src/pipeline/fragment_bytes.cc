#include "pipeline/fragment_bytes.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "pipeline/memory_plan.h"
#include "pipeline/sharing.h"
#include "pipeline/streams.h"

namespace mw::pipeline {
namespace {

// Bytes [begin, end) of a value hold the bytes of `owner` from `from` on.
struct Content {
  int64_t begin = 0, end = 0;
  ValueId owner;
  int64_t from = 0;
};

// Bytes of a memory up to `end`: what they hold, who wrote them and who read them since.
struct Segment {
  int64_t end = 0;
  ValueId owner;     // invalid: nothing
  int64_t from = 0;  // the segment's first byte is this byte of the owner
  int32_t writer = -1;
  std::vector<int32_t> readers;  // ops, each of another stream or later than the ones before it
};

class Memory {
 public:
  explicit Memory(int64_t bytes) {
    if (bytes > 0)
      segments_[0] = {.end = bytes, .owner = {}, .from = 0, .writer = -1, .readers = {}};
  }
  // Calls function(begin, segment) for the segments that make up [begin, end), which are split to
  // fit.
  template <typename Function>
  void visit(int64_t begin, int64_t end, Function function) {
    if (begin >= end) return;
    split(begin);
    split(end);
    for (auto it = segments_.find(begin); it != segments_.end() && it->first < end; ++it)
      function(it->first, it->second);
  }
  // One segment over [begin, end).
  void replace(int64_t begin, int64_t end, Segment segment) {
    if (begin >= end) return;
    split(begin);
    split(end);
    segments_.erase(segments_.lower_bound(begin), segments_.lower_bound(end));
    segment.end = end;
    segments_[begin] = std::move(segment);
  }

 private:
  void split(int64_t at) {
    auto it = segments_.upper_bound(at);
    if (it == segments_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    Segment right = it->second;
    right.from += at - it->first;
    it->second.end = at;
    segments_[at] = std::move(right);
  }

  std::map<int64_t, Segment> segments_;
};

class Checker {
 public:
  Checker(const Fragment& fragment, const FragmentInfo& info)
      : fragment_(fragment),
        info_(info),
        graph_(fragment.graph),
        order_(fragment),
        contents_(graph_.values.size()) {
    for (const Port& port : info.ports)
      memories_.emplace_back(graph_.type(port.value).bytes().value);
    memories_.emplace_back(fragment.workspace.value);
    for (size_t p = 0; p < info.inputs; ++p) {
      const ValueId v = info.ports[p].value;
      own(v);
      write_segment(v, -1);
      if (info.places[v.index()].port != static_cast<int32_t>(p)) {
        out_.add("input {} is there twice", graph_.label(v));
      }
    }
  }

  std::vector<std::string> run() {
    for (size_t o = 0; o < graph_.ops.size(); ++o) run_op(static_cast<int32_t>(o));
    op_ = static_cast<int32_t>(graph_.ops.size());
    for (const ir::StateUpdate& update : graph_.updates) check_update(update);
    for (size_t p = info_.inputs; p < info_.ports.size(); ++p) check_output(p);
    return out_.findings();
  }

 private:
  int64_t bytes(ValueId v) const { return graph_.type(v).bytes().value; }
  const ValuePlace& place(ValueId v) const { return info_.places[v.index()]; }
  Memory& memory(ValueId v) {
    const int32_t port = place(v).port;
    return port < 0 ? memories_.back() : memories_[static_cast<size_t>(port)];
  }
  std::string here() const {
    if (op_ == static_cast<int32_t>(graph_.ops.size())) return "the end";
    const ir::Op& op = graph_.ops[static_cast<size_t>(op_)];
    return fmt::format("op {} ({}{})", op_, ir::op_name(op.kind),
                       op.results.empty() ? "" : " -> " + graph_.label(op.results[0]));
  }
  std::string owner_name(ValueId v) const { return v.valid() ? graph_.label(v) : "nothing"; }

  void own(ValueId v) { contents_[v.index()] = {{0, bytes(v), v, 0}}; }

  void run_op(int32_t o) {
    op_ = o;
    const ir::Op& op = graph_.ops[static_cast<size_t>(o)];
    const Sharing sharing = op.results.empty() ? Sharing{} : sharing_of(graph_, op, 0);
    const bool is_view = sharing.kind == Sharing::Kind::kView &&
                         lies_at(op.results[0], op.operands[0], sharing.offset);
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const bool reads =
          sharing.kind == Sharing::Kind::kView ? !is_view : reads_bytes(op, static_cast<int>(i));
      if (reads) read(op.operands[i]);
    }
    if (is_view) {
      contents_[op.results[0].index()] =
          slice(op.operands[0], sharing.offset, bytes(op.results[0]));
      return;
    }
    if (sharing.kind == Sharing::Kind::kAssembly) return assemble(op);
    for (size_t i = 0; i < op.results.size(); ++i) write(op, static_cast<int>(i));
  }

  bool lies_at(ValueId v, ValueId in, int64_t offset) const {
    return place(v).port == place(in).port && place(v).offset == place(in).offset + offset;
  }

  std::vector<Content> slice(ValueId v, int64_t offset, int64_t size) const {
    std::vector<Content> part;
    const std::vector<Content>& all = contents_[v.index()];
    auto it = std::upper_bound(all.begin(), all.end(), offset,
                               [](int64_t at, const Content& content) { return at < content.end; });
    for (; it != all.end() && it->begin < offset + size; ++it) {
      Content content = *it;
      const int64_t begin = std::max(content.begin, offset);
      content.from += begin - content.begin;
      content.begin = begin - offset;
      content.end = std::min(content.end, offset + size) - offset;
      part.push_back(content);
    }
    return part;
  }

  // The op reads all bytes of `v`: they must hold what the graph says, and their writer must have
  // ended.
  void read(ValueId v) {
    const int64_t base = place(v).offset;
    bool reported = false;
    for (const Content& content : contents_[v.index()]) {
      memory(v).visit(
          base + content.begin, base + content.end, [&](int64_t begin, Segment& segment) {
            const int64_t from = content.from + begin - base - content.begin;
            if (!reported && (segment.owner != content.owner || segment.from != from)) {
              out_.add("{} reads {}, but its byte {} holds {}", here(), graph_.label(v),
                       begin - base, owner_name(segment.owner));
              reported = true;
            }
            if (!reported && segment.writer >= 0 && !has_ended(segment.writer)) {
              out_.add("{} reads {}, which op {} may still write: it waits for no event behind it",
                       here(), graph_.label(v), segment.writer);
              reported = true;
            }
            add_reader(segment.readers);
          });
    }
  }

  bool has_ended(int32_t op) const {
    return op_ == static_cast<int32_t>(graph_.ops.size()) || order_.before(op, op_);
  }
  void add_reader(std::vector<int32_t>& readers) const {
    std::erase_if(readers, [&](int32_t reader) { return reader == op_ || has_ended(reader); });
    readers.push_back(op_);
  }

  void assemble(const ir::Op& op) {
    const ValueId flat = op.operands[0], v = op.results[0];
    const std::vector<int64_t>& offsets = op.as<ir::AssembleAttrs>().offsets;
    const int64_t element = dtype_size(graph_.type(flat).dtype);
    if (!lies_at(v, flat, 0)) {
      out_.add("{} does not lie in the memory of {}", here(), graph_.label(flat));
      return own_and_write(v);
    }
    std::vector<Content> rest = contents_[flat.index()], all;
    std::vector<std::pair<int64_t, ValueId>> parts;
    for (size_t i = 0; i < offsets.size(); ++i) {
      const ValueId part = op.operands[i + 1];
      const int64_t at = offsets[i] * element;
      if (!lies_at(part, flat, at)) {
        out_.add("{} takes {} at byte {} of {}, but it lies elsewhere", here(), graph_.label(part),
                 at, graph_.label(flat));
      }
      parts.emplace_back(at, part);
    }
    std::sort(parts.begin(), parts.end());
    int64_t end = 0;
    for (const auto& [at, part] : parts) {
      if (at < end) out_.add("{} takes {} over the part before it", here(), graph_.label(part));
      append(all, slice(flat, end, at - end), end);
      append(all, contents_[part.index()], at);
      end = at + bytes(part);
    }
    append(all, slice(flat, end, bytes(flat) - end), end);
    contents_[v.index()] = std::move(all);
  }
  static void append(std::vector<Content>& all, const std::vector<Content>& part, int64_t at) {
    for (Content content : part) {
      content.begin += at;
      content.end += at;
      if (content.begin < content.end) all.push_back(content);
    }
  }

  void own_and_write(ValueId v) {
    own(v);
    write_segment(v, op_);
  }
  void write_segment(ValueId v, int32_t writer) {
    const int64_t base = place(v).offset;
    memory(v).replace(base, base + bytes(v),
                      {.end = 0, .owner = v, .from = 0, .writer = writer, .readers = {}});
  }

  void write(const ir::Op& op, int i) {
    const ValueId v = op.results[static_cast<size_t>(i)];
    const Sharing sharing = sharing_of(graph_, op, i);
    if (sharing.kind == Sharing::Kind::kOverwrite) {
      const ValueId x = op.operands[static_cast<size_t>(sharing.operand)];
      if (!lies_at(v, x, 0))
        out_.add("{} does not write {} over {}", here(), graph_.label(v), graph_.label(x));
    }
    check_own_operands(op, i);
    check_input(v);
    // Which part is a rank's own differs from rank to rank: it may be any.
    const bool is_part = lies_in_own_part(fragment_, v);
    const ValueId over = is_part ? op.operands[static_cast<size_t>(i)] : v;
    const int64_t base = place(over).offset;
    bool reported = false;
    memory(v).visit(base, base + bytes(over), [&](int64_t, Segment& segment) {
      if (reported) return;
      for (const int32_t reader : segment.readers) {
        if (reader == op_ || has_ended(reader) || reported) continue;
        out_.add(
            "{} writes {} over {}, which op {} may still read: it waits for no event behind it",
            here(), graph_.label(v), owner_name(segment.owner), reader);
        reported = true;
      }
      if (reported || segment.writer < 0 || segment.writer == op_ || has_ended(segment.writer))
        return;
      out_.add("{} writes {} over {}, which op {} may still write", here(), graph_.label(v),
               owner_name(segment.owner), segment.writer);
      reported = true;
    });
    if (is_part) {
      memory(v).replace(base, base + bytes(over),
                        {.end = 0, .owner = {}, .from = 0, .writer = op_, .readers = {}});
    }
    own_and_write(v);
  }

  static bool overlap(const ValuePlace& a, int64_t a_bytes, const ValuePlace& b, int64_t b_bytes) {
    return a.port == b.port && a.offset < b.offset + b_bytes && b.offset < a.offset + a_bytes;
  }

  // A result may lie over an operand of its op only exactly, and only where the op works in place.
  void check_own_operands(const ir::Op& op, int i) {
    const ValueId v = op.results[static_cast<size_t>(i)];
    for (size_t x = 0; x < op.operands.size(); ++x) {
      const ValueId operand = op.operands[x];
      if (!reads_bytes(op, static_cast<int>(x))) continue;
      if (!overlap(place(v), bytes(v), place(operand), bytes(operand))) continue;
      if (lies_at(v, operand, 0) && bytes(v) == bytes(operand) &&
          may_overwrite(op, i, static_cast<int>(x)))
        continue;
      if (lies_at(v, operand, 0) && may_keep_own_part(op, i, static_cast<int>(x)) &&
          lies_in_own_part(fragment_, v))
        continue;
      out_.add("{} writes {} over its operand {}, which it cannot do in place", here(),
               graph_.label(v), graph_.label(operand));
    }
    for (int j = 0; j < i; ++j) {
      const ValueId other = op.results[static_cast<size_t>(j)];
      if (overlap(place(v), bytes(v), place(other), bytes(other))) {
        out_.add("{} writes {} over its result {}", here(), graph_.label(v), graph_.label(other));
      }
    }
  }

  void check_input(ValueId v) {
    const int32_t p = place(v).port;
    if (p < 0 || p >= static_cast<int32_t>(info_.inputs)) return;
    const auto port = static_cast<size_t>(p);
    if (info_.update_of[port] >= 0 || info_.ports[port].consumed) return;
    out_.add("{} writes over input {}, which is neither an updated state nor consumed", here(),
             graph_.label(info_.ports[port].value));
  }

  void check_update(const ir::StateUpdate& update) {
    const auto input = std::find_if(graph_.inputs.begin(), graph_.inputs.end(),
                                    [&](const ir::Input& i) { return i.state == update.state; });
    if (input == graph_.inputs.end()) {
      out_.add("{} updates a state that is no input", graph_.label(update.value));
    } else if (!lies_at(update.value, input->value, 0)) {
      out_.add("{} does not lie in the state {} that it updates", graph_.label(update.value),
               graph_.label(input->value));
    } else {
      read(update.value);
    }
  }

  void check_output(size_t p) {
    const ValueId v = info_.ports[p].value;
    if (place(v).port != static_cast<int32_t>(p) || place(v).offset != 0) {
      out_.add("output {} does not lie in its own buffer", graph_.label(v));
    } else {
      read(v);
    }
  }

  const Fragment& fragment_;
  const FragmentInfo& info_;
  const ir::Graph& graph_;
  StreamOrder order_;
  std::vector<Memory> memories_;                // [port], then the workspace
  std::vector<std::vector<Content>> contents_;  // [value]
  int32_t op_ = -1;
  Diagnostics out_;
};

}  // namespace

std::vector<std::string> fragment_memory_findings(const Fragment& fragment,
                                                  const FragmentInfo& info) {
  return Checker(fragment, info).run();
}

}  // namespace mw::pipeline
