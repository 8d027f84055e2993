#include "cluster/mesh.h"

#include <algorithm>
#include <limits>

#include <fmt/core.h>

#include "base/error.h"
#include "base/text.h"

namespace mw::cluster {
namespace {

std::string axes_text(const std::vector<Axis>& axes) {
  std::vector<std::string> parts;
  for (const Axis& axis : axes) parts.push_back(fmt::format("{}:{}", axis.name, axis.size));
  return fmt::format("{{{}}}", join(parts, ", "));
}

void check_distinct(const Names& axes) {
  for (size_t i = 0; i < axes.size(); ++i) {
    MW_CHECK(std::find(axes.begin(), axes.begin() + static_cast<long>(i), axes[i]) ==
                 axes.begin() + static_cast<long>(i),
             "axis '{}' is listed twice", axes[i]);
  }
}

}  // namespace

Mesh::Mesh(std::vector<Axis> axes) : axes_(std::move(axes)) {
  Diagnostics diagnostics;
  const std::string text = axes_text(axes_);
  for (size_t i = 0; i < axes_.size(); ++i) {
    const Axis& axis = axes_[i];
    if (axis.name.empty()) diagnostics.add("mesh {}: axis {} has no name", text, i);
    if (axis.size < 1) {
      diagnostics.add("mesh {}: axis '{}' has size {}; it must be at least 1", text, axis.name,
                      axis.size);
      continue;
    }
    for (size_t j = 0; j < i; ++j) {
      if (axes_[j].name == axis.name)
        diagnostics.add("mesh {}: axis '{}' is there twice", text, axis.name);
    }
    // Rank ids have 31 bits.
    if (size_ > std::numeric_limits<int32_t>::max() / axis.size) {
      diagnostics.add("mesh {}: has more than 2^31 - 1 devices", text);
      break;
    }
    size_ *= axis.size;
  }
  diagnostics.throw_if_any();
}

bool Mesh::has(std::string_view name) const { return stride(name) > 0; }

int64_t Mesh::axis_size(std::string_view name) const {
  for (const Axis& axis : axes_) {
    if (axis.name == name) return axis.size;
  }
  return 1;
}

int64_t Mesh::stride(std::string_view name) const {
  int64_t stride = 1;
  for (size_t i = axes_.size(); i-- > 0; stride *= axes_[i].size) {
    if (axes_[i].name == name) return stride;
  }
  return 0;
}

void Mesh::check_rank(RankId rank) const {
  MW_CHECK(rank.valid() && rank.value < size_, "rank {} of mesh {}", rank.value, to_string(*this));
}

int64_t Mesh::group_size(const Names& axes) const {
  check_distinct(axes);
  int64_t size = 1;
  for (const std::string& name : axes) size *= axis_size(name);
  return size;
}

int64_t Mesh::index(RankId rank, const Names& axes) const {
  check_distinct(axes);
  check_rank(rank);
  int64_t index = 0;
  for (const std::string& name : axes) {
    if (!has(name)) continue;
    const int64_t size = axis_size(name);
    index = index * size + rank.value / stride(name) % size;
  }
  return index;
}

std::vector<RankId> Mesh::members(RankId rank, const Names& axes) const {
  check_distinct(axes);
  check_rank(rank);
  int64_t origin = rank.value;
  for (const std::string& name : axes) {
    if (has(name)) origin -= origin / stride(name) % axis_size(name) * stride(name);
  }
  std::vector<RankId> members = {RankId(origin)};
  for (const std::string& name : axes) {
    std::vector<RankId> next;
    for (const RankId member : members) {
      for (int64_t i = 0; i < axis_size(name); ++i)
        next.emplace_back(member.value + i * stride(name));
    }
    members = std::move(next);
  }
  return members;
}

std::vector<int64_t> Mesh::coordinates(RankId rank) const {
  check_rank(rank);
  std::vector<int64_t> coordinates(axes_.size());
  int64_t rest = rank.value;
  for (size_t i = axes_.size(); i-- > 0; rest /= axes_[i].size)
    coordinates[i] = rest % axes_[i].size;
  return coordinates;
}

RankId Mesh::rank_at(const std::vector<int64_t>& coordinates) const {
  MW_CHECK(coordinates.size() == axes_.size(), "{} coordinates for mesh {}", coordinates.size(),
           to_string(*this));
  int64_t rank = 0;
  for (size_t i = 0; i < axes_.size(); ++i) {
    MW_CHECK(coordinates[i] >= 0 && coordinates[i] < axes_[i].size,
             "coordinate {} along '{}' of mesh {}", coordinates[i], axes_[i].name,
             to_string(*this));
    rank = rank * axes_[i].size + coordinates[i];
  }
  return RankId(rank);
}

std::string to_string(const Mesh& mesh) { return axes_text(mesh.axes()); }

Mesh parse_mesh(std::string_view text) {
  std::string_view inner = trim(text);
  if (starts_with(inner, "{") && ends_with(inner, "}"))
    inner = trim(inner.substr(1, inner.size() - 2));
  std::vector<Axis> axes;
  if (inner.empty()) return Mesh();
  for (const std::string_view part : split(inner, ',')) {
    const size_t colon = part.find(':');
    const auto size =
        colon == std::string_view::npos ? std::nullopt : parse_int64(trim(part.substr(colon + 1)));
    if (!size)
      throw_error("mesh '{}': '{}' must be name:size, as in {{pp:4, dp:2, tp:8}}", text,
                  trim(part));
    axes.push_back({std::string(trim(part.substr(0, colon))), *size});
  }
  return Mesh(std::move(axes));
}

}  // namespace mw::cluster
