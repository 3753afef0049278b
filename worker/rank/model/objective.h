#pragma once

// An objective says what a model is trained for, apart from its blocks and its loss (model.h): where its rows come
// from, what the blocks read of them, how progress is counted, and what is shown during validation. The trainer knows
// no kind of data; it calls the objective. A family that brings none has language models (language/objective.h).

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/data/loader/batch_source.h"
#include "worker/rank/model/model.h"
#include "worker/rank/nn/block.h"
#include "worker/rank/parallel/context.h"
#include "worker/rank/trace/spans.h"

namespace titan::config {
struct JobConfig;
}

namespace titan::model {

// Number of rows of the stream that the finished steps consumed.
struct RowsBefore {
  int64_t steps = 0;
  int64_t rows = 0;
};

// The rows that this rank reads.
struct DataShare {
  int dp_rank = 0;
  int dp_size = 1;
  int64_t local_batch = 1;   // Rows of one batch.
  int64_t global_batch = 1;  // Rows of a step after `before`; weights of sources change by steps.
  RowsBefore before = {};    // The finished steps.
  std::shared_ptr<trace::SpanRecorder> spans = nullptr;  // Records the making of each batch in traces; null: does not.
};

// Settings for making the blocks' contexts from the batches that a data-parallel rank reads.
struct MicrobatchOptions {
  at::Device device = at::kCPU;
  int64_t rows = 0;                   // Rows of one microbatch. 0: a batch is one microbatch.
  parallel::ContextParallel context;  // Without a group rows stay whole.
};

// Some rows as the blocks read them, on the device, and how many terms their loss sums.
struct Microbatch {
  nn::MicrobatchContext context;
  // Counts this rank's share. The step's loss is the sum over all ranks divided by their terms.
  int64_t loss_terms = 0;
};

// The trained model as samples run it.
struct WholeModel {
  // Calls a function for one block after another, with its weights gathered, and returns the last result. The model
  // decides the shapes: its input, then activations [B, L, dim]. Collective if weights are sharded.
  std::function<at::Tensor(at::Tensor, const std::function<at::Tensor(nn::Block&, const at::Tensor&)>&)> visit;
  const std::vector<nn::Block*>& blocks;
  at::Device device;
};

// A sample of a model of pictures.
struct Picture {
  std::string name;     // "000", a part of a file's name.
  std::string caption;  // Text that it shows.
  std::string png;      // The whole file.
  int width = 0, height = 0;
};

// The samples that a model made of the prompts of [validation].
struct Samples {
  std::vector<std::string> lines;  // For the log. Only on rank 0.
  std::vector<Picture> pictures;   // Only on rank 0.
  std::optional<Picture> grid;     // All pictures in one, if they are several.
  std::string not_finite;          // Why some sample is meaningless, the same on every rank. Empty: all are finite.
};

// Where a rank computes.
struct RankPlace {
  const comm::DeviceMesh& mesh;  // Must outlive the objective.
  at::Device device;
};

class Objective {
 public:
  virtual ~Objective() = default;

  // Reads what the job's keys name, such as sample prompts or frozen encoders. Called once, before the model is built.
  // InvalidArgument and NotFound name the key.
  virtual absl::Status prepare(const config::JobConfig& config, const RankPlace& place) {
    (void)config, (void)place;
    return absl::OkStatus();
  }
  // Makes on a device without memory what microbatch() needs of prepare(): shapes without values, for a dry run. Reads
  // no weights. Called instead of prepare(). InvalidArgument and NotFound name the key.
  virtual absl::Status prepare_shapes(const config::JobConfig& config, const RankPlace& place) {
    (void)config, (void)place;
    return absl::OkStatus();
  }
  // Returns the tokens of the longest row that the model processes (BuildOptions::longest_row).
  virtual int64_t longest_row(const config::JobConfig& config) const;

  // Open the rows of [training] and of [validation]. May be called again with another share. Errors name the key.
  virtual absl::StatusOr<std::unique_ptr<data::BatchSource>> open_training(const config::JobConfig& config,
                                                                           const DataShare& share) = 0;
  virtual absl::StatusOr<std::unique_ptr<data::BatchSource>> open_validation(const config::JobConfig& config,
                                                                             const DataShare& share) = 0;
  // Returns a batch of `rows` rows with the shapes of training, for dry runs.
  virtual data::Batch example(const config::JobConfig& config, int64_t rows) const = 0;

  // Makes what the blocks read of all rows of `batch`. With a context group it is this rank's share of them.
  virtual Microbatch microbatch(const data::Batch& batch, const MicrobatchOptions& options) const = 0;

  // Name of what throughput counts ("token"), and how many a row of training and of validation has.
  virtual const char* unit() const = 0;
  virtual int64_t units_of_training_row(const config::JobConfig& config) const = 0;
  virtual int64_t units_of_validation_row(const config::JobConfig& config) const = 0;

  // Returns notes about the data for the log, each a line.
  virtual std::vector<std::string> notes(const config::JobConfig& config) const {
    (void)config;
    return {};
  }
  // Returns why a validation of `batches` batches had no terms, for a warning.
  virtual std::string why_nothing_validated(const config::JobConfig& config, int64_t batches) const;

  virtual bool has_samples() const { return false; }
  // Makes the samples that prepare() read. Collective: every rank of the mesh takes part.
  virtual Samples sample(const WholeModel& model, const comm::DeviceMesh& mesh) {
    (void)model, (void)mesh;
    return {};
  }
};

// Makes the objective of the spec's family.
std::unique_ptr<Objective> make_objective(const models::ModelSpec& spec);

}  // namespace titan::model
