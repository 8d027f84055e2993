// Collectives of the threads backend against a reference that computes every element from what all
// members put in.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "comm/run_ranks.h"

namespace mw::comm {
namespace {

std::vector<RankId> all_ranks(int n) {
  std::vector<RankId> ranks;
  for (int r = 0; r < n; ++r) ranks.push_back(RankId(r));
  return ranks;
}

// Draws that depend on the seed alone, so that all ranks of a case draw the same.
struct Draw {
  uint64_t state;
  uint64_t next(uint64_t below) { return mix_bits(state++) % below; }
};

template <typename T>
T value(uint64_t seed, int64_t i) {
  const uint64_t bits = mix_bits(seed ^ mix_bits(static_cast<uint64_t>(i)));
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(std::ldexp(static_cast<double>(static_cast<int32_t>(bits)),
                                     static_cast<int>(bits >> 58) - 60));
  } else {
    return static_cast<T>(bits);
  }
}

template <typename T>
T combine(ReduceOp op, T a, T b) {
  if (op == ReduceOp::kMax) return std::max(a, b);
  if (op == ReduceOp::kMin) return std::min(a, b);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) +
                          static_cast<std::make_unsigned_t<T>>(b));
  } else {
    return a + b;
  }
}

// One random operation, and what each member must have afterwards.
template <typename T>
struct Case {
  CollectiveKind kind;
  ReduceOp op;
  DType dtype;
  int n;
  int root;
  bool in_place;
  std::vector<int64_t> parts;  // elements of a part of each buffer
  std::vector<PermutePair> pairs;
  uint64_t seed;

  bool split_in() const {
    return kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllToAll;
  }
  bool split_out() const {
    return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kAllToAll;
  }
  int64_t in_count(size_t b) const { return parts[b] * (split_in() ? n : 1); }
  int64_t out_count(size_t b) const { return parts[b] * (split_out() ? n : 1); }
  T input(int member, size_t b, int64_t i) const { return value<T>(seed + 1000 * b + member, i); }

  T expected(int member, size_t b, int64_t i) const {
    const int64_t part = parts[b];
    switch (kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kReduceScatter: {
        const int64_t at = kind == CollectiveKind::kAllReduce ? i : member * part + i;
        T x = input(0, b, at);
        for (int r = 1; r < n; ++r) x = combine(op, x, input(r, b, at));
        return x;
      }
      case CollectiveKind::kAllGather: return input(static_cast<int>(i / part), b, i % part);
      case CollectiveKind::kAllToAll:
        return input(static_cast<int>(i / part), b, member * part + i % part);
      case CollectiveKind::kBroadcast: return input(root, b, i);
      case CollectiveKind::kPermute:
        for (auto [from, to] : pairs) {
          if (to == member) return input(from, b, i);
        }
        return T(0);
      case CollectiveKind::kBarrier: break;
    }
    return T(0);
  }

