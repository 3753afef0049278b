#pragma once

// Describes how the ranks of a job are split over the axes of a mesh, and checks that they divide a model and its
// batch.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace titan::mesh {

// Degrees of the mesh axes; names and meaning are those of the [parallelism] section.
struct Degrees {
  int pp = 1;
  int dp_replicate = 1;
  int dp_shard = -1;  // -1: the ranks that the other axes leave.
  int cp = 1;
  int tp = 1;
  int ep = 1;   // Uses ranks of dp_shard, cp and, with etp 1, tp.
  int etp = 1;  // tp or 1.

  bool operator==(const Degrees&) const = default;
};

// The world is a row-major box of the first five axes, outermost first, so neighbors on kTensor are neighboring ranks.
// The other axes flatten adjacent ones (kBatch, kLoss, kFsdp, kWorld) or cut the box differently (the expert axes).
enum class Axis {
  kPipeline,
  kReplicate,
  kShard,
  kContext,
  kTensor,
  kBatch,         // kReplicate x kShard: each coordinate reads different data.
  kLoss,          // kBatch x kContext: the loss and the weight gradients are summed over it.
  kFsdp,          // kShard x kContext: dense weights are sharded over it.
  kExpertFsdp,    // Expert weights are sharded over it.
  kExpert,        // Experts are distributed over it.
  kExpertTensor,  // Each expert's matrices are split over it.
  kWorld,
  kHolders,  // kReplicate x kFsdp x kTensor: all ranks that hold parts of the same parameters.
};
inline constexpr std::array<Axis, 13> kAllAxes = {
    Axis::kPipeline, Axis::kReplicate,  Axis::kShard,  Axis::kContext,      Axis::kTensor, Axis::kBatch,  Axis::kLoss,
    Axis::kFsdp,     Axis::kExpertFsdp, Axis::kExpert, Axis::kExpertTensor, Axis::kWorld,  Axis::kHolders};
inline constexpr std::array<Axis, 5> kWorldAxes = {Axis::kPipeline, Axis::kReplicate, Axis::kShard, Axis::kContext,
                                                   Axis::kTensor};

// Returns the axis's name in torchtitan: "pp", "dp_replicate", "dp_shard", "cp", "tp", "batch", "loss", "fsdp",
// "efsdp", "ep", "etp", "world"; and "holders", which only Titan has.
const char* name(Axis axis);

// A rank's coordinates on the world axes.
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
  // Resolves dp_shard = -1 and checks the product. Errors: InvalidArgument, naming the [parallelism] keys and the
  // values.
  static absl::StatusOr<Mesh> create(const Degrees& degrees, int world_size);

  const Degrees& degrees() const { return degrees_; }  // Resolved: dp_shard >= 1.
  int world_size() const { return world_size_; }

  int size(Axis axis) const { return extent(axis).size; }
  // Returns the index of `rank` in its group on `axis`.
  int index(int rank, Axis axis) const { return rank / extent(axis).stride % extent(axis).size; }
  // Returns the ranks of the group of `rank` on `axis`, by index.
  std::vector<int> group(int rank, Axis axis) const;
  // Returns all groups of `axis`, which partition the world, ordered by their first rank. Every rank creates them in
  // this order.
  std::vector<std::vector<int>> groups(Axis axis) const;

  Coordinate coordinate(int rank) const;
  int rank(const Coordinate& coordinate) const;
  // Returns the ranks that share the coordinates of `rank` on every world axis except the given ones (from kWorldAxes),
  // in rank order.
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

// Sizes of a model and its batch that the mesh must divide. 0: not checked. n_heads 0: the model is not known.
struct Sizes {
  int64_t seq_len = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;  // Also 0 for latent attention, which shares the keys among all heads.
  int64_t vocab_size = 0;
  int64_t ffn_hidden = 0;  // Channels of a dense feed-forward layer.
  int64_t num_experts = 0;
  int64_t expert_hidden = 0;            // Channels of one routed expert.
  int64_t shared_hidden = 0;            // Channels of all shared experts together.
  int64_t rows = 0;                     // Sequences of a microbatch.
  int64_t chunks_per_context_rank = 2;  // 2 with head-tail balancing, which gives a rank an early and a late chunk; 1
                                        // without.
  bool sequence_parallel = true;
};

// Checks that the mesh can split these sizes. Errors: InvalidArgument, naming the key, both numbers and the possible
// values.
absl::Status check_divisible(const Mesh& mesh, const Sizes& sizes);

}  // namespace titan::mesh
