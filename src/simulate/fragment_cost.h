// The ops of a fragment with their costs and dependencies. Private to room simulate.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/name.h"
#include "cluster/group_shape.h"
#include "cluster/hardware.h"
#include "cost/op_time.h"
#include "pipeline/groups.h"
#include "pipeline/program.h"
#include "simulate/simulate.h"

namespace mw::simulate {

// Device groups by their labels ("tp", "dp", "holders tbl", "pp") and what they divide, as small
// numbers: what has a process group of its own.
class Labels {
 public:
  struct Label {
    std::string name, entry;  // pipeline::group_label, group_entry
    pipeline::Divides divides = pipeline::Divides::kReplicas;
  };
  int32_t id(const ir::DeviceGroup& group, bool of_weights, const cluster::Mesh& mesh);
  size_t size() const { return labels_.size(); }
  const Label& operator[](size_t id) const { return labels_[id]; }

 private:
  std::vector<Label> labels_;
};

// Pipeline ranks that meet in a collective.
struct CrossGroup {
  std::vector<int32_t> ranks;
};

struct OpCost {
  double device = 0, host = 0;  // seconds
  double latency = 0;           // of a collective: the first of `device`, its links free
  int32_t stream = 0;
  int32_t label = -1;   // of a collective that sends something
  int32_t cross = -1;   // of a collective over several pipeline ranks: its CrossGroup
  uint32_t levels = 0;  // of a collective: link levels that it crosses, as bits
  uint32_t links = 0;   // and those, where a torus has a level for each of its sides
  uint32_t fills = 0;   // of `links`, those of which it takes most, where sums may be early
  Beside beside = Beside::kOther;        // of a collective: what it is to computation beside it
  bool alias = false;                    // nothing runs
  uint32_t first_dep = 0, deps = 0;      // into FragmentCost::deps: ops that must have ended
  uint32_t first_state = 0, states = 0;  // into FragmentCost::state_reads: input ports it reads
};

// A fragment as the clock needs it.
struct FragmentCost {
  std::vector<OpCost> ops;
  std::vector<int32_t> deps, state_reads;
  std::vector<ir::OpKind> kinds;  // [op]
  int32_t streams = 1;
  uint32_t shared_levels = 0;  // that collectives of several streams cross, as OpCost::links
  uint32_t besides = 0;        // what collectives are to the computation beside them, as bits
  // [level][op] which share of a shared level's bandwidth a collective takes; empty: all of it.
  std::vector<std::vector<double>> uses;
  // [stream] its ops in order, where there are several; by data alone, without aliases.
  std::vector<std::vector<int32_t>> queues;
  bool crosses = false;
  double flops = 0, recomputed_flops = 0;
  std::vector<int64_t> sent, collectives;  // [label], of one call
  int64_t workspace_end = 0;
  // Input ports of states, with the last op that writes and the first that reads their memory.
  struct StateUse {
    int32_t port = 0, first_read = -1, last_write = -1;
  };
  std::vector<StateUse> state_uses;
  std::vector<int32_t> gathers;  // all-gathers that nothing but states takes
  // Of an update: weights that it makes whole and has no input of.
  struct Gathered {
    int32_t op = 0;      // one of `gathers`
    int32_t output = 0;  // of the graph
  };
  std::vector<Gathered> gathered;
  // What the times are made of: by op, and by collective.
  std::vector<cost::OpWork> works;
  struct Collective {
    int32_t op = 0;
    ir::OpKind kind = ir::OpKind::kAllReduce;
    // Of its whole operand or result on the links: gradients under weights in half precision in the
    // stack's own format (cluster::Attained::gradient_bytes).
    Bytes bytes;
    int64_t gradients = 0;  // elements that are summed in that format; 0: they are in the program's
    // Beside the update's: gathers weights that ranks divide, or reduces weights' gradients.
    bool of_weights = false;
    double times = 1;  // that the stack runs it (Stack::gathered_again)
    int64_t size = 1;  // devices
    // With Stack::copies_shards: the op beside which it is copied, the first one that reads what
    // was gathered, or the one that made what is scattered; -1: none.
    int32_t copied_at = -1;
    std::vector<cluster::GroupShape> shapes;
    int64_t sent() const;  // bytes, by all its devices, as often as it runs
  };
  std::vector<Collective> collectives_of;
  // Computation in parts that are steps of a ring, with the collectives that bring or take them
  // away: attention over parts of a sequence with its keys and values and their gradients; with
  // Overlap::async_tp, products with what they gather, or with the scatter of their sum.
  struct Ring {
    bool attention = false;
    int64_t size = 1;                            // devices
    std::vector<int32_t> computes, collectives;  // ops
    // Of a scattered sum: every device's part of it is added up from what all devices sent, which
    // is read whole, and written.
    Bytes summed = Bytes(0);
  };
  std::vector<Ring> rings;
  bool update = false;
  // What an op of a stream waits for the later ops of that stream wait for: the fragment's launches
  // say no more of it. Off: `deps` has all of it.
  bool in_order = false;
};

// Sets the ops' times. What the update issues runs over many tensors at a time, so its ops cost the
// host nothing beside the step's own work, which is the first op's.
void set_times(FragmentCost& cost, const cluster::Cluster& cluster, const Options& options);

// A level of `OpCost::links`: a torus's sides, which have links of their own, lie behind all
// levels.
size_t side_level(const cluster::Cluster& cluster, const cluster::TorusSide& side);
// Sets the streams' queues, which link levels collectives of several of them cross, and what their
// collectives are to the computation beside them.
void find_queues(FragmentCost& cost);

// Costs of fragments on a cluster, of the slowest device of the pipeline rank that calls them.
// `coordinates`: [rank of the program] its place on the mesh's axis "pp"; empty: its number.
class FragmentCoster {
 public:
  FragmentCoster(const pipeline::Program& program, const cluster::Cluster& cluster,
                 const Options& options, Labels& labels, std::vector<int32_t> coordinates = {});
  FragmentCost cost(const pipeline::Fragment& fragment, int32_t rank);
  // Whether the fragment costs the same on both ranks: its groups lie on nodes alike.
  bool lie_alike(const pipeline::Fragment& fragment, int32_t a, int32_t b);
  const std::vector<CrossGroup>& cross_groups() const { return cross_groups_; }
  RankId representative(int32_t pipeline_rank) const;
  // From a pipeline rank's first device to those of its others that `axes` do not lead to, of those
  // that lie alike in their nodes one.
  std::vector<RankId> replicas_beside(const Names& axes) const;

