#include "worker/rank/tools/generate/rank_model.h"

#include <ATen/Parallel.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/saving/staging.h"
#include "worker/rank/checkpoint/shards/step_reader.h"
#include "worker/rank/checkpoint/shards/tensor_view.h"
#include "worker/rank/comm/local_backend.h"
#include "worker/rank/comm/make_device.h"
#include "worker/rank/model/model.h"
#include "worker/rank/tools/adapter_export.h"

namespace titan::tools {
namespace {

absl::StatusOr<std::unique_ptr<device::Device>> device_of(const RankOptions& options, int rank,
                                                          const std::shared_ptr<comm::LocalHub>& hub) {
  if (options.device == "cpu") return comm::make_local_device(hub);
  return comm::make_device(options.device, rank);
}

absl::Status run_rank(const RankOptions& options, int rank, const mesh::Mesh& shape,
                      const std::shared_ptr<comm::LocalHub>& hub,
                      const std::function<absl::Status(device::Device&, const comm::DeviceMesh&)>& body) {
  const int all = options.threads > 0 ? options.threads : static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(std::max(1, all / options.tensor_ranks));
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<device::Device> device, device_of(options, rank, hub));
  comm::Ledger ledger;
  const comm::DeviceMesh mesh(shape, {mesh::kAllAxes.begin(), mesh::kAllAxes.end()}, *device, ledger,
                              {.rank = rank, .store = hub->store()});
  return body(*device, mesh);
}

// Adds the step's adapters to this rank's pieces of the weights.
absl::Status add_adapters(const AdapterStep& adapters, std::vector<checkpoint::Slice>& slices) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<checkpoint::StepReader> step,
                         checkpoint::StepReader::open(adapters.files, adapters.path));
  const at::NoGradGuard no_grad;
  for (checkpoint::Slice& slice : slices) {
    if (!checkpoint::is_model(slice) || slice.local.numel() == 0) continue;
    TITAN_ASSIGN_OR_RETURN(const at::Tensor delta,
                           adapter_delta(*step, slice.key.substr(std::string_view("model.").size()), slice.shape));
    if (!delta.defined()) continue;
    const checkpoint::Box piece{slice.offset, slice.size()};
    const at::Tensor mine = checkpoint::part_of(delta, checkpoint::whole(slice.shape), piece);
    slice.local.copy_(slice.local.to(at::kDouble).add(mine.to(slice.local.device(), at::kDouble)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankModel>> RankModel::load(storage::Files& files, const ModelSource& source,
                                                           const RankOptions& options, device::Device& device,
                                                           const comm::DeviceMesh& mesh) {
  TITAN_ASSIGN_OR_RETURN(
      model::Model model,
      model::build(source.spec, {.seq_len = source.seq_len > 0 ? source.seq_len : source.spec.max_seq_len,
                                 .longest_row = options.longest_row}));
  if (model.parallelize) {
    TITAN_RETURN_IF_ERROR(model.parallelize(model, {.mesh = &mesh, .sequence_parallel = false}));
  } else if (options.tensor_ranks > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tensor-parallel ", options.tensor_ranks, ": ", source.spec.name, " cannot be split"));
  }
  runtime::ShardingOptions sharding{.precision = {options.dtype, options.dtype, options.dtype}};
  sharding.reshard_after_forward = "never";
  std::unique_ptr<RankModel> made(new RankModel(mesh, source.spec.vocab_size));
  TITAN_ASSIGN_OR_RETURN(made->model_, runtime::ShardedModel::create(std::move(model), sharding, mesh, device));
  std::vector<checkpoint::Slice> slices = made->model_->slices(nullptr);
  TITAN_ASSIGN_OR_RETURN(
      checkpoint::StagedLoad staged,
      checkpoint::stage_load(files, source.candidate, slices, {}, source.mapper.get(), checkpoint::StepReading::kFill));
  if (!staged.unclaimed.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(source.candidate.path, " has ", staged.unclaimed.front(),
                                                      ", which ", source.spec.name, " ", source.spec.flavor, " lacks"));
  }
  checkpoint::fill_slices(slices, staged);
  if (source.adapters) TITAN_RETURN_IF_ERROR(add_adapters(*source.adapters, slices));
  made->model_->prepare_gathers();
  return made;
}

std::vector<generate::Generation> RankModel::generate(const std::vector<std::vector<int64_t>>& prompts,
                                                      generate::GeneratorOptions options) {
  options.device = model_->device();
  const generate::Forward forward =
      generate::forward_through([this](at::Tensor x, const auto& pass) { return model_->visit(std::move(x), pass); },
                                model_->blocks().back(), vocabulary_, mesh_.group(mesh::Axis::kTensor));
  return generate::generate(forward, model_->blocks(), prompts, options);
}

model::WholeModel RankModel::whole() {
  return {.visit = [this](at::Tensor x, const auto& pass) { return model_->visit(std::move(x), pass); },
          .blocks = model_->blocks(),
          .device = model_->device()};
}

absl::Status run_ranks(const RankOptions& options,
                       const std::function<absl::Status(device::Device&, const comm::DeviceMesh&)>& body) {
  TITAN_ASSIGN_OR_RETURN(const mesh::Mesh shape,
                         mesh::Mesh::create({.tp = options.tensor_ranks}, options.tensor_ranks));
  const auto hub = std::make_shared<comm::LocalHub>();
  std::vector<absl::Status> ended(static_cast<size_t>(options.tensor_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.tensor_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      absl::Status& status = ended[static_cast<size_t>(rank)];
      try {
        status = run_rank(options, rank, shape, hub, body);
      } catch (const comm::PeerLost& lost) {
        status = absl::UnavailableError(comm::describe(lost));
      } catch (const std::exception& failure) {
        status = absl::InternalError(comm::describe(failure));
      }
      if (!status.ok()) hub->fail(absl::StrCat("rank ", rank, " failed: ", std::string(status.message())));
    });
  }
  for (std::thread& thread : threads) thread.join();
  absl::Status worst;
  for (const absl::Status& status : ended) {
    if (!status.ok() && (worst.ok() || absl::IsUnavailable(worst))) worst = status;
  }
  return worst;
}

}  // namespace titan::tools
