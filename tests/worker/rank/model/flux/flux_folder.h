#pragma once

// A Flux in a folder of diffusers, for programs that tests run. All functions throw std::runtime_error.

#include <ATen/ATen.h>

#include <string>

#include "common/plan/hf_config/flux.h"
#include "tests/worker/rank/model/hf_weights.h"
#include "worker/rank/model/flux/blocks.h"
#include "worker/rank/model/flux/flux.h"
#include "worker/rank/model/flux/hf_names.h"

namespace titan::testing {

inline models::FluxSpec read_flux_spec(const std::string& folder) {
  const std::string text =
      need(storage::read_file(storage::posix_files(), storage::join_path(folder, "config.json"), 1 << 20));
  return need(hf_config::read_flux(nlohmann::json::parse(text)));
}

// Gives the blocks' parameters, which are whole or a rank's parts, their values in `type`.
inline void load_flux(const model::flux::Blocks& blocks, const models::FluxSpec& spec, const std::string& folder,
                      at::ScalarType type) {
  load_hf_weights(blocks, folder, *model::flux::make_mapper(spec), type);
}

}  // namespace titan::testing
