#include "tests/numerics/mesh_table/rank_share.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>

#include "absl/strings/match.h"
#include "common/plan/config/parallelism.h"
#include "common/plan/models/sizes.h"
#include "worker/rank/runtime/step/parallel_setup.h"

namespace titan::testing {

using mesh::Axis;

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

int64_t Part::numel() const { return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()); }

RankShare::RankShare(const MeshJob& whole, int my_rank, const std::vector<RankRecord>& all)
    : job(whole),
      spec(whole.spec),
      model(table_model(whole.spec)),
      parallelism(whole.config.parallelism),
      records(all),
      mesh(runtime::make_mesh(whole.config.parallelism, whole.world).value()),
      rank(my_rank),
      plan(config::pipeline_plan(whole.config, models::block_names(whole.spec)).value()),
      all_blocks_(models::block_names(whole.spec)) {
  tensor = mesh.size(Axis::kTensor);
  context = mesh.size(Axis::kContext);
  expert = mesh.size(Axis::kExpert);
  pipeline = mesh.size(Axis::kPipeline);
  sequence = parallelism.enable_sequence_parallel;
  asynchronous = tensor > 1 && parallelism.enable_async_tensor_parallel;
  bytes = job.config.training.dtype == "float64" ? 8 : 4;
  apart = expert > 1 && tensor > 1 && mesh.size(Axis::kExpertTensor) == 1;
  const int64_t in_a_step = job.global_batch / mesh.size(Axis::kBatch);
  rows = pipeline > 1 ? parallelism.pipeline_parallel_microbatch_size : job.config.training.local_batch_size;
  microbatches = in_a_step / rows;
  runs = in_a_step / job.config.training.local_batch_size;
  tokens = model.tokens(*this);
  edge_tokens = model.edge_tokens(*this);
  routed_tokens = tokens / (apart ? tensor : 1);
  int layer = 0, tower_layer = 0;
  for (const std::string& name : blocks()) {
    if (is_layer(name) && is_recomputed(is_tower(name) ? tower_layer++ : layer++)) recomputed_.insert(name);
  }
}

size_t RankShare::place_of(const std::string& block) const {
  const std::vector<std::string>& names = all_blocks_.names();
  return static_cast<size_t>(std::find(names.begin(), names.end(), block) - names.begin());
}

bool RankShare::is_layer(const std::string& block) const {
  const size_t place = place_of(block), entry = all_blocks_.entry();
  return place < entry ? place > 0 && place + 1 < entry : place + 1 < all_blocks_.names().size();
}

bool RankShare::is_recomputed(int local_layer) const {
  const auto& ac = job.config.activation_checkpoint;
  if (ac.mode == "none") return false;
  if (ac.mode != "selective" || ac.selective_ac_option == "op") return true;
  const int every = std::stoi(ac.selective_ac_option);
  return every == 0 || (local_layer + 1) % every == 0;
}

std::vector<std::string> RankShare::blocks() const {
  std::vector<std::string> names;
  for (const int stage : plan.schedule.stages_of(mesh.index(rank, Axis::kPipeline))) {
    names.insert(names.end(), plan.split[stage].begin(), plan.split[stage].end());
  }
  return names;
}

bool RankShare::has_one_tied_end() const {
  if (!spec.tied_embeddings || pipeline == 1) return false;
  const std::vector<std::string> names = blocks();
  const auto has = [&](const char* name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  return has("tok_embeddings") != has("output");
}

const std::vector<Part>& RankShare::parts_of(const std::string& block) const {
  const auto [known, is_new] = parts_.try_emplace(block);
  std::vector<Part>& parts = known->second;
  if (!is_new) return parts;
  for (const models::ParameterSpec& one : models::parameters(spec)) {
    if (models::block_of(spec, one.fqn) == block) parts.push_back(model.cut(*this, one));
  }
  return parts;
}

std::vector<Unit> RankShare::units_of(const std::vector<Part>& parts) const {
  std::vector<Part> dense, experts;
  for (const Part& part : parts) (part.expert && expert > 1 ? experts : dense).push_back(part);
  int64_t total = 0;
  size_t heaviest = 0;
  for (size_t i = 0; i < dense.size(); ++i) {
    total += dense[i].numel();
    if (dense[i].numel() > dense[heaviest].numel()) heaviest = i;
  }
  std::vector<Unit> units;
  if (dense.size() > 1 && 2 * dense[heaviest].numel() > total) {
    units.push_back({{dense[heaviest]}});
    dense.erase(dense.begin() + static_cast<int64_t>(heaviest));
  }
  if (!dense.empty()) units.push_back({dense});
  if (!experts.empty()) units.push_back({experts, /*experts=*/true});
  return units;
}

int64_t RankShare::shard_ranks(const Part& part) const {
  return mesh.size(part.expert && expert > 1 ? Axis::kExpertFsdp : Axis::kFsdp);
}

int64_t RankShare::shard_dim(const Part& part) const {
  return part.expert && expert > 1 && shard_ranks(part) > part.shape[0] ? 1 : 0;
}

int64_t RankShare::padded(const Part& part) const {
  const int64_t count = part.shape[shard_dim(part)];
  return ceil_div(count, shard_ranks(part)) * (part.numel() / count);
}

int64_t RankShare::received(const std::string& layer, int64_t microbatch) const {
  const int64_t each = spec.moe->num_experts / expert;
  const int64_t first = each * mesh.index(rank, Axis::kExpert);
  int64_t count = 0;
  for (const int other : mesh.group(rank, Axis::kExpert)) {
    const std::vector<int64_t>& counts = records[other].routed.at(layer + ".moe").at(microbatch);
    count += std::accumulate(counts.begin() + first, counts.begin() + first + each, int64_t{0});
  }
  return count;
}

}  // namespace titan::testing
