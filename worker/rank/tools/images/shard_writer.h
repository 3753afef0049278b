#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "worker/rank/data/samples/encodings_manifest.h"

namespace titan::tools {

// A sample's encodings, on the CPU and contiguous, all of one type.
struct EncodedSample {
  int64_t source = 0;  // Its number among the samples that are encoded.
  std::string caption;
  at::Tensor latents;  // [2 C, h, w]
  at::Tensor t5;       // [T, D]
  at::Tensor clip;     // [V]
};

// Writes a shard (encodings_manifest.h) under a temporary name that ends with `mark` and ".tmp", and renames it to
// {folder}/{name} when it is durable. Without samples nothing is written. Returns its record, without `skipped`.
// Errors: those of the disk.
absl::StatusOr<data::EncodingsManifest::Shard> write_encodings(storage::Files& files, const std::string& folder,
                                                               const std::string& name, const std::string& mark,
                                                               const std::vector<EncodedSample>& samples);

// Returns the bytes of empty.safetensors: T5's encoding of the empty caption [T, D], and CLIP's [V].
absl::StatusOr<std::string> empty_file(const at::Tensor& t5, const at::Tensor& clip);

}  // namespace titan::tools
