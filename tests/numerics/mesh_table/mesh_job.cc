#include "tests/numerics/mesh_table/mesh_job.h"

#include <stdexcept>

#include "common/config/pipeline.h"
#include "tests/testing/allocation_meter.h"
#include "tests/testing/flop_counter.h"
#include "tests/worker/comm/thread_ranks.h"
#include "worker/model/decoder/decoder.h"
#include "worker/nn/loss.h"
#include "worker/optim/grad_norm.h"
#include "worker/optim/optimizer.h"
#include "worker/runtime/executor.h"
#include "worker/runtime/parallel_setup.h"

namespace titan::testing {
namespace {

using mesh::Axis;

// A wrong configuration ends the test with its message.
template <typename T>
T require(absl::StatusOr<T> result) {
  if (!result.ok()) throw std::runtime_error(std::string(result.status().message()));
  return *std::move(result);
}

// Rows [first, first + count) of one step's batch: the same on every mesh. Some labels are ignored, some tokens end
// documents.
data::Batch rows_of_step(const MeshJob& job, int step, int64_t first, int64_t count) {
  const int64_t length = job.config.training.seq_len + 1;
  at::Tensor tokens = at::arange(job.global_batch * length, at::kLong).view({job.global_batch, length});
  tokens = (tokens * 7919 + 31 * step + tokens.div(13, "floor")).remainder(job.spec.vocab_size);
  tokens = tokens.narrow(0, first, count);
  data::Batch batch;
  batch.tokens = tokens.slice(1, 0, length - 1).contiguous();
  batch.labels = tokens.slice(1, 1).clone();
  batch.labels.masked_fill_(batch.labels.eq(3), nn::kIgnoredLabel);
  return batch;
}

// One rank's model and what drives it.
class RankJob {
 public:
  RankJob(const MeshJob& job, ThreadRank& self) : job_(job), self_(self), mesh_(*self.mesh) {
    const config::JobConfig& config = job.config;
    const pipeline::Plan plan = require(config::pipeline_plan(config, job.spec.n_layers));
    schedule_ = plan.schedule;
    model_ = require(runtime::ShardedModel::create(
        require(runtime::build_model(config, job.spec, config.training.seq_len, mesh_)),
        require(runtime::sharding_options(config, job.spec, plan, mesh_)), mesh_, *self.device));
    model_->init_weights(7);
    executor_.emplace(model_->stages(), &mesh_.group(Axis::kPipeline), [this](const pipeline::Action& action) {
      if (job_.begins) job_.begins(self_.rank, action, meter_.begin() - at_rest_);
    });
    if (runtime::overlaps_pairs(config)) executor_->overlap_pairs();
    optimizer_ = optim::make_optimizer({}, model_->optimizer_slots());
    options_ = runtime::microbatch_options(config, job.spec, mesh_, at::kCPU);
  }

  RankRecord run() {
    RankRecord record;
    record.initial = pieces(/*gradients=*/false);
    for (int step = 0; step < job_.steps; ++step) {
      forward_backward(step, record);
      if (step == 0) record.gradients = pieces(/*gradients=*/true);
      finish_step(record);
    }
    record.values = pieces(/*gradients=*/false);
    for (nn::Block* block : model_->blocks()) {
      for (const nn::Buffer& buffer : block->buffers()) record.buffers[buffer.fqn] = buffer.value.clone();
    }
    for (const parallel::ShardedParameter* one : model_->parameters()) {
      record.parameter_bytes += static_cast<int64_t>(one->value.nbytes());
    }
    for (const optim::SlotState& state : optimizer_->states()) {
      record.optimizer_bytes += static_cast<int64_t>(state.exp_avg.nbytes() + state.exp_avg_sq.nbytes());
    }
    return record;
  }

 private:
  void forward_backward(int step, RankRecord& record) {
    const mesh::Mesh& shape = mesh_.mesh();
    const int64_t rows = job_.global_batch / shape.size(Axis::kBatch);
    const int64_t first = rows * shape.index(self_.rank, Axis::kBatch);
    const int64_t batch_rows = job_.config.training.local_batch_size;
    const int64_t tokens = nn::count_valid(rows_of_step(job_, step, 0, job_.global_batch).labels).item<int64_t>();
    const comm::LedgerCounts before = self_.ledger.counts();
    const FlopCounter flops;
    const AllocationMeter::Scope metered(meter_);
    at_rest_ = meter_.begin();
    model_->forget_gradients();
    loss_ = at::zeros({}, at::kDouble);
    for (int64_t row = 0; row < rows; row += batch_rows) {
      const auto microbatches = runtime::make_microbatches(rows_of_step(job_, step, first + row, batch_rows), options_);
      loss_ += executor_->run(
          schedule_, microbatches, [tokens] { return tokens; }, /*last=*/row + batch_rows == rows);
    }
    model_->finish_step();
    if (!runtime::reports_loss(schedule_, mesh_)) loss_.zero_();
    loss_ /= static_cast<double>(tokens);
    record.traffic = comm::subtract(self_.ledger.counts(), before);
    record.product_flops = flops.products();
  }

  void finish_step(RankRecord& record) {
    at::Tensor report = at::stack({loss_, optim::sum_of_squares(model_->gradients())});
    mesh_.group(Axis::kWorld).all_reduce(report).wait();
    record.losses.push_back(report[0].item<double>());
    record.norms.push_back(std::sqrt(report[1].item<double>()));
    record.routed.clear();
    for (nn::Block* block : model_->blocks()) {
      auto* layer = dynamic_cast<model::DecoderLayer*>(block);
      if (layer == nullptr || !layer->moe) continue;
      at::Tensor& counts = layer->moe->tokens_per_expert;
      record.routed[layer->moe->fqn()].assign(counts.data_ptr<int64_t>(), counts.data_ptr<int64_t>() + counts.numel());
      counts.zero_();
    }
    model_->scale_gradients(optim::clip_coefficient(record.norms.back(), 1.0));
    optimizer_->step(1e-3);
  }

  std::map<std::string, Piece> pieces(bool gradients) {
    std::map<std::string, Piece> all;
    for (const parallel::ShardedParameter* one : model_->parameters()) {
      all[one->parameter->fqn] = {one->global_offset(), (gradients ? one->grad : one->value).clone()};
    }
    return all;
  }

  const MeshJob& job_;
  ThreadRank& self_;
  const comm::DeviceMesh& mesh_;
  pipeline::Schedule schedule_;
  std::unique_ptr<runtime::ShardedModel> model_;
  std::optional<runtime::Executor> executor_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  runtime::MicrobatchOptions options_;
  at::Tensor loss_;
  AllocationMeter meter_;
  int64_t at_rest_ = 0;
};

}  // namespace

std::vector<RankRecord> run_mesh_job(const MeshJob& job) {
  const mesh::Mesh mesh = require(runtime::make_mesh(job.config.parallelism, job.world));
  std::vector<RankRecord> records(job.world);
  run_ranks(mesh.degrees(), job.world, runtime::axes_of(mesh),
            [&](ThreadRank& self) { records[self.rank] = RankJob(job, self).run(); });
  return records;
}

}  // namespace titan::testing
