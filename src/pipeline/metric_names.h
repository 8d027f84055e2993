// Names of the states in which a program reports, and of those in which a step with post-validation
// leaves what the next call takes.
#pragma once

namespace mw::pipeline {

// Metrics that every rank has: what the last call of a program reported.
inline constexpr const char* kLossValue = "loss_value";  // mean over the batch's target tokens
inline constexpr const char* kGradNorm = "grad_norm";

// Of a plan with post-validation, what a step leaves for the next call to validate it.
inline constexpr const char* kOwnNorms = "own_norms";  // sums of squares of this pipeline rank
inline constexpr const char* kOwnLoss = "own_loss";    // sum over this pipeline rank's microbatches
inline constexpr const char* kUsedScale = "used_scale";  // that the step was made with
inline constexpr const char* kScale = "scale";           // that it should have been made with
inline constexpr const char* kAmended =
    "amended";  // 1: some rank's step is to be made again, else 0

// Data that the caller fills once a step.
inline constexpr const char* kLearningRate = "lr";
inline constexpr const char* kStepNumber = "step";  // from 1
inline constexpr const char* kLossScale = "loss_scale";

}  // namespace mw::pipeline
