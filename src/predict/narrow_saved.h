// What a stack saves for the backward pass in eight bits: values that linear layers' products read.
// Private to room predict.
#pragma once

#include <vector>

#include "cost/op_time.h"
#include "pipeline/program.h"

namespace mw::predict {

class NarrowSaved {
 public:
  // Of a program whose values are of `dtype`. REQUIRES: narrow is not off; the program outlives
  // this.
  NarrowSaved(const pipeline::Program& program, DType dtype, cost::Fp8 narrow);
  // Gives such buffers the bytes that they then have, as elements of a byte.
  void convert(pipeline::RankProgram& rank) const;

 private:
  // Who reads a value of a backward fragment: products of linear layers, and others.
  struct Readers {
    bool narrow = false, wide = false;
  };
  static std::vector<Readers> readers(const pipeline::Fragment& fragment);   // [input port]
  std::vector<Readers> readers_of(const pipeline::RankProgram& rank) const;  // [buffer]
  void make_narrow(pipeline::Layout& layout, bool wide) const;

  const pipeline::Program& program_;
  DType dtype_;
  cost::Fp8 narrow_;
  std::vector<std::vector<Readers>> readers_;  // [fragment][input port]
};

}  // namespace mw::predict
