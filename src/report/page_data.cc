#include "report/page_data.h"

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "trace/memory_curve.h"

namespace mw::report {
namespace {

using trace::Span;

int64_t nanoseconds(Seconds time) { return std::llround(time.value * 1e9); }

class Packer {
 public:
  void number(int64_t n) {
    auto left = static_cast<uint64_t>(n);
    for (; left >= 128; left >>= 7) bytes_.push_back(static_cast<char>(left % 128 + 128));
    bytes_.push_back(static_cast<char>(left));
  }
  void signed_number(int64_t n) { number(n < 0 ? -2 * n - 1 : 2 * n); }

  std::string base64() const {
    static constexpr char kDigits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    text.reserve(bytes_.size() / 3 * 4 + 4);
    for (size_t i = 0; i < bytes_.size(); i += 3) {
      uint32_t word = 0;
      for (size_t k = 0; k < 3; ++k)
        word = word << 8 | (i + k < bytes_.size() ? static_cast<unsigned char>(bytes_[i + k]) : 0u);
      for (size_t k = 0; k < 4; ++k)
        text += i + k <= bytes_.size() ? kDigits[word >> (18 - 6 * k) & 63] : '=';
    }
    return text;
  }

 private:
  std::string bytes_;
};

// A receive's moment says nothing that the end of its send does not.
bool is_bar(const Span& span) {
  return span.category != trace::Category::kStep && span.stream.valid() &&
         !(span.duration.value == 0 && span.flow_in >= 0);
}

// The page draws an update as the computation that it is but for its waits, which are bars upon it.
trace::Category drawn_as(trace::Category category) {
  return category == trace::Category::kUpdate ? trace::Category::kCompute : category;
}

class RunPacker {
 public:
  RunPacker(const PageRun& run, Packer& packer) : run_(run), packer_(packer) {}

  std::vector<std::string> pack() {
    for (const PageRank& rank : run_.ranks) {
      const auto same_rank = std::equal_range(
          run_.trace.spans.begin(), run_.trace.spans.end(), Span{.rank = rank.device},
          [](const Span& a, const Span& b) { return a.rank < b.rank; });
      pack_lanes({same_rank.first, same_rank.second});
      pack_memory(rank);
    }
    return std::move(names_);
  }

 private:
  void pack_lanes(std::span<const Span> spans) {
    std::map<StreamId, std::vector<const Span*>> lanes;
    if (!spans.empty()) lanes[StreamId(0)];
    for (const Span& span : spans) {
      if (is_bar(span)) lanes[span.stream].push_back(&span);
    }
    packer_.number(static_cast<int64_t>(lanes.size()));
    for (const auto& [stream, bars] : lanes) {
      packer_.number(stream.value);
      packer_.number(name_id(stream_name(spans.front().rank, stream)));
      packer_.number(static_cast<int64_t>(bars.size()));
      last_.clear();
      int64_t before = 0;
      for (const Span* bar : bars) before = pack_bar(*bar, before);
    }
  }

  int64_t pack_bar(const Span& bar, int64_t before) {
    const int64_t name = name_id(run_.trace.name(bar));
    const int64_t start = nanoseconds(bar.start), end = std::max(start, nanoseconds(bar.end()));
    const auto [it, first] = last_.try_emplace(name, &bar);
    const Span& last = *it->second;
    int64_t same = 0;
    if (!first) {
      if (last.category == bar.category && last.stage == bar.stage) same |= 1;
      if (last.bytes == bar.bytes && last.flops == bar.flops) same |= 2;
      if (last.microbatch.value + 1 == bar.microbatch.value) same |= 4;
    }
    packer_.number(8 * name + same);
    packer_.signed_number(start - before);
    packer_.number(end - start);
    if ((same & 1) == 0) {
      packer_.number(static_cast<int64_t>(drawn_as(bar.category)));
      packer_.number(bar.stage.value + 1);
    }
    if ((same & 2) == 0) {
      packer_.number(bar.bytes.value);
      packer_.number(std::llround(bar.flops.value));
    }
    if ((same & 4) == 0) packer_.number(bar.microbatch.value + 1);
    it->second = &bar;
    return end;
  }

  // The first point and the fullest of each part of the curve; the last one too where it holds
  // through the next part, which has no point of its own: together one more than there are parts.
  std::vector<const trace::MemoryPoint*> kept_points(
      const std::vector<trace::MemoryPoint>& all) const {
    std::vector<const trace::MemoryPoint*> kept;
    if (all.size() <= kMemoryPoints) {
      for (const trace::MemoryPoint& point : all) kept.push_back(&point);
      return kept;
    }
    const double parts = static_cast<double>(kMemoryPoints) - 2;
    const double length = std::max(run_.step, all.back().time).value;
    const auto part_of = [&](const trace::MemoryPoint& point) {
      return static_cast<size_t>(point.time.value / length * parts);
    };
    for (auto next = all.begin(); next != all.end();) {
      const size_t part = part_of(*next);
      const trace::MemoryPoint* fullest = &*next;
      for (; next != all.end() && part_of(*next) == part; ++next) {
        if (fullest->total < next->total) fullest = &*next;
      }
      if (kept.empty() && fullest != &all.front()) kept.push_back(&all.front());
      kept.push_back(fullest);
      const bool is_followed = next != all.end() && part_of(*next) == part + 1;
      if (!is_followed && &*std::prev(next) != fullest) kept.push_back(&*std::prev(next));
    }
    return kept;
  }

