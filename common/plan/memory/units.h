#pragma once

// Groups the parameters of each block into the units that the engine shards, gathers and reduces.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/plan/config/job_config.h"
#include "common/plan/mesh/mesh.h"
#include "common/plan/models/adapters.h"
#include "common/plan/models/model_spec.h"

namespace titan::memory {

// Storage of a unit's parameters: trained ones have gradients and optimizer states, packed ones are 4-bit codes in
// bytes.
enum class ParameterKind { kTrained, kFrozen, kPacked };

// Parameters that are gathered and reduced together. Sizes are in elements, for packed parameters in bytes.
struct Unit {
  ParameterKind kind = ParameterKind::kTrained;
  int64_t whole = 0;    // Gathered size without padding.
  int64_t shard = 0;    // Size of one rank's shard, padded.
  int64_t ranks = 1;    // Ranks that share it.
  int64_t muon = 0;     // Part of the shard under Muon, which has one state per element where Adam has two.
  bool direct = false;  // Gathered in place, without a copy out of a gather buffer.
  int64_t coded = 0;    // Bytes that one of Adam's states of the shard has with 8-bit codes.
  bool float8 = false;  // Gathered at one byte per element.

  int64_t padded() const { return shard * ranks; }
};

// Returns the units of each of the engine's blocks, by block name. A head tied to the embedding has only its norm; the
// matrix belongs to the embedding.
// With adapters, only they are trained.
std::map<std::string, std::vector<Unit>> units_of_blocks(const config::JobConfig& config, const models::ModelSpec& spec,
                                                         const mesh::Mesh& mesh);

// Returns the number of elements of the matrices that Muon gathers to one rank at a time
// (worker/rank/optim/muon_plan.h); 0 without Muon.
int64_t muon_round(const models::ModelSpec& spec, const mesh::Mesh& mesh, const config::OptimizerSection& optimizer,
                   const std::optional<models::AdapterSpec>& adapters);

// Returns the number of elements of the largest matrix that is stored packed and unpacked for each product; 0 if none
// is packed.
int64_t largest_packed(const models::ModelSpec& spec, const mesh::Mesh& mesh, const models::AdapterSpec& adapters);

}  // namespace titan::memory
