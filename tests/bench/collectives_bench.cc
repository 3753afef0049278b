// Times collectives and messages over sockets (Gloo) and through shared memory, on N single-threaded processes of this
// machine. The two alternate, so that other load on the machine affects both. Prints by operation and size the wall
// time of a call and the processor time of a rank's threads for it, in microseconds: medians of rounds. "send" sends a
// message to the other rank of a pair and then receives one of the same size; "swap" does both at once.
//   collectives_bench [--ranks 2] [--rounds 5] [--most 67108864] [--only "send fp32"]
#include <ATen/Parallel.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

#include "tests/bench/forked_ranks.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/comm/make_device.h"
#include "worker/rank/comm/store.h"

namespace titan {
namespace {

struct Plan {
  int ranks = 2;
  int rounds = 5;
  int64_t most = int64_t{64} << 20;
  std::string only;
};

struct Cost {
  double wall, processor;  // Microseconds per call.
};

double processor_seconds() {
  timespec spent{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) + 1e-9 * static_cast<double>(spent.tv_nsec);
}

Cost measure(const comm::Group& group, int calls, const std::function<void()>& call) {
  call();
  group.barrier();
  const double processor = processor_seconds();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {1e6 * wall / calls, 1e6 * (processor_seconds() - processor) / calls};
}

Cost median(std::vector<Cost> costs) {
  const auto middle = [&](double Cost::*which) {
    std::sort(costs.begin(), costs.end(), [&](const Cost& a, const Cost& b) { return a.*which < b.*which; });
    return costs[costs.size() / 2].*which;
  };
  return {middle(&Cost::wall), middle(&Cost::processor)};
}

// Prepares messages of `bytes` bytes between ranks 0 and 1, 2 and 3, ...; a rank without a partner does nothing.
std::function<void(const comm::Group&)> prepare_messages(bool at_once, int64_t bytes) {
  const at::Tensor sent = at::ones({bytes / 4}), received = at::empty({bytes / 4});
  return [=](const comm::Group& group) {
    const int partner = group.rank() ^ 1;
    if (partner >= group.size()) return;
    const bool first = at_once || group.rank() < partner;
    comm::Pending sending, receiving = group.recv(received, partner);
    if (first) sending = group.send(sent, partner);
    receiving.wait();
    if (!first) sending = group.send(sent, partner);
    sending.wait();
  };
}

// Prepares one call of an operation on a group. Its largest tensor has `bytes` bytes.
std::function<void(const comm::Group&)> prepare(const std::string& operation, int64_t bytes, int ranks) {
  if (operation == "send fp32" || operation == "swap fp32") return prepare_messages(operation == "swap fp32", bytes);
  if (operation == "all_gather bf16") {
    const int64_t piece = bytes / 2 / ranks;
    at::Tensor input = at::ones({piece}, at::kBFloat16), output = at::empty({piece * ranks}, at::kBFloat16);
    return [=](const comm::Group& group) { group.all_gather(output, input).wait(); };
  }
  const int64_t piece = bytes / 4 / ranks;
  at::Tensor large = at::zeros({piece * ranks}), small = at::empty({piece});
  if (operation == "reduce_scatter fp32") {
    return [=](const comm::Group& group) { group.reduce_scatter(small, large).wait(); };
  }
  return [=](const comm::Group& group) { group.all_reduce(large).wait(); };
}

void compare(const Plan& plan, int rank, const comm::Group& sockets, const comm::Group& memory) {
  if (rank == 0) {
    std::printf("%-20s %10s | wall us, processor us of rank 0: sockets, shared memory\n", "operation", "bytes");
  }
  for (const std::string operation :
       {"all_gather bf16", "reduce_scatter fp32", "all_reduce fp32", "send fp32", "swap fp32"}) {
    if (!plan.only.empty() && operation != plan.only) continue;
    for (int64_t bytes = 4096; bytes <= plan.most; bytes *= 4) {
      const auto call = prepare(operation, bytes, plan.ranks);
      const int calls = static_cast<int>(std::clamp<int64_t>((int64_t{16} << 20) / bytes, 4, 200));
      std::vector<Cost> costs[2];
      for (int round = 0; round < plan.rounds; ++round) {
        costs[0].push_back(measure(sockets, calls, [&] { call(sockets); }));
        costs[1].push_back(measure(memory, calls, [&] { call(memory); }));
      }
      const Cost old = median(costs[0]), now = median(costs[1]);
      if (rank != 0) continue;
      std::printf("%-20s %10ld | %9.0f %9.0f | %9.0f %9.0f | wall / %.1f, processor / %.1f\n", operation.c_str(), bytes,
                  old.wall, old.processor, now.wall, now.processor, old.wall / now.wall, old.processor / now.processor);
    }
  }
}

void run_rank(const Plan& plan, int rank, const c10::intrusive_ptr<c10d::Store>& store) {
  at::set_num_threads(1);
  auto device = comm::make_cpu_device();
  comm::Ledger ledger;
  const auto join = [&](bool shared_memory) {
    return comm::DeviceMesh(mesh::Mesh::create({}, plan.ranks).value(), {mesh::Axis::kFsdp}, *device, ledger,
                            {.rank = rank,
                             .store = comm::prefixed(store, shared_memory ? "memory" : "sockets"),
                             .shared_memory = shared_memory});
  };
  const comm::DeviceMesh sockets = join(false), memory = join(true);
  compare(plan, rank, sockets.group(mesh::Axis::kFsdp), memory.group(mesh::Axis::kFsdp));
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) {
  titan::Plan plan;
  CLI::App app("Compares collectives over sockets with those through shared memory");
  app.add_option("--ranks", plan.ranks);
  app.add_option("--rounds", plan.rounds);
  app.add_option("--most", plan.most);
  app.add_option("--only", plan.only);
  CLI11_PARSE(app, argc, argv);
  return titan::bench::fork_ranks(plan.ranks, [&](int rank, const auto& store) { titan::run_rank(plan, rank, store); });
}
