#include "worker/rank/runtime/dry_run/dry_run.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "common/plan/config/parallelism.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/models/sizes.h"
#include "common/plan/pipeline/draw.h"
#include "common/plan/pipeline/simulator.h"
#include "worker/rank/comm/fake_backend.h"
#include "worker/rank/comm/local_store.h"
#include "worker/rank/model/registry.h"
#include "worker/rank/nn/meta_kernels.h"
#include "worker/rank/parallel/expert_balance.h"
#include "worker/rank/parallel/qk_clip.h"
#include "worker/rank/runtime/dry_run/meta_tensors.h"
#include "worker/rank/runtime/engine/executor.h"
#include "worker/rank/runtime/failure/failure.h"
#include "worker/rank/runtime/step/batch_plan.h"
#include "worker/rank/runtime/step/job_model.h"
#include "worker/rank/runtime/step/optimizer_setup.h"
#include "worker/rank/runtime/step/parallel_setup.h"
#include "worker/rank/runtime/step/step_report.h"
#include "worker/rank/trace/flop_counter.h"

namespace titan::runtime {

using nlohmann::ordered_json;
using rank_protocol::kExitBadConfig;

namespace {

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

// Activations between blocks that are kept for the backward pass: the input of every block except the model's
// input, while a microbatch is in the stage. Follows the schedule's order.
class BlockEdges {
 public:
  BlockEdges(const pipeline::Schedule& schedule, int rank, std::map<int, int64_t> bytes_of_stage)
      : bytes_of_stage_(std::move(bytes_of_stage)) {
    for (const pipeline::ScheduleStep& step : schedule.steps[rank]) {
      for (const pipeline::Action& action : step.actions) follow(action);
    }
  }
  int64_t peak() const { return peak_; }

 private:
  void follow(const pipeline::Action& action) {
    using pipeline::ComputationType;
    if (action.work == ComputationType::kForward) live_ += bytes_of_stage_.at(action.stage);
    if (action.work == ComputationType::kBackward || action.work == ComputationType::kInputGradient)
      live_ -= bytes_of_stage_.at(action.stage);
    peak_ = std::max(peak_, live_);
  }

  std::map<int, int64_t> bytes_of_stage_;
  int64_t live_ = 0;
  int64_t peak_ = 0;
};

// Prints the progress of a long dry run to stderr, because it executes every one of many microbatches.
class DryRunProgress {
 public:
  explicit DryRunProgress(int64_t actions) : actions_(actions) {}
  void next() {
    const auto now = std::chrono::steady_clock::now();
    ++begun_;
    if (now - reported_ < std::chrono::seconds(5)) return;
    reported_ = now;
    const double seconds = std::chrono::duration<double>(now - began_).count();
    const double share = static_cast<double>(begun_) / static_cast<double>(actions_);
    std::fprintf(stderr, "dry run: %.0f %% after %.0f s, about %.0f s more\n", 100 * share, seconds,
                 seconds / share - seconds);
  }

 private:
  const int64_t actions_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point reported_ = began_;
  int64_t begun_ = 0;
};

// One rank without peers, from its model to the end of one step.
class DryRun {
 public:
  DryRun(const RankJob& job, const std::optional<models::ModelSpec>& spec)
      : job_(job), given_spec_(spec), config_(job.config), device_(comm::make_fake_device()), shape_(checked_mesh()) {
    check(check_communicators(config_, shape_, job.rank), kExitBadConfig, "MESH");
    mesh_.emplace(shape_, axes_of(shape_, config_.optimizer), *device_, ledger_,
                  comm::DeviceMeshOptions{.rank = job.rank, .store = c10::make_intrusive<comm::LocalStore>()});
  }

  ordered_json run() {
    const auto began = std::chrono::steady_clock::now();
    build();
    const int64_t standing = meta_memory().live_bytes;
    // The first pass of a layer, which saves nothing, plans a memory budget. All later steps are like the second.
    if (config_.activation_checkpoint.mode == "memory_budget") step();
    const comm::LedgerCounts before = ledger_.counts();
    step();
    ordered_json result = describe_rank();
    result["parameters"] = parameters();
    result["bytes"] = bytes(standing);
    result["flops"] = {{"products", flops_.products}, {"attention", flops_.attentions}, {"encoders", flops_.encoders}};
    result["collectives"] = ordered_json::object();
    for (const auto& [key, entry] : comm::subtract(ledger_.counts(), before)) {
      result["collectives"][key] = {{"calls", entry.calls}, {"bytes", entry.bytes}};
    }
    result["schedule"] = schedule();
    result["activations"] = activations();  // Last, because it leaves microbatches without a backward pass.
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
    result["seconds"] = seconds.count();
    return result;
  }

 private:
  mesh::Mesh checked_mesh() const { return value(make_mesh(config_.parallelism, job_.world), kExitBadConfig, "MESH"); }

  models::ModelSpec spec_of_config() const {
    return value(model::find_spec(config_.model, config_.experimental.custom_import), kExitBadConfig, "MODEL");
  }