  // Runs it as one member; throws on a difference.
  void run(Communicator& group) const {
    const int me = group.rank();
    std::vector<std::vector<T>> in_memory, out_memory;
    std::vector<Buffer> in, out;
    for (size_t b = 0; b < parts.size(); ++b) {
      std::vector<T>& x = in_memory.emplace_back(in_count(b));
      std::vector<T>& y = out_memory.emplace_back(out_count(b), T(77));
      for (int64_t i = 0; i < in_count(b); ++i) x[i] = input(me, b, i);
      in.push_back({x.data(), in_count(b)});
      out.push_back({y.data(), out_count(b)});
      if (!in_place) continue;
      if (kind == CollectiveKind::kReduceScatter) out[b].data = x.data() + me * parts[b];
      if (kind == CollectiveKind::kAllGather) {
        std::copy(x.begin(), x.end(), y.begin() + me * parts[b]);
        in[b].data = y.data() + me * parts[b];
      }
    }
    if (kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kBroadcast) out = in;
    const Bytes before = group.bytes_sent();
    if (kind == CollectiveKind::kAllReduce && in_place) {
      group.start_all_reduce(in, dtype, op);
      group.finish();
    } else {
      group.run({.kind = kind,
                 .dtype = dtype,
                 .op = op,
                 .root = root,
                 .pairs = pairs,
                 .in = in,
                 .out = out});
    }
    for (size_t b = 0; b < parts.size(); ++b) {
      for (int64_t i = 0; i < out[b].count; ++i) {
        const T want = expected(me, b, i), got = static_cast<const T*>(out[b].data)[i];
        if (std::memcmp(&want, &got, sizeof(T)) == 0) continue;
        throw std::runtime_error(
            fmt::format("{} in_place={} buffer {} element {}: {} instead of {}",
                        describe({.kind = kind,
                                  .dtype = dtype,
                                  .op = op,
                                  .root = root,
                                  .pairs = pairs,
                                  .in = in,
                                  .out = out}),
                        in_place, b, i, got, want));
      }
    }
    if (kind == CollectiveKind::kPermute) return;
    const int64_t full = std::max(std::accumulate(in.begin(), in.end(), int64_t{0}, add_count),
                                  std::accumulate(out.begin(), out.end(), int64_t{0}, add_count));
    const Bytes want = collective_bytes_sent(kind, Bytes(full * dtype_size(dtype)), n);
    if (group.bytes_sent() - before != want) throw std::runtime_error("bytes_sent");
  }
  static int64_t add_count(int64_t sum, const Buffer& buffer) { return sum + buffer.count; }
};

template <typename T>
void run_case(Communicator& group, DType dtype, Draw draw) {
  Case<T> c;
  c.kind = static_cast<CollectiveKind>(draw.next(7));
  c.op = static_cast<ReduceOp>(draw.next(3));
  c.dtype = dtype;
  c.n = group.size();
  c.root = static_cast<int>(draw.next(c.n));
  c.in_place = draw.next(2) == 0;
  for (uint64_t b = c.kind == CollectiveKind::kBarrier ? 0 : 1 + draw.next(4); b > 0; --b) {
    c.parts.push_back(static_cast<int64_t>(draw.next(draw.next(4) == 0 ? 400 : 20)));
  }
  if (c.kind == CollectiveKind::kPermute) {  // a shift, with some pairs left out
    const int shift = static_cast<int>(draw.next(c.n));
    for (int r = 0; r < c.n; ++r) {
      if (draw.next(4)) c.pairs.emplace_back(r, (r + shift) % c.n);
    }
  }
  c.seed = draw.next(1u << 30);
  c.run(group);
}

void run_any(Communicator& group, uint64_t seed) {
  Draw draw{seed};
  switch (draw.next(4)) {
    case 0: return run_case<float>(group, DType::kF32, draw);
    case 1: return run_case<double>(group, DType::kF64, draw);
    case 2: return run_case<int32_t>(group, DType::kI32, draw);
    case 3: return run_case<int64_t>(group, DType::kI64, draw);
  }
}

TEST_CASE(
    "every collective has the reference's bits, for random groups, lists, dtypes and delays") {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    const int n = std::vector<int>{1, 2, 3, 4, 5, 8}[seed % 6];
    ThreadWorldOptions options{.sends = static_cast<Sends>(seed % 3)};
    if (seed % 3 == 0) options.delay_seed = seed;
    ThreadWorld world(n, options);
    CHECK_NOTHROW(run_ranks(world, [&](Endpoint& endpoint) {
      // The world backwards, and the halves: even and odd ranks.
      std::vector<RankId> backwards = all_ranks(n), half;
      std::reverse(backwards.begin(), backwards.end());
      for (int r = endpoint.rank().value % 2; r < n; r += 2) half.push_back(RankId(r));
      const auto whole_group = endpoint.group(backwards, "whole");
      const auto half_group = endpoint.group(half, "half");
      for (uint64_t step = 0; step < 40; ++step) {
        run_any(step % 3 ? *whole_group : *half_group, 1000003 * seed + 101 * step);
      }
    }));
  }
}

