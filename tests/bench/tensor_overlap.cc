// Compares asynchronous with synchronous tensor parallelism on N single-threaded processes of this machine: forward and
// backward pass of one feed-forward with the sequence split. The two alternate, so that other load on the machine
// affects both. Prints the medians, their ratio, and how far the results are apart.
//   tensor_overlap [--ranks 2] [--length 2048] [--dim 2048] [--hidden 5632] [--rounds 15] [--type float32|bfloat16]
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "tests/bench/forked_ranks.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/comm/make_device.h"
#include "worker/rank/comm/store.h"
#include "worker/rank/parallel/tensor.h"

namespace titan {
namespace {

struct Plan {
  int ranks = 2;
  int64_t length = 2048, dim = 2048, hidden = 5632;
  int rounds = 15;
  std::string type = "float32";
};

class Block : public nn::Block {
 public:
  Block(const Plan& plan, const comm::Group& group, bool overlap, at::ScalarType type)
      : nn::Block("layers.0"), feed_forward_(declare(), "feed_forward", plan.dim, plan.hidden, {}, {}) {
    parallel::split_feed_forward(feed_forward_, {.group = &group, .overlap = overlap});
    at::manual_seed(group.rank());
    for (nn::Parameter& parameter : parameters()) {
      parameter.weight = (at::randn(parameter.shape) * 0.02).to(type).set_requires_grad(true);
    }
  }
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext&) override {
    return feed_forward_.forward(input);
  }
  // Returns all gradients and, last, the output.
  std::vector<at::Tensor> run(const at::Tensor& x) {
    std::vector<at::Tensor> inputs{x};
    for (nn::Parameter& parameter : parameters()) inputs.push_back(parameter.weight);
    const at::Tensor y = forward(x, {});
    std::vector<at::Tensor> results = torch::autograd::grad({y}, inputs, {at::ones_like(y)});
    results.push_back(y.detach());
    return results;
  }

 private:
  nn::FeedForward feed_forward_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run_rank(const Plan& plan, int rank, const c10::intrusive_ptr<c10d::Store>& store) {
  at::set_num_threads(1);
  auto device = comm::make_cpu_device();
  comm::Ledger ledger;
  const comm::DeviceMesh mesh(mesh::Mesh::create({.tp = plan.ranks}, plan.ranks).value(), {mesh::Axis::kTensor},
                              *device, ledger, {.rank = rank, .store = store});
  const comm::Group& group = mesh.group(mesh::Axis::kTensor);
  const at::ScalarType type = plan.type == "bfloat16" ? at::kBFloat16 : at::kFloat;
  Block blocks[2] = {{plan, group, false, type}, {plan, group, true, type}};
  const at::Tensor x = at::randn({1, plan.length / plan.ranks, plan.dim}).to(type).set_requires_grad(true);

  const auto expected = blocks[0].run(x), actual = blocks[1].run(x);
  double apart = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor wide = expected[i].to(at::kDouble);
    apart = std::max(apart, ((actual[i].to(at::kDouble) - wide).abs().max() / wide.abs().max()).item<double>());
  }
  std::vector<double> seconds[2], communication;
  for (int round = 0; round < plan.rounds; ++round) {
    for (const int overlap : {0, 1}) {
      group.barrier();
      const auto start = std::chrono::steady_clock::now();
      blocks[overlap].run(x);
      seconds[overlap].push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    group.barrier();  // Only the collectives of one pass: the most that can be hidden.
    const auto start = std::chrono::steady_clock::now();
    const at::Tensor whole = at::empty({plan.length, plan.dim}, x.options().requires_grad(false));
    for (int pass = 0; pass < 2; ++pass) {
      group.all_gather(whole, x.detach()).wait();
      group.reduce_scatter(at::empty_like(x.detach()), whole).wait();
    }
    communication.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  if (rank == 0) {
    std::printf(
        "%d ranks, %s, [1, %ld, %ld] x %ld: synchronous %.1f ms, asynchronous %.1f ms, ratio %.3f; "
        "collectives alone %.1f ms; results apart by %.1e of the largest\n",
        plan.ranks, plan.type.c_str(), plan.length, plan.dim, plan.hidden, 1e3 * median(seconds[0]),
        1e3 * median(seconds[1]), median(seconds[1]) / median(seconds[0]), 1e3 * median(communication), apart);
  }
  group.barrier();
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) {
  titan::Plan plan;
  CLI::App app("Compares asynchronous with synchronous tensor parallelism");
  app.add_option("--ranks", plan.ranks);
  app.add_option("--length", plan.length);
  app.add_option("--dim", plan.dim);
  app.add_option("--hidden", plan.hidden);
  app.add_option("--rounds", plan.rounds);
  app.add_option("--type", plan.type)->check(CLI::IsMember({"float32", "bfloat16"}));
  CLI11_PARSE(app, argc, argv);
  return titan::bench::fork_ranks(plan.ranks, [&](int rank, const auto& store) { titan::run_rank(plan, rank, store); });
}