  void build() {
    check(load_job_library(config_), kExitBadConfig, "LIBRARY");
    spec_ = given_spec_ ? *given_spec_ : spec_of_config();
    plan_ = value(config::pipeline_plan(config_, models::block_names(spec_)), kExitBadConfig, "PIPELINE");
    batches_ = value(plan_batch(config_.training.global_batch_size, config_.training.local_batch_size,
                                shape_.size(mesh::Axis::kBatch)),
                     kExitBadConfig, "BATCH_SIZE");
    objective_ = model::make_objective(spec_);
    check(objective_->prepare_shapes(config_, {.mesh = *mesh_, .device = device_->torch_device()}), kExitBadConfig,
          "OBJECTIVE");
    model::Model model = value(build_model(config_, spec_, config_.training.seq_len, *mesh_), kExitBadConfig, "MODEL");
    edge_size_ = [input = model.input, rows = model.edge_rows,
                  length = model.edge_length](const nn::MicrobatchContext& context) {
      return (rows ? rows(context) : input(context).size(0)) * length(context);
    };
    sharding_ = value(sharding_options(config_, spec_, plan_, *mesh_), kExitBadConfig, "SHARDING");
    sharding_.cpu_offload = false;  // Copies to the host need values. describe_rank() reports the offload.
    model_ = value(ShardedModel::create(std::move(model), sharding_, *mesh_, *device_), kExitBadConfig, "MODEL");
    if (sharding_.early_step) model_->update_early([](const parallel::ShardUnit&, size_t, size_t) {});
    if (spec_.moe) balance_.emplace(model_->blocks(), spec_.moe->load_balance_coeff, *mesh_, device_->torch_device());
    rules_ = value(update_rules_of(config_.optimizer, *model_), kExitBadConfig, "PARAM_GROUPS");
    optimizer_ = build_optimizer(config_, rules_, *model_, *mesh_, *device_);
    if (config_.optimizer.qk_clip > 0) {
      qk_clip_ = value(parallel::QkClip::create(model_->blocks(), model_->parameters(), config_.optimizer.qk_clip,
                                                *mesh_, device_->torch_device()),
                       kExitBadConfig, "QK_CLIP");
    }
  }

  // Runs the operations of Trainer::run_step() without its values.
  void step() {
    reset_meta_peak();
    const auto on_device = at::TensorOptions().device(device_->torch_device());
    const MicrobatchOptions options = microbatch_options(config_, spec_, *mesh_, device_->torch_device());
    const data::Batch rows = objective_->example(config_, batches_.local_batch);
    trace::FlopCounter flops;
    std::vector<std::vector<nn::MicrobatchContext>> runs;
    for (int64_t i = 0; i < batches_.microbatches; ++i)
      runs.push_back(make_microbatches(*objective_, rows, options).contexts);
    first_ = runs.front().front();
    flops_.encoders = flops.total();
    flops.reset();
    const comm::Group& neighbours = mesh_->group(mesh::Axis::kPipeline);
    int64_t actions = 0;
    for (const pipeline::ScheduleStep& step : plan_.schedule.steps[neighbours.rank()])
      actions += static_cast<int64_t>(step.actions.size());
    DryRunProgress progress(actions * batches_.microbatches);
    Executor executor(model_->stages(), &neighbours, [&](const pipeline::Action&) { progress.next(); });
    mesh_->group(mesh::Axis::kLoss).all_reduce(at::empty({1}, on_device.dtype(at::kLong))).wait();
    const auto terms = [&] { return at::empty({}, on_device.dtype(at::kLong)); };
    model_->reset_gradients();
    model_->prepare_gathers();
    for (size_t i = 0; i < runs.size(); ++i)
      executor.run(plan_.schedule, runs[i], terms, /*last=*/i + 1 == runs.size());
    model_->finish_step();
    const int64_t products = flops.products(), attentions = flops.attentions();  // Without those of the optimizer.
    const comm::Group& world = mesh_->group(mesh::Axis::kWorld);
    const auto report = on_device.dtype(at::kDouble);
    world.all_reduce(at::empty({kReportSums}, report)).wait();
    world.all_reduce(at::empty({1}, report), c10d::ReduceOp::MAX).wait();
    if (balance_) balance_->finish_step();
    if (rules_.use("Muon")) optimizer_->step(1);  // Muon exchanges matrices. Other optimizers' steps send nothing.
    if (qk_clip_) qk_clip_->finish_step();
    flops_.products = products;
    flops_.attentions = attentions;
  }

  ordered_json describe_rank() const {
    const mesh::Coordinate place = shape_.coordinate(job_.rank);
    return {{"rank", job_.rank},
            {"world", job_.world},
            {"model", spec_.name},
            {"flavor", spec_.flavor},
            {"coordinate",
             {{"pp", place.pp},
              {"dp_replicate", place.dp_replicate},
              {"dp_shard", place.dp_shard},
              {"cp", place.cp},
              {"tp", place.tp}}},
            {"shards_on_host", config_.training.enable_cpu_offload}};
  }