TEST_CASE("a permute counts bytes for its sources only, for those too that keep what they have") {
  ThreadWorld world(3);
  std::vector<int64_t> sent(3);
  run_ranks(world, [&](Endpoint& endpoint) {
    const auto group = endpoint.group(all_ranks(3), "ring");
    float in[4] = {1, 2, 3, 4}, out[4];
    const Buffer from[] = {{in, 4}}, to[] = {{out, 4}};
    const PermutePair pairs[] = {{0, 1}, {2, 2}};
    group->permute(from, to, DType::kF32, pairs);
    sent[endpoint.rank().index()] = group->bytes_sent().value;
  });
  CHECK(sent == std::vector<int64_t>{16, 0, 16});
}

TEST_CASE("a started all-reduce waits for nobody, and goes on while its member works") {
  ThreadWorld world(3);
  std::atomic<int> started = 0;
  std::atomic<bool> seen = false;
  run_ranks(world, [&](Endpoint& endpoint) {
    const auto group = endpoint.group(all_ranks(3), "tp");
    const int rank = static_cast<int>(endpoint.rank().value);
    for (int round = 0; round < 200; ++round) {
      float x[3] = {static_cast<float>(rank), 1, static_cast<float>(round)};
      const Buffer buffers[] = {{x, 2}, {x + 2, 1}};
      // One after another, in another order each round.
      while (started < 3 * round + (rank + round) % 3) std::this_thread::yield();
      group->start_all_reduce(buffers, DType::kF32, ReduceOp::kSum);
      ++started;
      group->finish();
      if (x[0] != 3 || x[1] != 3 || x[2] != 3.0f * round) throw std::runtime_error("sum");
      if (group->operations() != round + 1) throw std::runtime_error("operations");
    }
    seen = true;
  });
  CHECK(seen);
}

TEST_CASE("who waits for a started all-reduce is ended when another rank fails") {
  ThreadWorld world(2);
  std::string text;
  try {
    run_ranks(world, [&](Endpoint& endpoint) {
      const auto group = endpoint.group(all_ranks(2), "tp");
      float x = 1;
      const Buffer buffers[] = {{&x, 1}};
      if (endpoint.rank() == RankId(1)) {
        while (world.waiting().empty()) std::this_thread::yield();
        throw RunError("out of luck");
      }
      group->start_all_reduce(buffers, DType::kF32, ReduceOp::kSum);
      group->finish();
    });
  } catch (const std::exception& error) {
    text = error.what();
  }
  CHECK(text.find("out of luck") != std::string::npos);
}

TEST_CASE("groups come and go, and one name may serve disjoint groups") {
  ThreadWorld world(4);
  run_ranks(world, [&](Endpoint& endpoint) {
    const int pair = endpoint.rank().value / 2;
    for (int round = 0; round < 50; ++round) {
      const auto group = endpoint.group({RankId(2 * pair), RankId(2 * pair + 1)}, "pair");
      int32_t x = endpoint.rank().value;
      const Buffer buffers[] = {{&x, 1}};
      group->all_reduce(buffers, DType::kI32, ReduceOp::kSum);
      if (x != 4 * pair + 1) throw std::runtime_error(fmt::format("sum {} in pair {}", x, pair));
      if (group->operations() != 1) throw std::runtime_error("operations");
    }
  });
}

template <typename Fn>
std::string run_error(ThreadWorld& world, Fn fn) {
  try {
    run_ranks(world, fn);
  } catch (const RunError& e) {
    return e.what();
  }
  return "nothing was thrown";
}

