#include <map>

#include <fmt/ranges.h>

#include "base/text.h"
#include "pipeline/fragment_bytes.h"
#include "pipeline/fragment_sharding.h"
#include "pipeline/groups.h"
#include "pipeline/streams.h"
#include "pipeline/verify.h"

namespace mw::pipeline {

// Groups with the same devices share what they communicate by: the holders of one state and of
// another, and all pipeline ranks.
static std::string devices_text(const Program& program, const ir::DeviceGroup& group) {
  std::vector<std::string> axes;
  for (const Name axis : named_axes(group))
    if (program.mesh.axis_size(axis) > 1) axes.emplace_back(axis);
  const bool all = axes == std::vector<std::string>{"pp"};
  if (std::holds_alternative<ir::AxisGroup>(group) && !all) return join(axes, ",");
  const std::string ranks =
      fmt::format("pipeline ranks {}", fmt::join(group_ranks(program, group, 0), ", "));
  return all || axes.empty() ? ranks : ranks + " and " + join(axes, ",");
}

// All members of a group must come to its operations in the same order, whatever the speed of their
// streams.
static std::vector<std::string> order_findings(const Program& program, const Fragment& fragment,
                                               const FragmentInfo& info) {
  Diagnostics out;
  const StreamOrder order(fragment);
  std::map<std::string, int32_t> last;  // [devices] their last operation so far
  for (const CollectiveInfo& collective : info.collectives) {
    if (group_size(program, *collective.group) == 1) continue;
    const std::string group = group_label(*collective.group);
    const auto [before, is_first] =
        last.try_emplace(devices_text(program, *collective.group), collective.op);
    if (!is_first && !order.before(before->second, collective.op)) {
      out.add(
          "op {} ({}) may start before op {} has ended, both with the devices of {}: their order "
          "must be the same on all",
          collective.op, ir::op_name(collective.kind), before->second, group);
    }
    before->second = collective.op;
  }
  return out.findings();
}

void check_fragments(const Checked& checked, Diagnostics& out) {
  for (size_t f = 0; f < checked.program.fragments.size(); ++f) {
    const Fragment& fragment = checked.program.fragments[f];
    const auto add = [&](const std::vector<std::string>& findings) {
      for (const std::string& finding : findings)
        out.add("fragment '{}': {}", fragment.name, finding);
    };
    add(fragment_sharding_findings(fragment, checked.program.mesh));
    add(fragment_memory_findings(fragment, checked.info[f]));
    add(checked.accumulation[f].findings);
    add(order_findings(checked.program, fragment, checked.info[f]));
  }
}

}  // namespace mw::pipeline