  ordered_json parameters() {
    int64_t here = 0, shard = 0, trained = 0;
    for (const nn::Block* block : model_->blocks()) {
      for (const nn::Parameter& parameter : const_cast<nn::Block*>(block)->parameters()) {
        here += c10::multiply_integers(parameter.shape);
      }
    }
    for (const auto* placed : model_->parameters()) shard += c10::multiply_integers(placed->shape());
    for (const auto* placed : model_->trained()) trained += placed->value.numel();
    return {{"model", models::parameter_count(spec_)}, {"here", here}, {"shard", shard}, {"trained", trained}};
  }

  ordered_json bytes(int64_t standing) {
    int64_t parameters = 0, gradients = 0, optimizer = 0, buffers = 0;
    for (const auto* placed : model_->parameters()) {
      parameters += bytes_of(placed->value);
      if (placed->parameter->frozen) continue;
      if (placed->grad.storage().nbytes() > 0) gradients += bytes_of(placed->grad);  // Otherwise already freed.
    }
    for (const optim::SlotState& state : optimizer_->states()) optimizer += state.bytes();
    for (nn::Block* block : model_->blocks()) {
      for (const nn::Buffer& buffer : block->buffers()) buffers += buffer.value.defined() ? bytes_of(buffer.value) : 0;
    }
    return {{"parameters", parameters},        {"gradients", gradients},
            {"optimizer", optimizer},          {"buffers", buffers},
            {"block_edges", block_edges()},    {"standing", standing},
            {"peak", meta_memory().peak_bytes}};
  }

  int64_t block_edges() {
    const bool splits = config_.parallelism.enable_sequence_parallel && !spec_.flux;
    const int ranks = sharding_.pipeline ? static_cast<int>(sharding_.pipeline->sequence_ranks)
                                         : (splits ? shape_.size(mesh::Axis::kTensor) : 1);
    const int64_t edge =
        edge_size_(first_) / ranks * spec_.dim * static_cast<int64_t>(c10::elementSize(sharding_.precision.param));
    std::map<int, int64_t> bytes;
    for (const auto& [index, stage] : model_->stages()) {
      const auto blocks = static_cast<int64_t>(dynamic_cast<const Stage&>(*stage).blocks().size());
      bytes[index] = (blocks - (index == 0 ? 1 : 0)) * edge;
    }
    return BlockEdges(plan_.schedule, mesh_->group(mesh::Axis::kPipeline).rank(), std::move(bytes)).peak();
  }

  // Returns the bytes that each stage of this rank holds for one microbatch until its backward pass: the increase from
  // a first to a second microbatch, when the weights are gathered and a memory budget is planned.
  ordered_json activations() {
    ordered_json result = ordered_json::object();
    model_->reset_gradients();
    for (const auto& [index, stage] : model_->stages()) {
      int64_t before = 0;
      for (const int microbatch : {0, 1}) {
        before = meta_memory().live_bytes;
        at::Tensor input = index == 0 ? at::Tensor() : stage->empty_input(first_);
        stage->expect_forward();
        stage->forward(microbatch, first_, std::move(input));
      }
      result[std::to_string(index)] = meta_memory().live_bytes - before;
    }
    return result;
  }

  ordered_json schedule() {
    const pipeline::Schedule& schedule = plan_.schedule;
    const pipeline::Simulation times = value(pipeline::simulate(schedule), kExitBadConfig, "PIPELINE");
    const int rank = mesh_->group(mesh::Axis::kPipeline).rank();
    return {{"name", schedule.name},
            {"ranks", schedule.ranks},
            {"stages", schedule.stages},
            {"microbatches", schedule.microbatches},
            {"runs", batches_.microbatches},
            {"bubble", times.bubble},
            {"peak_activations", times.ranks[rank].peak_activations},
            {"stages_here", schedule.stages_of(rank)},
            {"text", schedule.ranks > 1 ? pipeline::draw_text(schedule, times, {.width = 160}) : ""}};
  }

  const RankJob& job_;
  const std::optional<models::ModelSpec>& given_spec_;
  const config::JobConfig& config_;
  const std::unique_ptr<device::Device> device_;
  comm::Ledger ledger_;
  const mesh::Mesh shape_;
  std::optional<comm::DeviceMesh> mesh_;
  models::ModelSpec spec_;
  pipeline::PipelinePlan plan_;
  BatchPlan batches_;
  ShardingOptions sharding_;
  std::unique_ptr<ShardedModel> model_;
  std::optional<parallel::ExpertBalance> balance_;
  config::UpdateRules rules_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<parallel::QkClip> qk_clip_;
  std::unique_ptr<model::Objective> objective_;
  std::function<int64_t(const nn::MicrobatchContext&)> edge_size_;  // Rows times length of an activation.
  nn::MicrobatchContext first_;
  struct Flops {
    int64_t products = 0, attentions = 0, encoders = 0;
  } flops_;  // Counts of the last step.
};

}  // namespace

ordered_json dry_run(const RankJob& job, const std::optional<models::ModelSpec>& spec) {
  use_meta_memory();
  nn::use_meta_kernels();
  use_fused_meta_norm(job.config.resources.device == "cuda");
  return DryRun(job, spec).run();
}

}  // namespace titan::runtime
