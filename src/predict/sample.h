// A program of a few layers that shows what a stage costs on another mesh. Private to room predict.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model.h"
#include "pipeline/program.h"
#include "pipeline/schedule.h"
#include "predict/growing_sizes.h"
#include "predict/predict.h"
#include "simulate/call_time.h"

namespace mw::predict {

// The request's model with as many blocks as the plan's stages have together, for microbatches of
// so many sequences.
ir::Module sample_model(const Request& request, const compile::Plan& plan, int64_t microbatch);
compile::ModelShape sample_shape(const Request& request, const compile::Plan& plan,
                                 int64_t microbatch);

// A schedule for a program that is read, not run: all forwards, then all backwards of two
// microbatches, of which the first has a whole backward, the second I and W. A rank has one stage;
// `folded`: two, of which the second ones run back from the last rank to the first.
pipeline::Schedule sample_schedule(int64_t ranks, bool folded = false);

// Leaves the fragments and who calls them, and the states.
void strip(pipeline::Program& program);

// The mesh with other sizes of dp and pp.
cluster::Mesh resized(const cluster::Mesh& small, int64_t dp, int64_t pp);

// Program fragment f on such a mesh and with another microbatch: groups are symbolic, only
// sequences and the parts of flat groups have other shapes, and what holds them another place.
// `sizes`: null where the microbatch is as in the program.
void place_on(const cluster::Mesh& mesh, const GrowingSizes* sizes, int64_t microbatch, size_t f,
              pipeline::Fragment& fragment);

// Of every fragment that is called, where the program's ranks stand for those of a pipeline of
// `pp`: the first is the pipeline's, and the last but where it is `folded`; the others stand for
// the slowest between.
std::vector<simulate::CallTime> times_on(const pipeline::Program& program, const Request& request,
                                         int64_t pp, bool folded = false);

}  // namespace mw::predict