 private:
  struct Group {
    int64_t size = 1;                         // as figures count it
    std::vector<cluster::GroupShape> shapes;  // of all replicas' groups
    std::vector<int32_t> ranks;               // pipeline ranks
  };
  // Found once: a model has the same groups in every block.
  const Group& group_of(const ir::DeviceGroup& group, int32_t rank);
  const Group& group_along(const Names& axes, int32_t rank);
  const Group& group_holding(const ir::Holders& holders);
  void add_collective(const pipeline::Fragment& fragment, const ir::Op& op, int32_t rank,
                      FragmentCost& cost, OpCost& made);
  bool is_tensor(const OpCost& collective) const;  // of a group that divides layers
  bool holds_up(const OpCost& op, const FragmentCost& cost) const;
  void add_launch_deps(const pipeline::Fragment& fragment, FragmentCost& cost) const;
  void add_data_deps(const pipeline::Fragment& fragment, FragmentCost& cost) const;
  std::vector<cost::CastShare> casts_of(const pipeline::Fragment& fragment) const;
  double runs_of_a_stage() const;
  cost::OpWork work_of(const pipeline::Fragment& fragment, const ir::Op& op) const;
  void find_state_uses(const pipeline::Fragment& fragment, FragmentCost& cost) const;
  void find_rings(const pipeline::Fragment& fragment, FragmentCost& cost) const;
  void hold_rings(FragmentCost& cost) const;
  static void find_copies(const pipeline::Fragment& fragment, FragmentCost& cost);
  void find_product_rings(const pipeline::Fragment& fragment, FragmentCost& cost) const;

  const pipeline::Program& program_;
  const cluster::Cluster& cluster_;
  const Options& options_;
  Labels& labels_;
  std::vector<int32_t> coordinates_;
  bool half_weights_ = false, bf16_weights_ = false;
  double runs_ = 1;  // of a stage's pass on a rank, in a step
  std::vector<CrossGroup> cross_groups_;
  std::vector<int32_t> cross_labels_;
  std::map<std::pair<int32_t, Names>, Group> groups_;  // by pipeline rank, -1: all, and the axes
  std::map<std::string, Group> holders_;               // by their label
};

}  // namespace mw::simulate
