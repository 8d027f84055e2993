// A program that is simulated again and again at other speeds, as a fit does.
#pragma once

#include <memory>

#include "simulate/simulate.h"

namespace mw::simulate {

class Prepared {
 public:
  // Throws Error as simulate() does. No trace, no figures.
  Prepared(pipeline::Program program, const cluster::Cluster& cluster, Options options = {});
  ~Prepared();
  Prepared(Prepared&&) noexcept;
  Prepared& operator=(Prepared&&) noexcept;

  // simulate(program, cluster, options).step. REQUIRES: the link levels join as many devices as
  // those of the cluster that it was made with.
  Seconds step(const cluster::Cluster& cluster);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace mw::simulate
