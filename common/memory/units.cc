#include "common/memory/units.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "common/config/update_rules.h"
#include "common/memory/state_blocks.h"
#include "common/models/sizes.h"

namespace titan::memory {
namespace {

using mesh::Axis;

// One parameter after the tensor and expert axes.
struct Part {
  std::vector<int64_t> shape;
  bool expert = false;
  bool coded = false;  // Adam's 8-bit states are codes.
  bool muon = false;

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
  Part part{tensor.shape, tensor.role == models::Role::kExpert, has_codes(tensor.shape), false};
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

// Bytes of one 8-bit state of a rank's rows of a part.
int64_t coded_bytes(const Part& part, int64_t shard) {
  if (!part.coded) return shard * 4;
  const int64_t columns = part.shape.back();
  return code_bytes(shard / columns, 0, columns);
}

Unit unit_of(const std::vector<Part>& parts, int64_t ranks) {
  Unit unit{.ranks = ranks};
  // More ranks than experts: every expert's matrices are cut along their own rows instead.
  const size_t dim = parts.front().expert && ranks > parts.front().shape[0] ? 1 : 0;
  for (const Part& part : parts) {
    const int64_t rows = part.shape[dim];
    unit.whole += part.numel();
    const int64_t shard = (rows + ranks - 1) / ranks * (part.numel() / rows);
    unit.shard += shard;
    if (part.muon) {
      unit.muon += shard;
    } else {
      unit.coded += coded_bytes(part, shard);
    }
  }
  unit.direct = ranks > 1 && parts.size() == 1 && dim == 0;
  return unit;
}

// One parameter that outweighs all others together is a unit of its own; so are experts on a mesh of their own.
std::vector<Unit> units_of(std::vector<Part> parts, const mesh::Mesh& mesh) {
  const auto first_expert = std::stable_partition(
      parts.begin(), parts.end(), [&](const Part& part) { return !part.expert || mesh.size(Axis::kExpert) == 1; });
  const std::vector<Part> experts(first_expert, parts.end());
  parts.erase(first_expert, parts.end());
  std::vector<Unit> units;
  const int64_t ranks = mesh.size(Axis::kFsdp);
  const auto heaviest =
      std::max_element(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.numel() < b.numel(); });
  int64_t total = 0;
  for (const Part& part : parts) total += part.numel();
  if (parts.size() > 1 && 2 * heaviest->numel() > total) {
    units.push_back(unit_of({*heaviest}, ranks));
    parts.erase(heaviest);
  }
  if (!parts.empty()) units.push_back(unit_of(parts, ranks));
  if (!experts.empty()) units.push_back(unit_of(experts, mesh.size(Axis::kExpertFsdp)));
  return units;
}

}  // namespace

std::map<std::string, std::vector<Unit>> units_of_blocks(const models::ModelSpec& spec, const mesh::Mesh& mesh,
                                                         const config::Optimizer& optimizer) {
  std::map<std::string, std::vector<Part>> parts;
  const std::vector<models::Tensor> tensors = models::parameters(spec);
  const config::UpdateRules rules = config::update_rules(optimizer, tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    Part part = cut(tensors[i], mesh);
    part.muon = rules.rules[rules.of[i]].name == "Muon";
    parts[models::block_of(tensors[i].fqn)].push_back(std::move(part));
  }
  std::map<std::string, std::vector<Unit>> units;
  for (auto& [block, all] : parts) units[block] = units_of(std::move(all), mesh);
  return units;
}

int64_t muon_round(const models::ModelSpec& spec, const mesh::Mesh& mesh, const config::Optimizer& optimizer) {
  constexpr int64_t kRound = 1 << 24;  // optim::MatrixMesh::round_elements
  const std::vector<models::Tensor> tensors = models::parameters(spec);
  const config::UpdateRules rules = config::update_rules(optimizer, tensors);
  const int64_t ranks = mesh.size(Axis::kHolders);
  int64_t largest = 0, total = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (rules.rules[rules.of[i]].name != "Muon") continue;
    const int64_t matrices = tensors[i].shape.size() == 3 ? tensors[i].shape[0] : 1;
    largest = std::max(largest, (matrices + ranks - 1) / ranks * (tensors[i].numel() / matrices));
    total += tensors[i].numel();
  }
  return std::max(largest, std::min(kRound, total / mesh.size(Axis::kPipeline) / ranks));
}

}  // namespace titan::memory
