#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/plan/models/sizes.h"
#include "tests/numerics/mesh_table/mesh_job.h"
#include "worker/rank/comm/ledger.h"
#include "worker/rank/data/loader/batch_source.h"
#include "worker/rank/model/objective.h"

namespace titan::testing {

class RankShare;
struct Part;

// Collectives that are added up by axis and operation.
class TrafficCounts {
 public:
  // Adds `calls` collectives of `bytes` each, as the ledger counts them.
  void add(const char* group, const char* operation, int64_t calls, int64_t bytes);
  // Adds `calls` collectives of `bytes` in all.
  void add_sum(const char* group, const char* operation, int64_t calls, int64_t bytes);
  const comm::LedgerCounts& counts() const { return counts_; }

 private:
  comm::LedgerCounts counts_;
};

// Describes a kind of model to the table: its data, and its blocks on one rank in closed form. The table itself knows
// degrees, sharding, schedules, recomputation of whole layers, replicas and messages between stages. Another kind needs
// an implementation of this class, a branch in table_model(), and rows with its specs.
class TableModel {
 public:
  virtual ~TableModel() = default;

  // Returns rows [first, first + count) of one step's batch, which are the same on every mesh.
  virtual data::Batch rows_of_step(const MeshJob& job, int step, int64_t first, int64_t count) const = 0;
  // Returns the loss terms of a step, over all its rows.
  virtual int64_t loss_terms(const MeshJob& job, int step) const = 0;
  // Makes microbatches of those rows.
  virtual std::unique_ptr<model::Objective> objective(const MeshJob& job) const = 0;

  // Returns numbers of a parameter's shape that are added to its initial values, or an undefined tensor.
  virtual at::Tensor added_to_start(const MeshJob& job, const std::vector<int64_t>& shape) const {
    (void)job, (void)shape;
    return {};
  }

  // Whether a parameter does not change the loss, so that its gradient is rounding.
  virtual bool has_no_gradient(const std::string& fqn) const {
    (void)fqn;
    return false;
  }

  // Return the tokens of one microbatch on a rank: inside a sub-block, and of the activations between blocks.
  virtual int64_t tokens(const RankShare& share) const = 0;
  virtual int64_t edge_tokens(const RankShare& share) const = 0;
  // Returns a parameter after the tensor and expert axes.
  virtual Part cut(const RankShare& share, const models::ParameterSpec& whole) const = 0;
  // Whether the first block only looks tokens up: its backward pass reads no weights, and the first half of a split
  // backward pass computes its gradient.
  virtual bool embeds_tokens() const = 0;

  // Add and return what a block of this rank does in one step, apart from gathering weights and reducing gradients.
  virtual void add_traffic(const RankShare& share, const std::string& block, TrafficCounts& traffic) const = 0;
  virtual int64_t product_flops(const RankShare& share) const = 0;
  virtual int64_t attention_flops(const RankShare& share) const = 0;
  // Return the bytes that a block holds for a microbatch: until its backward pass, and between the halves of a split
  // one.
  virtual int64_t bytes_for_backward(const RankShare& share, const std::string& block, int64_t microbatch) const = 0;
  virtual int64_t bytes_for_weights(const RankShare& share, const std::string& block, int64_t microbatch) const = 0;
};

// Returns the kind of the spec's family.
const TableModel& table_model(const models::ModelSpec& spec);

const TableModel& language_table_model();
const TableModel& flux_table_model();
const TableModel& vlm_table_model();

// Adds the exchange of keys and values over context ranks by a layer whose attention runs forward `passes` times.
void add_context_attention(const RankShare& share, int64_t passes, TrafficCounts& traffic);

}  // namespace titan::testing
