#include "common/mesh/divisibility.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace titan::mesh {
namespace {

// The degrees up to a node's usual size that divide every given size (0 is divided by all).
std::string divisors(std::initializer_list<int64_t> sizes) {
  std::vector<int64_t> fitting;
  for (int64_t degree = 1; degree <= 64; ++degree) {
    bool fits = true;
    for (int64_t size : sizes) fits = fits && size % degree == 0;
    if (fits) fitting.push_back(degree);
  }
  return absl::StrJoin(fitting, ", ");
}

absl::Status check_tensor(const Mesh& mesh, const Sizes& sizes) {
  const int tp = mesh.size(Axis::kTensor);
  const bool experts_cut = mesh.size(Axis::kExpertTensor) > 1;
  const struct {
    const char* what;
    int64_t size;
  } split[] = {{"attention heads", sizes.n_heads},
               {"key-value heads", sizes.n_kv_heads},
               {"vocabulary entries", sizes.vocab_size},
               {"feed-forward channels", sizes.ffn_hidden},
               {"channels of an expert", experts_cut ? sizes.expert_hidden : 0},
               {"channels of the shared experts", sizes.shared_hidden}};
  for (const auto& [what, size] : split) {
    if (size % tp == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "parallelism.tensor_parallel_degree: ", tp, " does not divide the model's ", size, " ", what, " (possible: ",
        divisors({sizes.n_heads, sizes.n_kv_heads, sizes.vocab_size, sizes.ffn_hidden,
                  experts_cut ? sizes.expert_hidden : 0, sizes.shared_hidden}),
        ")"));
  }
  return absl::OkStatus();
}

absl::Status check_experts(const Mesh& mesh, const Sizes& sizes) {
  const int ep = mesh.size(Axis::kExpert), tp = mesh.size(Axis::kTensor);
  if (ep == 1) return absl::OkStatus();
  const bool knows_model = sizes.n_heads > 0;
  if (knows_model && sizes.num_experts == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallelism.expert_parallel_degree: ", ep, " but the model has no experts; use 1"));
  }
  if (sizes.num_experts % ep != 0) {
    return absl::InvalidArgumentError(absl::StrCat("parallelism.expert_parallel_degree: ", ep,
                                                   " does not divide the model's ", sizes.num_experts,
                                                   " experts (possible: ", divisors({sizes.num_experts}), ")"));
  }
  // Tensor ranks that route tokens of their own hold them already, or cut the whole microbatch evenly.
  const int64_t tokens = sizes.rows * (sizes.seq_len / mesh.size(Axis::kContext));
  if (mesh.size(Axis::kExpertTensor) < tp && !sizes.sequence_parallel && tokens % tp != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parallelism.expert_tensor_parallel_degree: with 1, the ", tp, " tensor ranks route equal shares of ", tokens,
        " tokens, which do not divide; use ", tp, ", or set parallelism.enable_sequence_parallel = true"));
  }
  return absl::OkStatus();
}

absl::Status check_sequence(const Mesh& mesh, const Sizes& sizes) {
  // Head-tail balance cuts the sequence into two pieces per context rank; sequence parallelism cuts what is left again.
  const int64_t context = mesh.size(Axis::kContext) > 1 ? 2 * int64_t{mesh.size(Axis::kContext)} : 1;
  const int64_t tensor = sizes.sequence_parallel ? mesh.size(Axis::kTensor) : 1;
  if (sizes.seq_len % (context * tensor) == 0) return absl::OkStatus();
  const int64_t step = context * tensor;
  return absl::InvalidArgumentError(
      absl::StrCat("training.seq_len: ", sizes.seq_len, " is not a multiple of ", step, " (",
                   context > 1 ? "2 x context_parallel_degree" : "", context > 1 && tensor > 1 ? " x " : "",
                   tensor > 1 ? "tensor_parallel_degree" : "", "); the nearest below is ", sizes.seq_len / step * step,
                   ", above ", (sizes.seq_len / step + 1) * step));
}

}  // namespace

absl::Status check_divisible(const Mesh& mesh, const Sizes& sizes) {
  if (absl::Status bad = check_tensor(mesh, sizes); !bad.ok()) return bad;
  if (absl::Status bad = check_sequence(mesh, sizes); !bad.ok()) return bad;
  // Embedding and head count as one layer each when layers are dealt to stages.
  if (const int pp = mesh.size(Axis::kPipeline); sizes.n_layers > 0 && pp > sizes.n_layers + 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallelism.pipeline_parallel_degree: ", pp, " stages for a model of ", sizes.n_layers,
                     " layers plus embedding and head; use at most ", sizes.n_layers + 2));
  }
  return check_experts(mesh, sizes);
}

}  // namespace titan::mesh
