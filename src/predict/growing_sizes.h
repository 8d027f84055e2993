// GrowingSizes: a program for one number of sequences in a microbatch shows what it is for others.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pipeline/program.h"

namespace mw::predict {

// Which sizes of the values of a program's fragments grow with the sequences of a microbatch; all
// of them as the sequences do.
class GrowingSizes {
 public:
  // Of a program for so many sequences: what is a multiple of them. REQUIRES: no other size is.
  static GrowingSizes marked(const pipeline::Program& program, int64_t sequences);
  // Of a program for `few` sequences, beside one for `many` that has the same ops with the same
  // shardings and differs in nothing but sizes. Then so has every number between them: each choice
  // of the partitioner is the least of sums of bytes that are lines in the sequences, and the least
  // at both ends of a line is the least between. Empty: they differ.
  static std::optional<GrowingSizes> between(const pipeline::Program& fewer, int64_t few,
                                             const pipeline::Program& more, int64_t many);

  // Whether all sizes are whole numbers for so many sequences.
  bool takes(int64_t sequences) const { return unit_ * sequences % from_ == 0; }
  // Gives value v of the program's fragment f the types that it has with so many sequences.
  // REQUIRES: takes(sequences), `fragment` is a copy of it.
  void resize(size_t f, size_t v, int64_t sequences, pipeline::Fragment& fragment) const;

 private:
  // Bits of dimensions, of the local type and of the global one.
  struct Dims {
    uint32_t local = 0, global = 0;
  };
  explicit GrowingSizes(int64_t from) : from_(from) {}
  void add(const ir::TensorType& type, uint32_t grows);

  int64_t from_;                           // sequences of the program
  int64_t unit_ = 0;                       // greatest common divisor of the sizes that grow
  std::vector<std::vector<Dims>> values_;  // [fragment][value]
};

}  // namespace mw::predict
