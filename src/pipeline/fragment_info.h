// What the checks of a program need to know of its fragments, found out once for each of them.
// Private to room pipeline.
#pragma once

#include <string>
#include <vector>

#include "pipeline/program.h"

namespace mw::pipeline {

// The first and the last op of a fragment that read or write a port's bytes; -1: none.
struct PortUse {
  int32_t first_read = -1, last_read = -1;
  int32_t first_write = -1, last_write = -1;
  bool touched = false;  // an op has a value there, be it only a view
  bool reads() const { return first_read >= 0; }
  bool writes() const { return first_write >= 0; }
  int32_t last() const { return last_read > last_write ? last_read : last_write; }
  void add_read(int32_t op) {
    if (first_read < 0) first_read = op;
    if (op > last_read) last_read = op;
  }
  void add_write(int32_t op) {
    if (first_write < 0) first_write = op;
    if (op > last_write) last_write = op;
  }
};

struct CollectiveInfo {
  int32_t op = 0;
  ir::OpKind kind = ir::OpKind::kAllReduce;
  const ir::DeviceGroup* group = nullptr;
  std::string signature;  // kind, reduction and whole types: equal on all members
  Bytes whole;            // the whole tensors of the list
};

// Where a value lies: at `offset` of a port's buffer or of the workspace.
struct ValuePlace {
  int32_t port = -1;   // index into FragmentInfo::ports, -1: workspace
  int64_t offset = 0;  // bytes
};

struct FragmentInfo {
  std::vector<Port>
      ports;          // what Command::buffers has: the inputs, then the outputs that are not states
  size_t inputs = 0;  // the first of them are inputs
  std::vector<PortUse> uses;       // [port]
  std::vector<int32_t> update_of;  // [port] index into graph.updates, -1: none
  std::vector<ValuePlace> places;  // [value]
  std::vector<CollectiveInfo> collectives;
  int64_t workspace_end = 0;  // first byte behind all workspace that ops touch
};

// What is wrong with the ports, the plan's arrays or the ids: nothing else may be asked of such a
// fragment.
std::vector<std::string> fragment_structure_findings(const Fragment& fragment);
// REQUIRES: no structure findings.
FragmentInfo make_fragment_info(const Fragment& fragment);

}  // namespace mw::pipeline