TEST_CASE("members that call different operations learn of each other") {
  const auto mismatch = [](auto third) {
    ThreadWorld world(3);
    std::string text = run_error(world, [&](Endpoint& endpoint) {
      const auto group = endpoint.group(all_ranks(3), "dp");
      std::vector<double> x(12), y(12);
      const Buffer in[] = {{x.data(), 6}};
      group->barrier();
      if (endpoint.rank() == RankId(2)) {
        third(*group, x.data(), y.data());
      } else {
        group->all_reduce(in, DType::kF32, ReduceOp::kSum);
      }
    });
    return text.substr(text.find("group"));
  };
  const std::string head =
      "group 'dp', operation 1: rank 0 calls all_reduce sum f32 [6], rank 2 calls ";
  const std::string tail = "; all members must call the same operation";
  CHECK(mismatch([](Communicator& group, void* x, void* y) {
          const Buffer in[] = {{x, 2}}, out[] = {{y, 6}};
          group.all_gather(in, out, DType::kF32);
        }) == head + "all_gather f32 [2]" + tail);
  CHECK(mismatch([](Communicator& group, void* x, void*) {
          const Buffer in[] = {{x, 5}};
          group.all_reduce(in, DType::kF32, ReduceOp::kSum);
        }) == head + "all_reduce sum f32 [5]" + tail);
  CHECK(mismatch([](Communicator& group, void* x, void*) {
          const Buffer in[] = {{x, 6}};
          group.all_reduce(in, DType::kF64, ReduceOp::kSum);
        }) == head + "all_reduce sum f64 [6]" + tail);
  CHECK(mismatch([](Communicator& group, void* x, void*) {
          const Buffer in[] = {{x, 6}};
          group.all_reduce(in, DType::kF32, ReduceOp::kMax);
        }) == head + "all_reduce max f32 [6]" + tail);
  CHECK(mismatch([](Communicator& group, void*, void*) { group.barrier(); }) ==
        head + "barrier" + tail);
}

TEST_CASE("whatever two operations differ in, the members learn of it") {
  using Call = void (*)(Communicator&, double*, double*);
  struct Row {
    Call first, second;
    const char *first_text, *second_text;
  };
  const Call reduce = [](Communicator& group, double* x, double*) {
    const Buffer in[] = {{x, 6}};
    group.all_reduce(in, DType::kF64, ReduceOp::kSum);
  };
  const Call start = [](Communicator& group, double* x, double*) {
    const Buffer in[] = {{x, 6}};
    group.start_all_reduce(in, DType::kF64, ReduceOp::kSum);
    group.finish();
  };
  const Call exchange = [](Communicator& group, double* x, double* y) {
    const Buffer in[] = {{x, 6}}, out[] = {{y, 6}};
    group.all_to_all(in, out, DType::kF64);
  };
  const Call scatter = [](Communicator& group, double* x, double* y) {
    const Buffer in[] = {{x, 6}}, out[] = {{y, 3}};
    group.reduce_scatter(in, out, DType::kF64, ReduceOp::kSum);
  };
  const Call from_0 = [](Communicator& group, double* x, double*) {
    const Buffer in[] = {{x, 6}};
    group.broadcast(in, DType::kF64, 0);
  };
  const Call from_1 = [](Communicator& group, double* x, double*) {
    const Buffer in[] = {{x, 6}};
    group.broadcast(in, DType::kF64, 1);
  };
  const Call forth = [](Communicator& group, double* x, double* y) {
    const Buffer in[] = {{x, 6}}, out[] = {{y, 6}};
    const PermutePair pairs[] = {{0, 1}};
    group.permute(in, out, DType::kF64, pairs);
  };
  const Call back = [](Communicator& group, double* x, double* y) {
    const Buffer in[] = {{x, 6}}, out[] = {{y, 6}};
    const PermutePair pairs[] = {{1, 0}};
    group.permute(in, out, DType::kF64, pairs);
  };
  const Row rows[] = {
      {reduce, scatter, "all_reduce sum f64 [6]", "reduce_scatter sum f64 [6]"},
      {exchange, from_0, "all_to_all f64 [6]", "broadcast f64 [6] from 0"},
      {from_0, from_1, "broadcast f64 [6] from 0", "broadcast f64 [6] from 1"},
      {forth, back, "permute f64 [6] 0>1", "permute f64 [6] 1>0"},
      {reduce, start, "all_reduce sum f64 [6]", "all_reduce sum f64 [6], to be finished later"},
      {start, reduce, "all_reduce sum f64 [6], to be finished later", "all_reduce sum f64 [6]"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.second_text);
    ThreadWorld world(2);
    const std::string text = run_error(world, [&](Endpoint& endpoint) {
      const auto group = endpoint.group(all_ranks(2), "dp");
      std::vector<double> x(6), y(6);
      (endpoint.rank() == RankId(0) ? row.first : row.second)(*group, x.data(), y.data());
    });
    CHECK(text.substr(text.find("group")) ==
          fmt::format("group 'dp', operation 0: rank 0 calls {}, rank 1 calls {}; all members must "
                      "call the same operation",
                      row.first_text, row.second_text));
  }
}

