// Stages that are equal but for names: partitioned, planned and stored once.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compile/cut.h"
#include "compile/flat_groups.h"
#include "compile/fragments.h"

namespace mw::compile {

// What a stage has in place of its twin's; both ways one to one.
struct Twin {
  std::map<StateId, StateId> states;
  std::map<LayerId, LayerId> layers;
  std::map<RegionId, RegionId> regions;      // of recomputation
  std::map<std::string, std::string> names;  // of values
  std::map<std::string, std::string> sites;  // of random numbers
  bool draws_alike() const;                  // all sites are the same
};

// Equal for stages that may be twins; cheap.
uint64_t structure_hash(const StageGraph& stage);

// The stage `other` as a twin of `first`, if their graphs are the same but for names of values,
// states, layers and sites, and their crossings are in the same order.
std::optional<Twin> find_twin(const StageGraph& first, const StageGraph& other,
                              const ir::Module& module);

// Adds the flat states and their names. False: the flat groups of `first`'s and `other`'s states,
// on their pipeline ranks, are not laid out alike.
bool match_groups(const std::vector<FlatGroup>& of_first, const std::vector<FlatGroup>& of_other,
                  const ir::Module& module, Twin& twin);

// The fragment as the twin calls it: the same if both draw alike, else one of its own, "F <name>",
// with the twin's sites.
StageFragment twin_fragment(const StageFragment& first, const Twin& twin, const ir::Module& module,
                            const std::string& name);

// A partitioned graph of `first` as the twin's.
LocalGraph twin_graph(const LocalGraph& first, const Twin& twin);

// Takes the names that differ out of fragments that several of `stages` share, and gives them to
// each stage: port and value "h.*.out", fragment "F stages 1, 2". [stage] the twin, null: it is
// none.
void share_names(const std::vector<std::map<pipeline::ActionKind, StageFragment>*>& stages,
                 const std::vector<const Twin*>& twins);

// "h.1.out", "h.2.out" -> "h.*.out": what all have at both ends.
std::string common_name(const std::vector<std::string_view>& names);

}  // namespace mw::compile
