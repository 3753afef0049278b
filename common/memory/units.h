#pragma once

// Which parameters a rank computes with, and how the engine shards them.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/config/job_config.h"
#include "common/mesh/mesh.h"
#include "common/models/model_spec.h"

namespace titan::memory {

// Parameters that are gathered and reduced together. In elements.
struct Unit {
  int64_t whole = 0;    // Gathered, without padding.
  int64_t shard = 0;    // One rank's piece, padded.
  int64_t ranks = 1;    // That share it.
  bool direct = false;  // Gathered in place: no copy out of a gather buffer.
  bool float8 = false;  // Gathered a byte an element.

  int64_t padded() const { return shard * ranks; }
};

// The units of each of the engine's blocks, by its name. A head that is tied to the embedding has its norm alone; the
// matrix is the embedding's.
std::map<std::string, std::vector<Unit>> units_of_blocks(const config::JobConfig& config, const models::ModelSpec& spec,
                                                         const mesh::Mesh& mesh);

}  // namespace titan::memory
