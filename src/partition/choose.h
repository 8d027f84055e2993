// The choice of an op's layout from its problem alone: what the problem leaves out cannot change
// it, so that a problem that comes again has the same answer.
#pragma once

#include "ops/op_def.h"
#include "partition/assignment.h"
#include "partition/memo.h"

namespace mw::partition {

// The cheapest assignment, looked for once: the memo holds it. REQUIRES: the rule is that of the
// problem's kind, attributes and types.
const Assignment& choose(const Memo::Problem& problem, const ops::ShardingRule& rule, Memo& memo);

}  // namespace mw::partition
