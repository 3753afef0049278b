#include "common/memory/units.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "common/config/low_precision.h"
#include "common/models/sizes.h"

namespace titan::memory {
namespace {

using mesh::Axis;

// One parameter after the tensor and expert axes.
struct Part {
  std::vector<int64_t> shape;
  bool expert = false;
  bool float8 = false;  // Gathered as that.

  int64_t numel() const { return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()); }
};

bool ends_with_any(const std::string& name, std::initializer_list<const char*> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](const char* ending) { return absl::EndsWith(name, ending); });
}

// Columns are outputs of a matrix, dim 0; rows its inputs, dim 1.
bool splits_columns(const std::string& name) {
  return name == "output.weight" ||
         ends_with_any(name, {"wq.weight", "wk.weight", "wv.weight", "wq.bias", "wk.bias", "wv.bias", "sinks",
                              "wq_b.weight", "wkv_b.weight", ".w1.weight", ".w3.weight", "tok_embeddings.weight"});
}
bool splits_rows(const std::string& name) { return ends_with_any(name, {"wo.weight", ".w2.weight"}); }

Part cut(const models::Tensor& tensor, const mesh::Mesh& mesh) {
  Part part{tensor.shape, tensor.role == models::Role::kExpert};
  const int64_t expert = mesh.size(Axis::kExpert);
  const int64_t tensor_ranks = part.expert && expert > 1 ? mesh.size(Axis::kExpertTensor) : mesh.size(Axis::kTensor);
  const std::string& name = tensor.fqn;
  if (part.expert) {
    part.shape[0] /= expert;
    if (ends_with_any(name, {".w1", ".w3", "mlp1_weight", "mlp1_bias"})) part.shape[1] /= tensor_ranks;
    if (ends_with_any(name, {".w2", "mlp2_weight"})) part.shape[2] /= tensor_ranks;
  } else if (splits_columns(name)) {
    part.shape[0] /= tensor_ranks;
  } else if (splits_rows(name)) {
    part.shape[1] /= tensor_ranks;
  }
  return part;
}

Unit unit_of(const std::vector<Part>& parts, int64_t ranks) {
  Unit unit{.ranks = ranks, .float8 = parts.front().float8};
  // More ranks than experts: every expert's matrices are cut along their own rows instead.
  const size_t dim = parts.front().expert && ranks > parts.front().shape[0] ? 1 : 0;
  for (const Part& part : parts) {
    const int64_t rows = part.shape[dim];
    unit.whole += part.numel();
    unit.shard += (rows + ranks - 1) / ranks * (part.numel() / rows);
  }
  unit.direct = ranks > 1 && parts.size() == 1 && dim == 0;
  return unit;
}

// One parameter that outweighs all others together is a unit of its own.
void add_dense_units(std::vector<Part> parts, int64_t ranks, std::vector<Unit>& units) {
  const auto heaviest =
      std::max_element(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.numel() < b.numel(); });
  int64_t total = 0;
  for (const Part& part : parts) total += part.numel();
  if (parts.size() > 1 && 2 * heaviest->numel() > total) {
    units.push_back(unit_of({*heaviest}, ranks));
    parts.erase(heaviest);
  }
  if (!parts.empty()) units.push_back(unit_of(parts, ranks));
}

// Experts on a mesh of their own have a unit of their own, and what is gathered as float8 has others than numbers.
std::vector<Unit> units_of(std::vector<Part> parts, const mesh::Mesh& mesh) {
  const auto first_expert = std::stable_partition(
      parts.begin(), parts.end(), [&](const Part& part) { return !part.expert || mesh.size(Axis::kExpert) == 1; });
  const std::vector<Part> experts(first_expert, parts.end());
  parts.erase(first_expert, parts.end());
  std::vector<Unit> units;
  const int64_t ranks = mesh.size(Axis::kFsdp);
  const auto first_float8 =
      std::stable_partition(parts.begin(), parts.end(), [](const Part& part) { return !part.float8; });
  add_dense_units({parts.begin(), first_float8}, ranks, units);
  add_dense_units({first_float8, parts.end()}, ranks, units);
  if (!experts.empty()) units.push_back(unit_of(experts, mesh.size(Axis::kExpertFsdp)));
  return units;
}

}  // namespace

std::map<std::string, std::vector<Unit>> units_of_blocks(const config::JobConfig& config, const models::ModelSpec& spec,
                                                         const mesh::Mesh& mesh) {
  std::map<std::string, std::vector<Part>> parts;
  for (const models::Tensor& tensor : models::parameters(spec)) {
    Part part = cut(tensor, mesh);
    part.float8 = mesh.size(Axis::kFsdp) > 1 && config::gathered_as_float8(config, tensor.fqn, tensor.shape);
    parts[models::block_of(tensor.fqn)].push_back(std::move(part));
  }
  std::map<std::string, std::vector<Unit>> units;
  for (auto& [block, all] : parts) units[block] = units_of(std::move(all), mesh);
  return units;
}

}  // namespace titan::memory
