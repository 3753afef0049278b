#include "common/plan/mesh/divisibility.h"

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

// Context ranks cut a row first; sequence parallelism cuts what is left again.
absl::Status check_sequence(const Mesh& mesh, const Sizes& sizes) {
  const int64_t cp = mesh.size(Axis::kContext), tp = sizes.sequence_parallel ? mesh.size(Axis::kTensor) : 1;
  const int64_t chunks = cp > 1 ? sizes.chunks_per_context_rank : 1;
  const int64_t step = chunks * cp * tp;
  if (sizes.seq_len % step == 0) return absl::OkStatus();
  std::vector<std::string> factors;
  if (chunks > 1) factors.push_back(absl::StrCat(chunks));
  if (cp > 1) factors.push_back(absl::StrCat("context_parallel_degree ", cp));
  if (tp > 1) factors.push_back(absl::StrCat("tensor_parallel_degree ", tp));
  const int64_t below = sizes.seq_len / step * step;
  return absl::InvalidArgumentError(absl::StrCat(
      "training.seq_len: ", sizes.seq_len, " is not a multiple of ", step, " (", absl::StrJoin(factors, " x "),
      "); the nearest ", below > 0 ? absl::StrCat("below is ", below, ", above ") : "above is ", below + step));
}

}  // namespace

absl::Status check_divisible(const Mesh& mesh, const Sizes& sizes) {
  if (absl::Status bad = check_tensor(mesh, sizes); !bad.ok()) return bad;
  if (absl::Status bad = check_sequence(mesh, sizes); !bad.ok()) return bad;
  return check_experts(mesh, sizes);
}

}  // namespace titan::mesh
