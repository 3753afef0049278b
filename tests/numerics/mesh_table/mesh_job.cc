#include "tests/numerics/mesh_table/mesh_job.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include "common/plan/config/parallelism.h"
#include "common/plan/models/sizes.h"
#include "tests/numerics/mesh_table/table_model.h"
#include "tests/testing/allocation_meter.h"
#include "tests/testing/flop_counter.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/optim/grad_norm.h"
#include "worker/rank/optim/optimizer.h"
#include "worker/rank/parallel/expert_balance.h"
#include "worker/rank/runtime/engine/executor.h"
#include "worker/rank/runtime/step/parallel_setup.h"

namespace titan::testing {
namespace {

using mesh::Axis;

constexpr double kLearningRate = 1e-3;

// A wrong configuration ends the test with its message.
template <typename T>
T require(absl::StatusOr<T> result) {
  if (!result.ok()) throw std::runtime_error(std::string(result.status().message()));
  return *std::move(result);
}

// Returns the part of a whole tensor at a piece's place, a view.
at::Tensor part_of(at::Tensor whole, const Piece& piece) {
  for (size_t d = 0; d < piece.offset.size(); ++d) {
    whole = whole.narrow(static_cast<int64_t>(d), piece.offset[d], piece.value.size(static_cast<int64_t>(d)));
  }
  return whole;
}

// One rank's model and the engine that runs it.
class RankJob {
 public:
  RankJob(const MeshJob& job, ThreadRank& self)
      : job_(job), self_(self), mesh_(*self.mesh), table_(table_model(job.spec)), objective_(table_.objective(job)) {
    const config::JobConfig& config = job.config;
    const pipeline::PipelinePlan plan = require(config::pipeline_plan(config, models::block_names(job.spec)));
    schedule_ = plan.schedule;
    runtime::ShardingOptions sharding = require(runtime::sharding_options(config, job.spec, plan, mesh_));
    early_ = sharding.early_step;
    sharding.ac.planned = [this](const std::string& layer, const auto&, const models::ParetoPoint& chosen) {
      record_.planned[layer] = chosen.taken;
    };
    model_ = require(
        runtime::ShardedModel::create(require(runtime::build_model(config, job.spec, config.training.seq_len, mesh_)),
                                      sharding, mesh_, *self.device));
    model_->init_weights(7);
    if (job.start_from) {
      for (parallel::ShardedParameter* one : model_->parameters()) job.start_from(one->value);
    }
    for (parallel::ShardedParameter* one : model_->parameters()) {
      const at::Tensor added = table_.added_to_start(job, one->parameter->global_shape);
      if (added.defined()) one->value.add_(part_of(added, {one->global_offset(), one->value}));
    }
    executor_.emplace(model_->stages(), &mesh_.group(Axis::kPipeline),
                      [this](const pipeline::Action& action) { begins(action); });
    if (runtime::overlaps_pairs(config)) executor_->overlap_pairs();
    optimizer_ = optim::make_optimizer({}, model_->optimizer_slots());
    options_ = runtime::microbatch_options(config, job.spec, mesh_, at::kCPU);
    // Families that do not balance by default do so here too, because the test compares how the biases move.
    if (job.spec.moe) balance_.emplace(model_->blocks(), models::MoeSpec{}.load_balance_coeff, mesh_, at::kCPU);
    if (!early_) return;
    model_->update_early([this](const parallel::ShardUnit& unit, size_t first_slot, size_t count) {
      update_early(unit, first_slot, count);
    });
  }

  RankRecord run() {
    record_.initial = pieces(/*gradients=*/false);
    if (early_) record_.gradients = pieces(/*gradients=*/true);  // Allocates them before the meter starts.
    for (int step = 0; step < job_.steps; ++step) {
      forward_backward(step);
      if (step == 0 && !early_) record_.gradients = pieces(/*gradients=*/true);
      finish_step();
    }
    record_.values = pieces(/*gradients=*/false);
    for (nn::Block* block : model_->blocks()) {
      for (const nn::Buffer& buffer : block->buffers()) record_.buffers[buffer.fqn] = buffer.value.clone();
    }
    for (const parallel::ShardedParameter* one : model_->parameters()) {
      record_.parameter_bytes += static_cast<int64_t>(one->value.nbytes());
    }
    for (const optim::SlotState& state : optimizer_->states()) record_.optimizer_bytes += state.bytes();
    return std::move(record_);
  }

 private:
  using Microbatches = std::vector<nn::MicrobatchContext>;

  // Returns the microbatches of each run of the schedule in one step.
  std::vector<Microbatches> microbatches_of_step(int step) const {
    const mesh::Mesh& shape = mesh_.mesh();
    const int64_t rows = job_.global_batch / shape.size(Axis::kBatch);
    const int64_t first = rows * shape.index(self_.rank, Axis::kBatch);
    const int64_t of_run = job_.config.training.local_batch_size;
    std::vector<Microbatches> runs;
    for (int64_t row = first; row < first + rows; row += of_run) {
      runs.push_back(
          runtime::make_microbatches(*objective_, table_.rows_of_step(job_, step, row, of_run), options_).contexts);
    }
    return runs;
  }

