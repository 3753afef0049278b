#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/mesh/mesh.h"
#include "common/plan/pipeline/plan.h"
#include "tests/numerics/mesh_table/mesh_job.h"
#include "tests/numerics/mesh_table/table_model.h"

namespace titan::testing {

// One parameter as a rank computes with it: shapes after the tensor and expert axes.
struct Part {
  std::string fqn;
  std::vector<int64_t> shape;
  bool expert = false;
  bool partial = false;  // The tensor ranks hold it whole and their gradients are summed.

  int64_t numel() const;
  bool is_matrix() const { return shape.size() == 2 && !expert; }
};

// Parameters that are gathered together.
struct Unit {
  std::vector<Part> parts;
  bool experts = false;  // Sharded over the experts' mesh.
};

// A result of a layer's forward pass that recomputation may save, in the order of the layer's equations.
struct Call {
  enum class Kind { kProduct, kAttention, kScatter, kExchange };
  Kind kind = Kind::kProduct;
  std::string fqn;             // Name of a product's weight.
  int64_t elements = 0;        // Elements of its results.
  int64_t integers = 0;        // The same for results of eight bytes each.
  bool feeds_scatter = false;  // A product with a scattered sum, the next call, as its only reader.
  bool scatters = false;       // A product that includes the scattering.
  bool is_saved = false;
};

// A mesh's share of a job for one rank, derived from torchtitan's parallelization plan and the model's equations,
// independent of what the layers report. Sizes are those of one microbatch.
class RankShare {
 public:
  // `records` of all ranks give the routing and the choices of a memory budget.
  RankShare(const MeshJob& job, int rank, const std::vector<RankRecord>& records);

  const MeshJob& job;
  const models::ModelSpec& spec;
  const TableModel& model;
  const config::ParallelismSection& parallelism;
  const std::vector<RankRecord>& records;
  const mesh::Mesh mesh;
  const int rank;
  const pipeline::PipelinePlan plan;
  int64_t tensor, context, expert, pipeline;  // Degrees.
  bool sequence;                              // Sequence parallel.
  bool asynchronous;                          // Sub-blocks gather and scatter piece by piece.
  bool apart;                                 // Tensor ranks route different tokens.
  int64_t bytes;                              // Bytes of a number.
  int64_t rows, microbatches, runs;  // Rows of one microbatch; microbatches in a step; runs of the schedule in a step.
  int64_t tokens;                    // Tokens of one microbatch on this rank.
  int64_t edge_tokens;               // The same between sub-blocks.
  int64_t routed_tokens;             // Tokens that this rank routes.

  // Returns the blocks of this rank's stages, in order.
  std::vector<std::string> blocks() const;
  const std::vector<Part>& parts_of(const std::string& block) const;
  std::vector<Unit> units_of(const std::vector<Part>& parts) const;
  bool is_tied(const std::string& block) const { return spec.tied_embeddings && block == "tok_embeddings"; }
  // Returns whether both ends of the pipeline hold a tied matrix and this rank has one of them.
  bool has_one_tied_end() const;

  int64_t shard_ranks(const Part& part) const;
  int64_t shard_dim(const Part& part) const;
  // Returns the elements of one rank's padded piece.
  int64_t padded(const Part& part) const;

  // Whether it is a block of a tower before a decoder's embedding.
  bool is_tower(const std::string& block) const { return place_of(block) + 1 < all_blocks_.entry(); }
  // Whether it may be recomputed: it is between the first and the last of the tower and the embedding, or of the
  // others.
  bool is_layer(const std::string& block) const;
  // Returns how often a block's forward pass runs.
  int64_t passes(const std::string& block) const { return recomputed_.count(block) > 0 ? 2 : 1; }
  // Returns the calls of a recomputed layer that may save results; empty for other layers.
  const std::vector<Call>& calls(const std::string& layer, int64_t microbatch) const;
  // Returns how often a layer's product with the weight `fqn` runs forward.
  int64_t product_passes(const std::string& layer, const std::string& fqn) const;
  int64_t attention_passes(const std::string& layer) const;
  int64_t exchange_passes(const std::string& layer) const;
  // `index`: 0 after the attention, 1 after the feed-forward.
  int64_t scatter_passes(const std::string& layer, size_t index) const;

  // Returns the rows that the experts of this rank receive in a microbatch.
  int64_t received(const std::string& layer, int64_t microbatch) const;
  bool has_experts(const std::string& layer) const { return spec.layer_has_experts(layer_number(layer)); }
  static int64_t layer_number(const std::string& layer) { return std::stoll(layer.substr(7)); }

 private:
  size_t place_of(const std::string& block) const;
  bool is_recomputed(int local_layer) const;
  std::vector<Call> all_calls(const std::string& layer, int64_t microbatch) const;
  void choose_every_second(const std::string& layer, std::vector<Call>& calls) const;
  int64_t passes_of(const std::string& layer, Call::Kind kind, size_t index) const;

  std::vector<Call> choose_calls(const std::string& layer, int64_t microbatch) const;

  const pipeline::ModelBlocks all_blocks_;
  std::set<std::string> recomputed_;
  mutable std::map<std::string, std::vector<Part>> parts_;  // Cache.
  mutable std::map<std::pair<std::string, int64_t>, std::vector<Call>> calls_;
};

}  // namespace titan::testing
