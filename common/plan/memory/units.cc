#include "common/plan/memory/units.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "common/plan/config/low_precision.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/config/update_rules.h"
#include "common/plan/memory/state_blocks.h"
#include "common/plan/memory/tower.h"
#include "common/plan/models/flux.h"
#include "common/plan/models/sizes.h"

namespace titan::memory {
namespace {

using mesh::Axis;

// One parameter after the tensor and expert axes have split it.
struct Part {
  std::vector<int64_t> shape;
  bool expert = false;
  ParameterKind kind = ParameterKind::kTrained;
  bool coded = false;  // Adam's states are 8-bit codes.
  bool muon = false;
  bool float8 = false;  // Gathered as float8.

  int64_t numel() const { return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()); }
};

bool ends_with_any(const std::string& name, std::initializer_list<const char*> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](const char* ending) { return absl::EndsWith(name, ending); });
}

// Whether tensor parallelism splits the outputs (dim 0, colwise) or the inputs (dim 1, rowwise) of a matrix.
bool splits_columns(const std::string& name) {
  return name == "output.weight" ||
         ends_with_any(name,
                       {"wq.weight", "wk.weight", "wv.weight", "wq.bias", "wk.bias", "wv.bias", "sinks", "wq_b.weight",
                        "wkv_b.weight", ".w1.weight", ".w3.weight", ".w1.bias", ".w3.bias", "tok_embeddings.weight"});
}
// Whether the parameter is a norm over all heads, which are split over the ranks.
bool is_whole_norm(const models::ModelSpec& spec, const std::string& name) {
  return spec.qk_norm_whole && ends_with_any(name, {".q_norm.weight", ".k_norm.weight"});
}
bool splits_rows(const std::string& name) { return ends_with_any(name, {"wo.weight", ".w2.weight"}); }

// `in_tower`: it belongs to a vision tower, which every tensor rank has as a whole.
Part cut(const models::ModelSpec& spec, const models::ParameterSpec& tensor, const mesh::Mesh& mesh,
         bool in_tower = false) {
  Part part{.shape = tensor.shape,
            .expert = tensor.role == models::ParameterRole::kExpert,
            .coded = has_8bit_states(tensor.shape)};
  const int64_t expert = mesh.size(Axis::kExpert);
  const int64_t tensor_ranks = part.expert && expert > 1 ? mesh.size(Axis::kExpertTensor) : mesh.size(Axis::kTensor);
  const std::string& name = tensor.fqn;
  if (in_tower) return part;
  if (spec.flux) {
    if (const auto dim = models::flux_tensor_dim(name)) part.shape[*dim] /= tensor_ranks;
  } else if (part.expert) {
    part.shape[0] /= expert;
    if (ends_with_any(name, {".w1", ".w3", "mlp1_weight", "mlp1_bias"})) part.shape[1] /= tensor_ranks;
    if (ends_with_any(name, {".w2", "mlp2_weight"})) part.shape[2] /= tensor_ranks;
  } else if (splits_columns(name) || is_whole_norm(spec, name)) {
    part.shape[0] /= tensor_ranks;
  } else if (splits_rows(name)) {
    part.shape[1] /= tensor_ranks;
  }
  return part;
}

// Returns the names of the parameters that Muon updates.
std::set<std::string> of_muon(const models::ModelSpec& spec, const config::OptimizerSection& optimizer,
                              const std::optional<models::AdapterSpec>& adapters) {
  const std::vector<models::ParameterSpec> trained = models::trained_tensors(spec, adapters);
  const config::UpdateRules rules = config::update_rules(optimizer, trained);
  std::set<std::string> names;
  for (size_t i = 0; i < trained.size(); ++i) {
    if (rules.rules[rules.of[i]].name == "Muon") names.insert(trained[i].fqn);
  }
  return names;
}

// Returns the matrices of a layer's adapter, split as its weight is.
std::vector<Part> adapter_parts(const models::ModelSpec& spec, const models::ParameterSpec& weight,
                                const mesh::Mesh& mesh, const models::AdapterSpec& adapters,
                                const std::set<std::string>& muon) {
  const Part part = cut(spec, weight, mesh);
  const std::string layer = models::layer_of(weight.fqn);
  std::vector<Part> both;
  for (const bool is_b : {false, true}) {
    const auto narrow = [&](std::vector<int64_t> shape) {
      shape[shape.size() - (is_b ? 1 : 2)] = adapters.rank;
      return shape;
    };
    both.push_back({.shape = narrow(part.shape),
                    .expert = part.expert,
                    .coded = has_8bit_states(narrow(weight.shape)),
                    .muon = muon.contains(is_b ? models::adapter_b(layer) : models::adapter_a(layer))});
  }
  return both;
}

void freeze(Part& part, bool packs) {
  part.kind = packs ? ParameterKind::kPacked : ParameterKind::kFrozen;
  if (packs) part.shape[1] = models::nf4_row_bytes(part.shape[1]);
}

// Returns the bytes of one 8-bit state for a rank's rows of a part, or of a float32 state if the part has no codes.
int64_t coded_bytes(const Part& part, int64_t shard) {
  if (!part.coded) return shard * 4;
  const int64_t columns = part.shape.back();
  return quantized_state_bytes(shard / columns, 0, columns);
}

