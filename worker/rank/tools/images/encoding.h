#pragma once

// Encodes images and captions once, for trainings without encoders (worker/rank/data/samples/encodings_manifest.h).

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"

namespace titan::tools {

// File of a folder of encodings, complete or not, that records what they are made of.
inline constexpr char kEncodingsPlan[] = "titan-encodings.plan.json";

struct EncodingOptions {
  std::string out;             // Folder: new, or left by an earlier call with the same job and options.
  bool training = true;        // Encodes the data of [training]; else of [validation].
  std::string dtype = "auto";  // Type of the encodings: float32, bfloat16, or auto: the encoders' own.
  // Cuts the longer side of each image in its middle; else where the first pass of an unshuffled job would.
  bool center_crop = true;
  std::string device = "cpu";
  int64_t batch = 8;          // Samples that the encoders process at once.
  int64_t shard_samples = 0;  // Samples of a file. 0: as many as fit shard_bytes.
  int64_t shard_bytes = int64_t{256} << 20;
  int64_t part = 0, parts = 1;  // This process makes each shard whose number is `part` modulo `parts`.
};

struct EncodingProgress {
  int64_t samples = 0;  // Processed by this call, skipped ones included.
  int64_t kept = 0;     // In shards that existed already.
  int64_t total = 0;    // Samples of this process's shards.
  int64_t skipped = 0;  // Unusable ones among `samples` and `kept`.
  double seconds = 0;
};

struct EncodingResult {
  EncodingProgress progress;
  int64_t shards = 0, kept_shards = 0;  // This process's.
  bool complete = false;                // All processes' shards exist, and the manifest was written.
  int64_t samples = 0, skipped = 0;     // All processes', if complete.
};

// Encodes the data that a job of flux reads, in shards, each of which appears whole. Complete shards of an earlier call
// are kept, so a killed call loses at most one shard's work, and the result is the same. The process that finds all
// shards complete writes the manifest. `report` is called with skipped samples and warnings, and `show` after each
// batch. Errors: FailedPrecondition if `out` holds other files, or encodings of other data, encoders or options, or if
// no sample is usable; InvalidArgument beyond dataloader.max_bad_samples (names the sample); those of the encoders,
// data and disk.
absl::StatusOr<EncodingResult> encode_images(const config::JobConfig& job, const EncodingOptions& options,
                                             const std::function<void(const std::string&)>& report,
                                             const std::function<void(const EncodingProgress&)>& show);

}  // namespace titan::tools
