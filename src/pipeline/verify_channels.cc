// Both ends of every channel, each by itself and against the other: the same messages, each once
// and in order, of the channel's type.
#include <set>

#include "pipeline/verify.h"

namespace mw::pipeline {
namespace {

// One side of a channel in the order of the commands.
struct Side {
  std::vector<int64_t> acquired, published, received;
  std::multiset<int64_t> released;
};

class ChannelChecker {
 public:
  ChannelChecker(const Checked& checked, Diagnostics& out)
      : program_(checked.program), out_(out), sides_(program_.channels.size()) {}

  void run() {
    for (size_t r = 0; r < program_.ranks.size(); ++r) collect(static_cast<int32_t>(r));
    for (size_t c = 0; c < sides_.size(); ++c) compare(c);
  }

 private:
  void collect(int32_t r) {
    const RankProgram& rank = program_.ranks[static_cast<size_t>(r)];
    for (const Buffer& buffer : rank.buffers) {
      if (buffer.storage.kind != Storage::Kind::kSlot) continue;
      const Channel& channel = program_.channels[static_cast<size_t>(buffer.storage.channel)];
      if (buffer.type() == channel.type && buffer.storage.offset == 0) continue;
      out_.add(
          "pipeline rank {}, buffer '{}' is {} at byte {} of a slot of channel '{}', which holds "
          "{}",
          r, buffer.name(), ir::to_string(buffer.type()), buffer.storage.offset, channel.name,
          ir::to_string(channel.type));
    }
    for (size_t c = 0; c < rank.commands.size(); ++c) {
      const Command& command = rank.commands[c];
      if (command.kind == Command::Kind::kLoad || command.kind == Command::Kind::kCall) continue;
      Side& side = sides_[static_cast<size_t>(command.channel)];
      const Channel& channel = program_.channels[static_cast<size_t>(command.channel)];
      const bool sends =
          command.kind == Command::Kind::kAcquire || command.kind == Command::Kind::kPublish;
      const int32_t wanted = sends ? channel.from : channel.to;
      if (wanted != r) {
        out_.add("{} is on the wrong side: only pipeline rank {} {}", place_text(program_, r, c),
                 wanted, sends ? "sends" : "receives");
        continue;
      }
      switch (command.kind) {
        case Command::Kind::kAcquire: in_order(side.acquired, r, c); break;
        case Command::Kind::kPublish: in_order(side.published, r, c); break;
        case Command::Kind::kReceive: in_order(side.received, r, c); break;
        default: side.released.insert(command.sequence);
      }
    }
  }

  void in_order(std::vector<int64_t>& messages, int32_t r, size_t c) {
    const int64_t sequence = program_.ranks[static_cast<size_t>(r)].commands[c].sequence;
    const int64_t wanted = messages.empty() ? 0 : messages.back() + 1;
    if (sequence != wanted)
      out_.add("{} comes where message {} must come", place_text(program_, r, c), wanted);
    messages.push_back(sequence);
  }

  void compare(size_t c) {
    const Channel& channel = program_.channels[c];
    const Side& side = sides_[c];
    const auto add = [&](const std::string& what) {
      out_.add("channel '{}' from pipeline rank {} to {}: {}", channel.name, channel.from,
               channel.to, what);
    };
    if (side.acquired != side.published) {
      add(fmt::format("{} slots are acquired, but {} messages published", side.acquired.size(),
                      side.published.size()));
    }
    if (side.published != side.received) {
      add(fmt::format("{} messages are published, but {} received", side.published.size(),
                      side.received.size()));
    }
    if (std::multiset<int64_t>(side.received.begin(), side.received.end()) != side.released) {
      add(fmt::format("{} messages are received, but {} released, each must be once",
                      side.received.size(), side.released.size()));
    }
  }

  const Program& program_;
  Diagnostics& out_;
  std::vector<Side> sides_;  // [channel]
};

}  // namespace

void check_channels(const Checked& checked, Diagnostics& out) {
  ChannelChecker(checked, out).run();
}

}  // namespace mw::pipeline