Unit unit_of(const std::vector<Part>& parts, int64_t ranks) {
  Unit unit{.kind = parts.front().kind, .ranks = ranks, .float8 = parts.front().float8};
  // With more ranks than experts, every expert's matrices are sharded along their rows instead.
  const size_t dim = parts.front().expert && ranks > parts.front().shape[0] ? 1 : 0;
  for (const Part& part : parts) {
    const int64_t rows = part.shape[dim];
    unit.whole += part.numel();
    const int64_t shard = (rows + ranks - 1) / ranks * (part.numel() / rows);
    unit.shard += shard;
    if (part.muon) {
      unit.muon += shard;
    } else if (part.kind == ParameterKind::kTrained) {
      unit.coded += coded_bytes(part, shard);
    }
  }
  unit.direct = ranks > 1 && parts.size() == 1 && dim == 0;
  return unit;
}

// Adds the parts as one unit. A parameter larger than all others of its kind together becomes a separate unit.
void add_units(std::vector<Part> parts, int64_t ranks, std::vector<Unit>& units) {
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

// Returns the units of a block. Experts on a separate mesh, each kind, and weights gathered as float8 form separate
// units.
std::vector<Unit> units_of(const std::vector<Part>& parts, const mesh::Mesh& mesh) {
  constexpr std::pair<ParameterKind, bool> kKinds[] = {{ParameterKind::kFrozen, false},
                                                       {ParameterKind::kPacked, false},
                                                       {ParameterKind::kTrained, false},
                                                       {ParameterKind::kTrained, true}};
  std::vector<Unit> units;
  for (const bool expert_mesh : {false, true}) {
    for (const auto& [kind, float8] : kKinds) {
      std::vector<Part> alike;
      for (const Part& part : parts) {
        const bool apart = part.expert && mesh.size(Axis::kExpert) > 1;
        if (apart == expert_mesh && part.kind == kind && part.float8 == float8) alike.push_back(part);
      }
      if (alike.empty()) continue;
      if (expert_mesh) {
        units.push_back(unit_of(alike, mesh.size(Axis::kExpertFsdp)));
      } else {
        add_units(std::move(alike), mesh.size(Axis::kFsdp), units);
      }
    }
  }
  return units;
}

}  // namespace

std::map<std::string, std::vector<Unit>> units_of_blocks(const config::JobConfig& config, const models::ModelSpec& spec,
                                                         const mesh::Mesh& mesh) {
  const std::optional<models::AdapterSpec> adapters = config::adapters_of(config);
  const std::set<std::string> muon = of_muon(spec, config.optimizer, adapters);
  const std::set<std::string> tower = tower_blocks(spec);
  std::map<std::string, std::vector<Part>> parts;
  for (const models::ParameterSpec& tensor : models::parameters(spec)) {
    const std::string block = models::block_of(spec, tensor.fqn);
    std::vector<Part>& own = parts[block];
    own.push_back(cut(spec, tensor, mesh, tower.contains(block)));
    own.back().muon = muon.contains(tensor.fqn);
    own.back().float8 = mesh.size(Axis::kFsdp) > 1 && config::gathered_as_float8(config, tensor.fqn, tensor.shape);
    if (!adapters) continue;
    const bool takes = models::takes_adapter(tensor);
    freeze(own.back(), models::may_be_packed(tensor) && adapters->base == models::BaseForm::kNf4);
    if (!takes || !models::any_pattern_names(adapters->targets, models::layer_of(tensor.fqn))) continue;
    for (Part& part : adapter_parts(spec, tensor, mesh, *adapters, muon)) own.push_back(std::move(part));
  }
  std::map<std::string, std::vector<Unit>> units;
  for (const auto& [block, all] : parts) units[block] = units_of(all, mesh);
  return units;
}

int64_t muon_round(const models::ModelSpec& spec, const mesh::Mesh& mesh, const config::OptimizerSection& optimizer,
                   const std::optional<models::AdapterSpec>& adapters) {
  constexpr int64_t kRound = 1 << 24;  // Equals optim::MatrixMesh::round_elements.
  const std::set<std::string> muon = of_muon(spec, optimizer, adapters);
  const int64_t ranks = mesh.size(Axis::kHolders);
  int64_t largest = 0, total = 0;
  for (const models::ParameterSpec& tensor : models::trained_tensors(spec, adapters)) {
    if (!muon.contains(tensor.fqn)) continue;
    const int64_t matrices = tensor.shape.size() == 3 ? tensor.shape[0] : 1;
    largest = std::max(largest, (matrices + ranks - 1) / ranks * (tensor.numel() / matrices));
    total += tensor.numel();
  }
  return std::max(largest, std::min(kRound, total / mesh.size(Axis::kPipeline) / ranks));
}

int64_t largest_packed(const models::ModelSpec& spec, const mesh::Mesh& mesh, const models::AdapterSpec& adapters) {
  int64_t largest = 0;
  if (adapters.base != models::BaseForm::kNf4) return largest;
  for (const models::ParameterSpec& tensor : models::parameters(spec)) {
    if (models::may_be_packed(tensor)) largest = std::max(largest, cut(spec, tensor, mesh).numel());
  }
  return largest;
}

}  // namespace titan::memory
