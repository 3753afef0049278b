#pragma once

// Describes how the ranks of a job are split over the axes of a mesh, and checks that a model and its batch divide over
// them.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace titan::mesh {

// How the ranks of a job are split; names and meaning of the [parallelism] section.
struct Degrees {
  int pp = 1;
  int dp_replicate = 1;
  int dp_shard = -1;  // -1: the ranks that the other axes leave.
  int cp = 1;
  int tp = 1;
  int ep = 1;   // Borrows ranks of dp_shard, cp and, with etp 1, tp.
  int etp = 1;  // tp or 1.

  bool operator==(const Degrees&) const = default;
};

// The world is a row-major box of the first five axes, outermost first, so neighbours on kTensor are neighbouring
// ranks. The other axes flatten adjacent ones (kBatch, kLoss, kFsdp, kWorld) or cut the box again (the expert axes).
enum class Axis {
  kPipeline,
  kReplicate,
  kShard,
  kContext,
  kTensor,
  kBatch,         // kReplicate x kShard: each coordinate reads its own data.
  kLoss,          // kBatch x kContext: shares of the loss and of the weight gradients.
  kFsdp,          // kShard x kContext: dense weights are sharded over it.
  kExpertFsdp,    // Expert weights are sharded over it.
  kExpert,        // Experts are dealt over it.
  kExpertTensor,  // Each expert's matrices are split over it.
  kWorld,
  kHolders,  // kReplicate x kFsdp x kTensor: all ranks that hold parts of the same parameters.
};
inline constexpr std::array<Axis, 13> kAllAxes = {
    Axis::kPipeline, Axis::kReplicate,  Axis::kShard,  Axis::kContext,      Axis::kTensor, Axis::kBatch,  Axis::kLoss,
    Axis::kFsdp,     Axis::kExpertFsdp, Axis::kExpert, Axis::kExpertTensor, Axis::kWorld,  Axis::kHolders};
inline constexpr std::array<Axis, 5> kWorldAxes = {Axis::kPipeline, Axis::kReplicate, Axis::kShard, Axis::kContext,
                                                   Axis::kTensor};

// torchtitan's name: "pp", "dp_replicate", "dp_shard", "cp", "tp", "batch", "loss", "fsdp", "efsdp", "ep", "etp",
// "world"; and "holders".
const char* name(Axis axis);

// A rank's place in the box.
struct Coordinate {
  int pp = 0;
  int dp_replicate = 0;
  int dp_shard = 0;
  int cp = 0;
  int tp = 0;

  bool operator==(const Coordinate&) const = default;
};

class Mesh {
 public:
  // Resolves dp_shard = -1 and checks the product. Errors: InvalidArgument, names the [parallelism] keys and the
  // values.
  static absl::StatusOr<Mesh> create(const Degrees& degrees, int world_size);

  const Degrees& degrees() const { return degrees_; }  // Resolved: dp_shard >= 1.
  int world_size() const { return world_size_; }

  int size(Axis axis) const { return extent(axis).size; }
  // The rank's index inside its group on `axis`.
  int index(int rank, Axis axis) const { return rank / extent(axis).stride % extent(axis).size; }
  // The ranks of the rank's group on `axis`, by index.
  std::vector<int> group(int rank, Axis axis) const;
  // All groups of `axis`, ordered by their first rank. They partition the world. Every rank creates them in this order.
  std::vector<std::vector<int>> groups(Axis axis) const;

  Coordinate coordinate(int rank) const;
  int rank(const Coordinate& coordinate) const;
  // Ranks that share the rank's coordinates on every world axis but the given ones (of kWorldAxes), in rank order.
  std::vector<int> group(int rank, const std::vector<Axis>& axes) const;

 private:
  struct Extent {
    int stride = 1;
    int size = 1;
  };

  Mesh(const Degrees& degrees, int world_size);
  const Extent& extent(Axis axis) const { return extents_[static_cast<size_t>(axis)]; }

  Degrees degrees_;
  int world_size_;
  std::array<Extent, kAllAxes.size()> extents_;
};

// The sizes of a model and its batch that the mesh has to divide. 0: does not apply; no heads: the model is not known.
struct Sizes {
  int64_t seq_len = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;  // 0 also for latent attention, whose keys are shared by all heads.
  int64_t vocab_size = 0;
  int64_t ffn_hidden = 0;  // Channels of a dense feed-forward.
  int64_t num_experts = 0;
  int64_t expert_hidden = 0;            // Channels of one routed expert.
  int64_t shared_hidden = 0;            // Channels of the shared experts together.
  int64_t rows = 0;                     // Sequences of a microbatch.
  int64_t chunks_per_context_rank = 2;  // Head-tail balance gives each an early and a late one; 1 without.
  bool sequence_parallel = true;
};

// Whether the mesh can split these sizes. Errors: InvalidArgument, names the key, both numbers, and which values would
// do.
absl::Status check_divisible(const Mesh& mesh, const Sizes& sizes);

}  // namespace titan::mesh
