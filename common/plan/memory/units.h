#pragma once

// Which parameters a rank computes with, and how the engine shards them.

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

// What becomes of a unit's parameters: trained ones have gradients and optimizer states, packed ones are bytes.
enum class Kind { kTrained, kFrozen, kPacked };

// Parameters that are gathered and reduced together. In elements, packed ones in bytes.
struct Unit {
  Kind kind = Kind::kTrained;
  int64_t whole = 0;    // Gathered, without padding.
  int64_t shard = 0;    // One rank's piece, padded.
  int64_t ranks = 1;    // That share it.
  int64_t muon = 0;     // Of the shard: Muon's, which remembers one number for each, where Adam remembers two.
  bool direct = false;  // Gathered in place: no copy out of a gather buffer.
  int64_t coded = 0;    // Bytes of one of Adam's states of the shard in 8-bit codes.
  bool float8 = false;  // Gathered a byte an element.

  int64_t padded() const { return shard * ranks; }
};

// The units of each of the engine's blocks, by its name. A head that is tied to the embedding has its norm alone; the
// matrix is the embedding's.
// With adapters those are trained alone.
std::map<std::string, std::vector<Unit>> units_of_blocks(const config::JobConfig& config, const models::ModelSpec& spec,
                                                         const mesh::Mesh& mesh);

// Elements of the matrices that Muon gathers to one rank at once (worker/rank/optim/muon_plan.h); 0 without it.
int64_t muon_round(const models::ModelSpec& spec, const mesh::Mesh& mesh, const config::Optimizer& optimizer,
                   const std::optional<models::AdapterSpec>& adapters);

// The largest matrix that is kept packed, in elements: it is unpacked for each of its products; 0: none is.
int64_t largest_packed(const models::ModelSpec& spec, const mesh::Mesh& mesh, const models::AdapterSpec& adapters);

}  // namespace titan::memory