  void forward_backward(int step) {
    const int64_t terms = table_.loss_terms(job_, step);
    const std::vector<Microbatches> runs = microbatches_of_step(step);
    record_.held.clear();
    forget_routing();
    early_squares_ = 0;
    if (early_) optimizer_->begin_step();
    const comm::LedgerCounts before = self_.ledger.counts();
    std::optional<FlopCounter> flops;  // Counts only the last step: counting slows every operator down.
    if (step + 1 == job_.steps) flops.emplace();
    const AllocationMeter::Scope metered(meter_);
    at_rest_ = meter_.begin();
    model_->reset_gradients();
    model_->prepare_gathers();
    loss_ = at::zeros({}, at::kDouble);
    first_microbatch_ = 0;
    for (const Microbatches& microbatches : runs) {
      const bool last = &microbatches == &runs.back();
      loss_ += executor_->run(
          schedule_, microbatches, [terms] { return at::scalar_tensor(terms, at::kLong); }, last);
      note_routing();
      first_microbatch_ += microbatches.size();
    }
    model_->finish_step();
    if (!runtime::reports_loss(schedule_, mesh_)) loss_.zero_();
    loss_ /= static_cast<double>(terms);
    record_.traffic = comm::subtract(self_.ledger.counts(), before);
    if (!flops) return;
    record_.product_flops = flops->products();
    record_.attention_flops = flops->attentions();
  }

  void finish_step() {
    const at::Tensor squares =
        early_ ? at::full({}, early_squares_, at::kDouble) : optim::sum_of_squares(model_->gradients());
    at::Tensor report = at::stack({loss_, squares});
    mesh_.group(Axis::kWorld).all_reduce(report).wait();
    record_.losses.push_back(report[0].item<double>());
    record_.norms.push_back(std::sqrt(report[1].item<double>()));
    if (balance_) {
      give_counts_back();
      balance_->finish_step();
    }
    if (early_) return;
    const at::Tensor divisor = optim::clip_divisor(report[1].sqrt(), job_.config.training.max_norm);
    optimizer_->step(kLearningRate, {.divisor = divisor, .skip = at::zeros({}, at::kFloat)});
  }

  // Updates one unit in the middle of the backward pass; its gradients are freed afterwards.
  void update_early(const parallel::ShardUnit& unit, size_t first_slot, size_t count) {
    std::vector<at::Tensor> gradients;
    for (const parallel::ShardedParameter& one : unit.parameters()) {
      if (one.primary) gradients.push_back(one.grad);
      if (record_.losses.empty()) record_.gradients.at(one.parameter->fqn).value.copy_(one.grad);
    }
    early_squares_ += optim::sum_of_squares(gradients).item<double>();
    optimizer_->step_slots(first_slot, count, kLearningRate);
  }

  // Called before each piece of work.
  void begins(const pipeline::Action& action) {
    record_.held.push_back(meter_.begin() - at_rest_);
    note_routing();
    if (action.work == pipeline::ComputationType::kForward)
      routing_ = first_microbatch_ + static_cast<size_t>(action.microbatch);
  }

  template <typename Visit>
  void for_each_mixture(const Visit& visit) {
    for (nn::Block* block : model_->blocks()) {
      auto* layer = dynamic_cast<model::DecoderLayer*>(block);
      if (layer != nullptr && layer->moe) visit(*layer->moe);
    }
  }

  void forget_routing() {
    record_.routed.clear();
    for_each_mixture([](nn::MixtureOfExperts& moe) {
      if (moe.tokens_per_expert.defined()) moe.tokens_per_expert.zero_();
    });
  }

  // Assigns the tokens routed since the last call to the last forward pass that began. The counts are plain integers,
  // which the meter does not see.
  void note_routing() {
    for_each_mixture([this](nn::MixtureOfExperts& moe) {
      if (!moe.tokens_per_expert.defined()) return;
      auto* counts = moe.tokens_per_expert.data_ptr<int64_t>();
      auto& of_layer = record_.routed[moe.fqn()];
      of_layer.resize(std::max(of_layer.size(), routing_ + 1), std::vector<int64_t>(moe.num_experts()));
      for (int64_t i = 0; i < moe.num_experts(); ++i) of_layer[routing_][i] += std::exchange(counts[i], 0);
    });
  }

  // Restores the counts that note_routing() took, for the balancing of experts.
  void give_counts_back() {
    for_each_mixture([this](nn::MixtureOfExperts& moe) {
      for (const std::vector<int64_t>& of_microbatch : record_.routed[moe.fqn()]) {
        auto* counts = moe.tokens_per_expert.data_ptr<int64_t>();
        for (size_t i = 0; i < of_microbatch.size(); ++i) counts[i] += of_microbatch[i];
      }
    });
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
  RankRecord record_;
  const comm::DeviceMesh& mesh_;
  AllocationMeter meter_;  // Outlives all tensors that it counts.
  int64_t at_rest_ = 0;
  pipeline::Schedule schedule_;
  std::unique_ptr<runtime::ShardedModel> model_;
  std::optional<runtime::Executor> executor_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<parallel::ExpertBalance> balance_;
  bool early_ = false;  // Units are updated as soon as their gradients are complete.
  double early_squares_ = 0;
  const TableModel& table_;
  const std::unique_ptr<model::Objective> objective_;
  runtime::MicrobatchOptions options_;
  at::Tensor loss_;
  size_t first_microbatch_ = 0;  // First microbatch of the current run, within the step.
  size_t routing_ = 0;           // The microbatch that is being routed.
};

}  // namespace

std::vector<RankRecord> run_mesh_job(const MeshJob& job) {
  const mesh::Mesh mesh = require(runtime::make_mesh(job.config.parallelism, job.world));
  std::vector<RankRecord> records(job.world);
  ThreadWorld world{.degrees = mesh.degrees(), .size = job.world, .axes = runtime::axes_of(mesh), .store = {}};
  if (job.device) {
    world.make_device = [&](int rank, const std::shared_ptr<comm::LocalHub>& hub) {
      return job.device(rank, comm::make_local_device(hub));
    };
  }
  rethrow_cause(run_world(world, [&](ThreadRank& self) { records[self.rank] = RankJob(job, self).run(); }));
  return records;
}

}  // namespace titan::testing
