#include "cluster/slice.h"

#include <algorithm>

#include "base/text.h"

namespace mw::cluster {
namespace {

using Sides = std::vector<int64_t>;

// The longest side is to be short, then the next one.
bool more_cubic(Sides a, Sides b) {
  std::sort(a.rbegin(), a.rend());
  std::sort(b.rbegin(), b.rend());
  return a < b;
}

// Every box of `left` devices whose first sides are those of `box`, in order of sides.
void try_boxes(const Sides& torus, int64_t left, Sides& box, Sides& best) {
  if (box.size() == torus.size()) {
    if (left == 1 && (best.empty() || more_cubic(box, best))) best = box;
    return;
  }
  const int64_t side = torus[box.size()];
  for (int64_t part = 1; part <= std::min(side, left); ++part) {
    if (side % part != 0 || left % part != 0) continue;
    box.push_back(part);
    try_boxes(torus, left / part, box, best);
    box.pop_back();
  }
}

// Empty: none, or all of it.
Sides box_of(const Cluster& cluster, int64_t devices) {
  if (cluster.links.empty() || cluster.links[0].kind != LinkKind::kTorus ||
      devices >= cluster.links[0].devices)
    return {};
  Sides box, best;
  try_boxes(cluster.links[0].torus, devices, box, best);
  return best;
}

}  // namespace

Cluster slice_of(Cluster cluster, int64_t devices) {
  const Sides box = box_of(cluster, devices);
  if (box.empty()) return cluster;
  cluster.links[0].torus = box;
  cluster.links[0].devices = devices;
  return cluster;
}

std::string slice_name(const Cluster& cluster, int64_t devices) {
  std::vector<std::string> sides;
  for (const int64_t side : box_of(cluster, devices)) sides.push_back(std::to_string(side));
  return sides.empty() ? cluster.name : cluster.name + ", " + join(sides, "x") + " of it";
}

}  // namespace mw::cluster
