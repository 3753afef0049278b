#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "absl/status/statusor.h"
#include "common/plan/hf_config/flux.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/loading/model_check.h"
#include "worker/rank/checkpoint/shards/step_reader.h"
#include "worker/rank/model/flux/blocks.h"
#include "worker/rank/model/flux/flux.h"
#include "worker/rank/model/flux/hf_names.h"

// A Flux in a folder of diffusers, for programs that tests run. All functions throw std::runtime_error.
namespace titan::testing {

template <typename T>
T need(absl::StatusOr<T> value) {
  if (!value.ok()) throw std::runtime_error(std::string(value.status().message()));
  return *std::move(value);
}

inline void need(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

inline models::FluxSpec read_flux_spec(const std::string& folder) {
  const std::string text =
      need(storage::read_file(storage::posix_files(), storage::join_path(folder, "config.json"), 1 << 20));
  return need(hf_config::read_flux(nlohmann::json::parse(text)));
}

// Gives the blocks' parameters, which are whole or a rank's parts, their values in `type`.
inline void load_flux(const model::flux::Blocks& blocks, const models::FluxSpec& spec, const std::string& folder,
                      at::ScalarType type) {
  const std::unique_ptr<checkpoint::HfMapper> mapper = model::flux::make_mapper(spec);
  const auto weights = need(checkpoint::HfFolder::open(storage::posix_files(), folder));
  need(checkpoint::check_keys(*weights, *mapper));
  need(checkpoint::check_hf_config(storage::posix_files(), folder, *mapper).status());
  for (const auto& block : blocks) {
    for (nn::Parameter& parameter : block->parameters()) {
      const at::Tensor value = need(checkpoint::read_parameter(*weights, *mapper, parameter.fqn, parameter.global_shape,
                                                               {.offset = parameter.offset, .shape = parameter.shape}));
      parameter.weight = value.to(type).requires_grad_();
    }
  }
}

}  // namespace titan::testing
