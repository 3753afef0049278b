#pragma once

// Loads the blocks of a model from Hugging Face weights, and exports them, for programs that oracle tests drive. A file
// or status that is wrong throws std::runtime_error.

#include <ATen/ATen.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_export.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/loading/model_check.h"
#include "worker/rank/checkpoint/shards/manifest.h"
#include "worker/rank/checkpoint/shards/shard.h"
#include "worker/rank/checkpoint/shards/step_reader.h"
#include "worker/rank/checkpoint/shards/written_step.h"
#include "worker/rank/nn/block.h"

namespace titan::testing {

template <typename T>
T need(absl::StatusOr<T> value) {
  if (!value.ok()) throw std::runtime_error(std::string(value.status().message()));
  return *std::move(value);
}

inline void need(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

inline checkpoint::Staged part_of(const std::string& key, const at::Tensor& value) {
  return {key, value.sizes().vec(), std::vector<int64_t>(static_cast<size_t>(value.dim())), value.contiguous()};
}

// Gives all parameters, which are whole or a rank's parts, their values in `type`, as leaves, after the checks that a
// job makes of such a folder.
template <typename Blocks>
void load_hf_weights(const Blocks& blocks, const std::string& folder, const checkpoint::HfMapper& mapper,
                     at::ScalarType type) {
  storage::Files& files = storage::posix_files();
  const auto weights = need(checkpoint::HfFolder::open(files, folder));
  need(check_keys(*weights, mapper));
  need(check_hf_config(files, folder, mapper).status());
  for (const auto& block : blocks) {
    for (nn::Parameter& parameter : block->parameters()) {
      const at::Tensor value = need(read_parameter(*weights, mapper, parameter.fqn, parameter.global_shape,
                                                   {.offset = parameter.offset, .shape = parameter.shape}));
      parameter.weight = value.to(type).requires_grad_();
    }
  }
}

// Saves the weights in fp32 as the step `folder`/step, and exports that to `folder`/exported.
template <typename Blocks>
void export_hf_weights(const Blocks& blocks, const checkpoint::HfMapper& mapper, const std::string& folder) {
  storage::Files& files = storage::posix_files();
  std::vector<checkpoint::Staged> parts;
  for (const auto& block : blocks) {
    for (const nn::Parameter& parameter : block->parameters())
      parts.push_back(part_of("model." + parameter.fqn, parameter.weight.detach().to(at::kFloat)));
  }
  const std::string step = folder + "/step";
  need(files.make_folders(step));
  checkpoint::Manifest manifest{.attempt = 1, .job_uid = "oracle", .world = 1};
  need(checkpoint::complete({need(checkpoint::write_shard(files, step, {1, 0}, parts))}, manifest));
  manifest.per_rank = {nullptr};
  need(storage::atomic_write(files, storage::join_path(step, checkpoint::kManifestName), to_text(manifest)));
  const auto reader = need(checkpoint::StepReader::open(files, step));
  // Several files, so that other programs need the index.
  need(export_folder(files, *reader, mapper, {.max_file_bytes = 1 << 16}, folder + "/exported").status());
}

}  // namespace titan::testing