TEST_CASE("a group whose members disagree about it is an error that names both") {
  ThreadWorld world(3);
  const std::string text = run_error(world, [](Endpoint& endpoint) {
    if (endpoint.rank() == RankId(0)) endpoint.group({RankId(0), RankId(1)}, "tp");
    if (endpoint.rank() == RankId(1)) endpoint.group({RankId(1), RankId(2)}, "tp");
  });
  const std::string a = "rank 0 creates it of ranks 0, 1, rank 1 of ranks 1, 2";
  const std::string b = "rank 1 creates it of ranks 1, 2, rank 0 of ranks 0, 1";
  const std::string rest = text.substr(text.find("group"));
  const std::string tail = "; give one of them another name";
  CHECK((rest == "group 'tp': " + a + tail || rest == "group 'tp': " + b + tail));
}

TEST_CASE("of a group that others disagree about, a rank that has created it is named") {
  ThreadWorld world(4);
  std::thread creates([&] {
    CHECK_THROWS_AS(world.endpoint(RankId(2)).group({RankId(0), RankId(1), RankId(2)}, "tp"),
                    RunError);
  });
  while (world.waiting().empty()) std::this_thread::yield();
  CHECK_THROWS_WITH_AS(world.endpoint(RankId(3)).group({RankId(0), RankId(3)}, "tp"),
                       "group 'tp': rank 2 creates it of ranks 0, 1, 2, rank 3 of ranks 0, 3; give "
                       "one of them another name",
                       RunError);
  creates.join();
}

// Run with --no-skip; the ratio is what docs and the room's README state.
TEST_CASE("all_reduce of 64 MB on 2 ranks against one thread's memcpy of 64 MB" * doctest::skip()) {
  constexpr int64_t kCount = 16'000'000;
  std::vector<float> a(kCount, 1.f), b(kCount, 2.f);
  const auto seconds_since = [](auto start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::vector<double> copies, reduces;
  ThreadWorld world(2);
  run_ranks(world, [&](Endpoint& endpoint) {
    const bool first = endpoint.rank() == RankId(0);
    const auto group = endpoint.group(all_ranks(2), "pair");
    const Buffer buffers[] = {{(first ? a : b).data(), kCount}};
    for (int round = 0; round < 25; ++round) {
      group->barrier();
      if (first) {
        const auto start = std::chrono::steady_clock::now();
        std::memcpy(a.data(), b.data(), kCount * sizeof(float));
        copies.push_back(seconds_since(start));
      }
      group->barrier();
      const auto start = std::chrono::steady_clock::now();
      group->all_reduce(buffers, DType::kF32, ReduceOp::kSum);
      if (first) reduces.push_back(seconds_since(start));
    }
  });
  std::sort(copies.begin(), copies.end());
  std::sort(reduces.begin(), reduces.end());
  const double bytes = kCount * sizeof(float) / 1e9;
  MESSAGE("memcpy " << bytes / copies[12] << " GB/s, all_reduce " << bytes / reduces[12]
                    << " GB/s, ratio of medians " << copies[12] / reduces[12] << ", of the best "
                    << copies[0] / reduces[0]);
}

}  // namespace
}  // namespace mw::comm