  void pack_memory(const PageRank& rank) {
    const std::vector<trace::MemoryPoint> all = trace::memory_curve(run_.trace, rank.device);
    const std::vector<const trace::MemoryPoint*> kept = kept_points(all);
    packer_.number(static_cast<int64_t>(kept.size()));
    int64_t time = 0;
    std::array<Bytes, trace::kMemoryCategories> bytes{};
    for (const trace::MemoryPoint* point : kept) {
      packer_.number(nanoseconds(point->time) - time);
      time = nanoseconds(point->time);
      for (size_t c = 0; c < bytes.size(); ++c) {
        packer_.signed_number((point->by_category[c] - bytes[c]).value);
        bytes[c] = point->by_category[c];
      }
    }
  }

  std::string stream_name(RankId rank, StreamId stream) const {
    for (const trace::StreamName& named : run_.trace.streams) {
      if (named.rank == rank && named.stream == stream) return named.name;
    }
    return "";
  }

  int64_t name_id(const std::string& name) {
    const auto [it, made] = ids_.try_emplace(name, static_cast<int64_t>(names_.size()));
    if (made) names_.push_back(name);
    return it->second;
  }

  const PageRun& run_;
  Packer& packer_;
  std::vector<std::string> names_;
  std::map<std::string, int64_t> ids_;
  std::map<int64_t, const Span*> last_;  // by name
};

// As in a trace, but for what is left, which the page tells by what it is.
std::string_view word(trace::MemoryCategory category) {
  return category == trace::MemoryCategory::kOther ? "data and metrics"
                                                   : trace::memory_category_name(category);
}

Json peak_json(const PagePeak& peak) {
  Json json{JsonObject{}};
  Bytes total;
  Json by{JsonObject{}};
  for (const auto& [category, bytes] : peak.by_category) {
    by[std::string(word(category))] = bytes.value;
    total += bytes;
  }
  json["bytes"] = total.value;
  json["time"] = nanoseconds(peak.time);
  json["at"] = peak.at;
  json["by"] = std::move(by);
  return json;
}

Json rank_json(const PageRank& rank) {
  Json json{JsonObject{}};
  json["stages"] = rank.stages;
  Json shares{JsonArray{}}, largest{JsonArray{}};
  for (const Share& share : rank.shares) {
    Json entry{JsonObject{}};
    entry["name"] = share.name;
    entry["time"] = share.time.value * 1e9;
    shares.push_back(std::move(entry));
  }
  for (const LargeTensor& tensor : rank.peak.largest) {
    Json entry{JsonObject{}};
    entry["name"] = tensor.name;
    entry["category"] = word(tensor.category);
    entry["bytes"] = tensor.bytes.value;
    largest.push_back(std::move(entry));
  }
  json["shares"] = std::move(shares);
  json["peak"] = peak_json(rank.peak);
  json["largest"] = std::move(largest);
  json["reserved"] = rank.reserved.value;
  return json;
}

Json run_json(const PageRun& run, const std::vector<std::string>& names) {
  Json json{JsonObject{}};
  json["plan"] = run.plan;
  json["note"] = run.note;
  json["step"] = nanoseconds(run.step);
  json["chunks"] = run.chunks;
  json["memory_limit"] = run.memory_limit.value;
  Json figures{JsonArray{}}, ranks{JsonArray{}}, path{JsonArray{}};
  for (const Figure& figure : run.figures) {
    Json entry{JsonObject{}};
    entry["name"] = figure.name;
    entry["value"] = figure.value;
    entry["note"] = figure.note;
    figures.push_back(std::move(entry));
  }
  for (const PageRank& rank : run.ranks) ranks.push_back(rank_json(rank));
  for (const PathPiece& piece : run.path) {
    path.push_back(JsonArray{Json(piece.rank), Json(nanoseconds(piece.begin)),
                             Json(nanoseconds(piece.end)), Json(piece.message ? 1 : 0)});
  }
  json["figures"] = std::move(figures);
  json["ranks"] = std::move(ranks);
  json["path"] = std::move(path);
  json["words"] = Json::list(run.words);
  json["changes"] = Json::list(run.changes);
  json["names"] = Json::list(names);
  return json;
}

}  // namespace

std::string figures_json(const Page& page, const std::vector<std::vector<std::string>>& names) {
  Json json{JsonObject{}};
  json["title"] = page.title;
  json["subtitle"] = page.subtitle;
  Json runs{JsonArray{}};
  for (size_t r = 0; r < page.runs.size(); ++r) runs.push_back(run_json(page.runs[r], names[r]));
  json["runs"] = std::move(runs);
  return json.dump();
}

std::string packed_base64(const Page& page, std::vector<std::vector<std::string>>& names) {
  Packer packer;
  names.clear();
  for (const PageRun& run : page.runs) names.push_back(RunPacker(run, packer).pack());
  return packer.base64();
}

}  // namespace mw::report
