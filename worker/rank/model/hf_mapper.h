#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/model/hf_names.h"

namespace titan::model {

// A model's names and layouts in the form that checkpoints import and export with, config.json included. `seq_len`: of
// the training sequences (HfFamily::config); 0: the longest that the model is made for. Unimplemented for a family
// without Hugging Face names.
absl::StatusOr<std::unique_ptr<checkpoint::HfMapper>> make_hf_mapper(const models::ModelSpec& spec,
                                                                     int64_t seq_len = 0);

// The same for a family that is not in the registry.
std::unique_ptr<checkpoint::HfMapper> make_hf_mapper(const HfFamily& family, const models::ModelSpec& spec,
                                                     int64_t seq_len = 0);

}  // namespace titan::model
