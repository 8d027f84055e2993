#include "train/parameter_io.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace mw::train {
namespace {

StateId state_of(const compile::FlatGroup& group, Part part) {
  switch (part) {
    case Part::kWeight: return group.weight;
    case Part::kMoment: return group.moment;
    case Part::kVariance: return group.variance;
  }
  MW_CHECK(false, "part {}", static_cast<int>(part));
}

}  // namespace

std::vector<ParameterIo::Home> ParameterIo::homes(StateId parameter) const {
  std::vector<Home> found;
  for (size_t rank = 0; rank < plan_.groups.size(); ++rank) {
    for (const compile::FlatGroup& group : plan_.groups[rank]) {
      for (const compile::GroupMember& member : group.members) {
        if (member.parameter == parameter)
          found.push_back({static_cast<int32_t>(rank), &group, &member});
      }
    }
  }
  return found;
}

RankId ParameterIo::rank_of(int32_t pipeline_rank, RankId like) const {
  const cluster::Mesh& mesh = plan_.plan.mesh;
  std::vector<int64_t> coordinates = mesh.coordinates(like);
  for (size_t a = 0; a < mesh.axes().size(); ++a) {
    if (mesh.axes()[a].name == "pp") coordinates[a] = pipeline_rank;
  }
  return mesh.rank_at(coordinates);
}

template <typename Visit>
void ParameterIo::for_runs(const compile::GroupMember& member, RankId rank, Visit visit) const {
  const cluster::Mesh& mesh = plan_.plan.mesh;
  const size_t rank_dims = member.global.dims.size();
  std::vector<int64_t> begin(rank_dims), count(rank_dims), index(rank_dims, 0);
  for (size_t d = 0; d < rank_dims; ++d) {
    const int64_t local = member.local.dims[d].size, global = member.global.dims[d].size;
    begin[d] = mesh.index(rank, member.sharding.dims[d]) * local;
    count[d] = std::clamp<int64_t>(global - begin[d], 0, local);
    if (count[d] == 0) return;
  }
  if (rank_dims == 0) return visit(0, 0, 1);
  const size_t last = rank_dims - 1;
  while (true) {
    int64_t from = 0, to = 0;
    for (size_t d = 0; d < rank_dims; ++d) {
      from = from * member.global.dims[d].size + begin[d] + index[d];
      to = to * member.local.dims[d].size + index[d];
    }
    visit(from, to, count[last]);
    size_t d = last;
    while (d-- > 0 && ++index[d] == count[d]) index[d] = 0;
    if (d == static_cast<size_t>(-1)) return;
  }
}

float* ParameterIo::flat_element(const Home& home, Part part, RankId rank, int64_t element,
                                 int64_t& run) const {
  const int64_t shards = part == Part::kWeight
                             ? compile::weight_shards(plan_.plan.plan, *home.group)
                             : compile::moment_shards(plan_.plan.plan, *home.group);
  const int64_t shard_elements = home.group->elements / shards;
  const int64_t at = home.member->offset + element;
  RankId owner = rank;
  if (shards > 1) {
    owner = plan_.plan.mesh.members(
        rank, home.group->data_axes)[static_cast<size_t>(at / shard_elements)];
  }
  run = std::min(run, shard_elements - at % shard_elements);
  const BufferId buffer =
      executor_.find_state(owner, plan_.module.state(state_of(*home.group, part)).name);
  return static_cast<float*>(executor_.state_data(owner, buffer)) + at % shard_elements;
}

int64_t ParameterIo::elements(StateId parameter) const {
  const std::vector<Home> all = homes(parameter);
  MW_CHECK(!all.empty(), "no rank holds {}", plan_.module.state(parameter).name);
  return all.front().member->global.elements();
}

std::vector<float> ParameterIo::read(StateId parameter, Part part) const {
  std::vector<float> values(static_cast<size_t>(elements(parameter)));
  read(parameter, part, 0, values);
  return values;
}

void ParameterIo::read(StateId parameter, Part part, int64_t begin, std::span<float> values) const {
  const Home home = homes(parameter).front();
  const int64_t end = begin + static_cast<int64_t>(values.size());
  for (int64_t r = 0; r < plan_.plan.mesh.size(); ++r) {
    const RankId rank(r);
    if (rank_of(home.pipeline_rank, rank) != rank ||
        plan_.plan.mesh.index(rank, home.group->data_axes) != 0)
      continue;
    for_runs(*home.member, rank, [&](int64_t from, int64_t to, int64_t length) {
      const int64_t last = std::min(length, end - from);
      for (int64_t done = std::max<int64_t>(0, begin - from); done < last;) {
        int64_t run = last - done;
        const float* data = flat_element(home, part, rank, to + done, run);
        std::memcpy(values.data() + (from + done - begin), data,
                    static_cast<size_t>(run) * sizeof(float));
        done += run;
      }
    });
  }
}

void ParameterIo::write(StateId parameter, Part part, std::span<const float> values) {
  for (const Home& home : homes(parameter)) {
    MW_CHECK(static_cast<int64_t>(values.size()) == home.member->global.elements(),
             "{} values for {}", values.size(), ir::to_string(home.member->global));
    for (int64_t r = 0; r < plan_.plan.mesh.size(); ++r) {
      const RankId rank(r);
      if (rank_of(home.pipeline_rank, rank) != rank) continue;
      for_runs(*home.member, rank, [&](int64_t from, int64_t to, int64_t length) {
        for (int64_t done = 0; done < length;) {
          int64_t run = length - done;
          float* data = flat_element(home, part, rank, to + done, run);
          std::memcpy(data, values.data() + from + done, static_cast<size_t>(run) * sizeof(float));
          done += run;
        }
      });
    }
  }
}

}  // namespace mw::train
