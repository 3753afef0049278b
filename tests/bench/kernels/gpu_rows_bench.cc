// Times the layers' row operations by LibTorch's operations and by Titan's own kernels, forward and backward, in bf16:
// "gpu_rows_bench cuda" on a GPU (deploy/gpu_check.sh --only kernels). "cpu" does the same with small shapes and the
// CPU's kernels, to try the program itself. GB/s counts each operand and result once.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/kernels/gpu_timing.h"
#include "worker/rank/comm/make_device.h"
#include "worker/rank/nn/feed_forward.h"
#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/loss.h"
#include "worker/rank/nn/moe_rows.h"
#include "worker/rank/nn/rope.h"

namespace titan::nn {
namespace {

using bench::Operation;
using bench::Tensors;

// `forward` and `backward` are the bytes that these passes must move.
struct Bench {
  std::string name;
  Tensors leaves;
  Operation operation;
  int64_t forward, backward;
};

void print(const std::string& name, double theirs, double ours, int64_t bytes) {
  std::printf("%-44s %9.3f %9.3f %8.1f %7.2f\n", name.c_str(), theirs * 1e3, ours * 1e3,
              static_cast<double>(bytes) / ours * 1e-9, theirs / ours);
  std::fflush(stdout);
}

std::vector<Bench> benches(const at::TensorOptions& options, bool small) {
  const int64_t tokens = small ? 128 : 8192;
  const auto draw = [&](at::IntArrayRef sizes) { return at::randn(sizes, options).requires_grad_(); };
  const auto bytes = [](const at::Tensor& t) { return static_cast<int64_t>(t.nbytes()); };
  std::vector<Bench> all;
  for (const auto& [rows, dim] :
       {std::pair{tokens, int64_t{2048}}, std::pair{tokens, int64_t{4096}}, std::pair{tokens * 32, int64_t{128}}}) {
    const at::Tensor x = draw({rows, dim});
    all.push_back({"rms_norm " + std::to_string(rows) + " x " + std::to_string(dim),
                   {x, draw({dim})},
                   [](const Tensors& t) { return rms_norm(t[0], t[1], 1e-5); },
                   2 * bytes(x),
                   3 * bytes(x)});
  }
  for (const RopePairs pairs : {RopePairs::kInterleaved, RopePairs::kRotateHalf}) {
    const at::Tensor table =
        rope_table({.head_dim = 128, .max_seq_len = tokens, .pairs = pairs}, options.device(), at::kFloat);
    const at::Tensor x = draw({1, tokens, 32, 128});
    all.push_back({std::string("rope 1 x ") + std::to_string(tokens) + " x 32 x 128, " +
                       (pairs == RopePairs::kRotateHalf ? "halves" : "neighbours"),
                   {x},
                   [table](const Tensors& t) { return apply_rope(t[0], table, {}); },
                   2 * bytes(x),
                   2 * bytes(x)});
  }
  const int64_t width = small ? 768 : 14336;
  const at::Tensor gate = draw({tokens, width}), mixed = draw({tokens, 5760});
  all.push_back({"swiglu " + std::to_string(tokens) + " x " + std::to_string(width),
                 {gate, draw({tokens, width})},
                 [](const Tensors& t) { return swiglu(t[0], t[1]); },
                 3 * bytes(gate),
                 5 * bytes(gate)});
  all.push_back({"swiglu " + std::to_string(tokens) + " x 2880, clamped",
                 {mixed},
                 [](const Tensors& t) { return clamped_swiglu(t[0], 7); },
                 3 * bytes(mixed) / 2,
                 5 * bytes(mixed) / 2});
  const at::Tensor chosen = at::rand({tokens, 64}, options.dtype(at::kFloat)).argsort(-1, false).narrow(1, 0, 6);
  const ExpertOrder order = order_by_expert(chosen.contiguous(), 64);
  const at::Tensor routed = draw({tokens * 6, 2048});
  all.push_back({"experts' rows " + std::to_string(tokens) + " x 6 x 2048, combined",
                 {routed, at::rand({tokens, 6}, options.dtype(at::kFloat)).requires_grad_()},
                 [order](const Tensors& t) { return combine(t[0], t[1], order); },
                 bytes(routed) + bytes(routed) / 6,
                 2 * bytes(routed) + bytes(routed) / 6});
  const int64_t vocabulary = small ? 2048 : 128256;
  const at::Tensor logits = draw({1, tokens / 2, vocabulary});
  const at::Tensor labels = at::randint(vocabulary, {1, tokens / 2}, options.dtype(at::kLong));
  all.push_back({"cross_entropy " + std::to_string(tokens / 2) + " x " + std::to_string(vocabulary),
                 {logits},
                 [labels](const Tensors& t) { return cross_entropy_sum(t[0], labels); },
                 bytes(logits),
                 2 * bytes(logits)});
  return all;
}

int run(const std::string& where) {
  const bool on_gpu = where != "cpu";
  auto device = comm::make_device(where, 0);
  if (!device.ok()) {
    std::fprintf(stderr, "gpu_rows_bench: %s\n", std::string(device.status().message()).c_str());
    return 1;
  }
  if (!on_gpu) at::set_num_threads(1);
  const at::TensorOptions options = at::TensorOptions().device((*device)->torch_device()).dtype(at::kBFloat16);
  std::printf("%-44s %9s %9s %8s %7s\n", "bfloat16", "LibTorch", "Titan ms", "GB/s", "ratio");
  for (const Bench& one : benches(options, /*small=*/!on_gpu)) {
    bench::use_own_kernels(false, on_gpu);
    const bench::Times theirs = bench::times_of(**device, one.leaves, one.operation);
    bench::use_own_kernels(true, on_gpu);
    const bench::Times ours = bench::times_of(**device, one.leaves, one.operation);
    print(one.name, theirs.forward, ours.forward, one.forward);
    print(one.name + ", backward", theirs.backward, ours.backward, one.backward);
  }
  return 0;
}

}  // namespace
}  // namespace titan::nn

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "gpu_rows_bench cuda|cpu\n");
    return 2;
  }
  try {
    return titan::nn::run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_rows_bench: %s\n", error.what());
    return 1;
  }
}
