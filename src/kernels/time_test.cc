// Times of the kernels that matter most, on one thread. Skipped unless asked for:
// mw_kernels_test --no-skip --test-case="time*".
#include <ctime>
#include <string>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/norm.h"
#include "kernels/test_arrays.h"

namespace mw::kernels {
namespace {

using namespace testing;

// Processor seconds of the fastest of some calls.
template <typename Work>
double fastest(Work&& work) {
  double best = 1e9;
  for (int i = 0; i < 9; ++i) {
    const std::clock_t start = std::clock();
    work();
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return best;
}

void report(const std::string& what, double seconds, double bytes, double flops) {
  MESSAGE(what, ": ", seconds * 1e3, " ms, ", bytes / seconds * 1e-9, " GB/s, ",
          flops / seconds * 1e-9, " GFLOP/s");
}

void time_attention(int64_t B, int64_t S, int64_t H, int64_t D, double rate) {
  Attention a = {.B = B, .Sq = S, .Sk = S, .H = H, .Hkv = H, .D = D};
  std::vector<int32_t> position;
  std::vector<int64_t> sample;
  for (int64_t i = 0; i < B * S; ++i) position.push_back(static_cast<int32_t>(i % S));
  for (int64_t i = 0; i < B; ++i) sample.push_back(i);
  a.position_q = a.position_k = position.data();
  a.scale = 0.125f;
  a.dropout = {{1, 2, 3}, rate, sample.data(), 0, H, S};
  const int64_t n = B * S * H * D;
  const Floats qkv = normal(3 * n, 1), dout = normal(n, 2);
  Floats out(n), lse(B * H * S), dqkv(3 * n);
  const auto fused = [&](auto* data, int64_t part) {
    return Heads<std::remove_pointer_t<decltype(data)>>{data + part * H * D, 3 * S * H * D,
                                                        3 * H * D, D};
  };
  const Heads<float> out_heads = {out.data(), S * H * D, H * D, D};
  const Heads<const float> out_const = {out.data(), S * H * D, H * D, D};
  const Heads<const float> dout_heads = {dout.data(), S * H * D, H * D, D};
  std::vector<char> scratch(
      std::max(attention_forward_scratch_bytes(a), attention_backward_scratch_bytes(a)));
  const double flops = 2.0 * static_cast<double>(B * H * D * S) * static_cast<double>(S + 1) / 2;
  report("attention forward (causal half)", fastest([&] {
           attention_forward(a, fused(qkv.data(), 0), fused(qkv.data(), 1), fused(qkv.data(), 2),
                             out_heads, lse.data(), scratch.data(), 0, B * H);
         }),
         4.0 * 4 * static_cast<double>(n), 2 * flops);
  report("attention backward (causal half)", fastest([&] {
           attention_backward(a, fused(qkv.data(), 0), fused(qkv.data(), 1), fused(qkv.data(), 2),
                              out_const, lse.data(), dout_heads, fused(dqkv.data(), 0),
                              fused(dqkv.data(), 1), fused(dqkv.data(), 2), scratch.data(), 0,
                              B * H);
         }),
         4.0 * 8 * static_cast<double>(n), 5 * flops);
}

}  // namespace

TEST_CASE("time of attention, B=8 S=256 H=8 D=64" * doctest::skip()) {
  time_attention(8, 256, 8, 64, 0.0);
}
TEST_CASE("time of attention with dropout, B=8 S=256 H=8 D=64" * doctest::skip()) {
  time_attention(8, 256, 8, 64, 0.1);
}
TEST_CASE("time of attention, B=1 S=2048 H=8 D=64" * doctest::skip()) {
  time_attention(1, 2048, 8, 64, 0.0);
}

TEST_CASE("time of gelu and layer_norm, 2048 x 2048" * doctest::skip()) {
  const int64_t R = 2048, D = 2048, n = R * D;
  const double size = 4.0 * static_cast<double>(n);
  const Floats x = normal(n, 1), dy = normal(n, 2), gamma = normal(D, 3), beta = normal(D, 4);
  Floats y(n), mean(R), rstd(R), dgamma(D), dbeta(D);
  for (const Gelu kind : {Gelu::kExact, Gelu::kTanh}) {
    report(kind == Gelu::kExact ? "gelu exact" : "gelu tanh",
           fastest([&] { gelu(kind, x.data(), y.data(), 0, n); }), 2 * size, 0);
    report(kind == Gelu::kExact ? "gelu exact backward" : "gelu tanh backward",
           fastest([&] { gelu_backward(kind, dy.data(), x.data(), y.data(), 0, n); }), 3 * size, 0);
  }
  report("layer_norm", fastest([&] {
           layer_norm(x.data(), gamma.data(), beta.data(), 1e-5f, D, y.data(), mean.data(),
                      rstd.data(), 0, R);
         }),
         2 * size, 0);
  report("layer_norm backward input", fastest([&] {
           layer_norm_backward_input(dy.data(), x.data(), mean.data(), rstd.data(), gamma.data(),
                                     nullptr, D, y.data(), 0, R);
         }),
         3 * size, 0);
  report("layer_norm backward weight", fastest([&] {
           layer_norm_backward_weight(dy.data(), x.data(), mean.data(), rstd.data(), R, D, false,
                                      dgamma.data(), dbeta.data(), 0, D);
         }),
         2 * size, 0);
}

}  // namespace mw::kernels
