// The printed digits of the tables that define parameters, model and hardware FLOPs.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "models/model.h"

namespace mw::models {
namespace {

constexpr double kA100 = 312e12;

ModelConfig gpt(int64_t layers, int64_t hidden, int64_t heads, int64_t seq, int64_t vocab) {
  ModelConfig config;
  config.vocab_size = vocab;
  config.max_positions = seq;
  config.hidden_size = hidden;
  config.layers = layers;
  config.heads = config.kv_heads = heads;
  config.head_dim = hidden / heads;
  config.ffn_size = 4 * hidden;
  return config;
}

bool prints(double value, double printed, int digits) {
  const double unit = std::pow(10, -digits);
  return std::abs(value - printed) <= unit / 2 * (1 + 1e-9);
}

}  // namespace

TEST_CASE("PTD-P, table 1: parameters, FLOPs of a step, share of the peak, sum of all devices") {
  // Narayanan et al. 2021. Sequences of 2,048, a vocabulary of 51,200, whole layers recomputed.
  // Seconds of a step: F / (GPUs * TFLOP/s), from formula 3 of the paper.
  struct Row {
    double billions;
    int64_t heads, hidden, layers, gpus, batch;
    double tflops, percent, petaflops, seconds;
  };
  const std::vector<Row> rows = {{1.7, 24, 2304, 24, 32, 512, 137, 44, 4.4, 3.53},
                                 {3.6, 32, 3072, 30, 64, 512, 138, 44, 8.8, 3.70},
                                 {7.5, 32, 4096, 36, 128, 512, 142, 46, 18.2, 3.70},
                                 {18.4, 48, 6144, 40, 256, 1024, 135, 43, 34.6, 9.40},
                                 {39.1, 64, 8192, 48, 512, 1536, 138, 44, 70.8, 14.45},
                                 {76.1, 80, 10240, 60, 1024, 1792, 140, 45, 143.8, 16.06},
                                 {145.6, 96, 12288, 80, 1536, 2304, 148, 47, 227.1, 24.82},
                                 {310.1, 128, 16384, 96, 1920, 2160, 155, 50, 297.4, 37.61},
                                 {529.6, 128, 20480, 105, 2520, 2520, 163, 52, 410.2, 54.08},
                                 {1008.0, 160, 25600, 128, 3072, 3072, 163, 52, 502.0, 102.63}};
  for (const Row& row : rows) {
    CAPTURE(row.billions);
    const ModelConfig config = gpt(row.layers, row.hidden, row.heads, 2048, 51200);
    const double parameters = static_cast<double>(parameter_count(build_model(config, {1, 8})));
    CHECK(prints(parameters / 1e9, row.billions, 1));
    const double flops = model_flops_per_token(config, 2048).full_recompute.value * 2048 *
                         static_cast<double>(row.batch);
    const double gpus = static_cast<double>(row.gpus);
    CHECK(prints(flops / (gpus * row.tflops * 1e12), row.seconds, 2));
    // The rates that fit both printed columns: TFLOP/s to a unit and the sum to a tenth.
    const double least = std::max(row.tflops - 0.5, (row.petaflops - 0.05) / gpus * 1e3);
    const double most = std::min(row.tflops + 0.5, (row.petaflops + 0.05) / gpus * 1e3);
    CHECK(least <= most);
    CHECK(100 * least * 1e12 / kA100 <= row.percent + 0.5);
    CHECK(100 * most * 1e12 / kA100 >= row.percent - 0.5);
  }
}

TEST_CASE("SP paper, table 5: MFU and HFU with selective recomputation") {
  // Korthikanti et al. 2022; seconds to two digits, so the shares that those allow.
  struct Row {
    int64_t layers, hidden, heads, batch, gpus;
    double seconds, mfu, hfu;
  };
  const std::vector<Row> rows = {{48, 6144, 64, 4, 8, 1.10, 41.5, 43.7},
                                 {96, 12288, 96, 64, 64, 13.75, 51.4, 52.8},
                                 {105, 20480, 128, 280, 280, 37.83, 56.0, 57.0},
                                 {128, 25600, 160, 512, 512, 71.49, 56.3, 57.0}};
  for (const Row& row : rows) {
    CAPTURE(row.layers);
    const ModelFlops flops =
        model_flops_per_token(gpt(row.layers, row.hidden, row.heads, 2048, 51200), 2048);
    const double step =
        2048 * static_cast<double>(row.batch) / static_cast<double>(row.gpus) / kA100 * 100;
    const auto agrees = [&](Flops of_token, double printed) {
      return of_token.value * step / (row.seconds + 0.005) <= printed + 0.05 &&
             of_token.value * step / (row.seconds - 0.005) >= printed - 0.05;
    };
    CHECK(agrees(flops.training, row.mfu));
    CHECK(agrees(flops.selective_recompute, row.hfu));
  }
}

TEST_CASE("Megatron Core's table: parameters, share of the peak, sum of all devices") {
  // NVIDIA/Megatron-LM, README of core r0.8.0, images/model_table.png: sequences of 4,096, a
  // vocabulary of 131,072, rotary positions, an output layer of its own.
  struct Row {
    double billions;
    int64_t heads, hidden, layers, gpus;
    double tflops, percent, petaflops;
  };
  const std::vector<Row> rows = {{1.7, 16, 2048, 24, 48, 408.8, 41, 19.6},
                                 {7.1, 32, 4096, 30, 96, 465.9, 47, 44.7},
                                 {16, 48, 6144, 32, 192, 489.1, 49, 93.9},
                                 {32, 56, 7168, 48, 384, 459.6, 46, 176.5},
                                 {70, 64, 8192, 84, 768, 419.7, 42, 322.3},
                                 {119, 80, 10240, 92, 1536, 420.5, 43, 645.9},
                                 {177, 96, 12288, 96, 2304, 432.8, 44, 997.2},
                                 {314, 128, 16384, 96, 3072, 474.4, 48, 1457.4},
                                 {462, 144, 18432, 112, 6144, 459.9, 47, 2825.6}};
  for (const Row& row : rows) {
    CAPTURE(row.billions);
    const double gpus = static_cast<double>(row.gpus);
    CHECK(prints(row.tflops * gpus / 1e3, row.petaflops, 1));
    CHECK(prints(100 * row.tflops * 1e12 / 989e12, row.percent, 0));
    ModelConfig config = gpt(row.layers, row.hidden, row.heads, 4096, 131072);
    config.tie_word_embeddings = false;
    const double parameters = static_cast<double>(parameter_count(build_model(config, {1, 8})) -
                                                  config.max_positions * config.hidden_size);
    CAPTURE(parameters);
    // The sizes are names: 461.4 billion are called 462.
    CHECK(std::abs(parameters / 1e9 - row.billions) < (row.billions < 10 ? 0.06 : 0.6));
  }
}

}  // namespace mw::models
