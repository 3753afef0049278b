#pragma once

// Rows of stored encodings (worker/rank/data/samples/encodings_manifest.h), which need no encoders. Their latents are
// drawn from mean and variance in each step, as those of pictures are.

#include <memory>
#include <vector>

#include "common/plan/config/job_config.h"
#include "common/plan/models/flux_spec.h"
#include "worker/rank/data/samples/encodings_manifest.h"
#include "worker/rank/data/samples/sample_files.h"
#include "worker/rank/model/flux/image_batches.h"

namespace titan::model::flux {

// Checks that encodings are what the model and the job read. `path` is their folder. Errors: InvalidArgument, names the
// folder, the key and both values.
absl::Status check_encodings(const data::EncodingsManifest& encodings, const std::string& path,
                             const models::FluxSpec& spec, const config::JobConfig& config);

// Checks that two sets of encodings, or encodings and the job's encoders, were made by the same encoders. `other` names
// the second in messages. Errors: InvalidArgument, names the encoder that differs.
absl::Status check_same_encoders(const data::EncodingsManifest& encodings, const std::string& path,
                                 const std::map<std::string, std::string>& theirs, const std::string& other);

class EncodedRows final : public RowMaker {
 public:
  EncodedRows(std::shared_ptr<const data::EncodingsManifest> encodings, const data::EmptyEncodings& empty);

  // kMoments, kT5Encoding and kClipEncoding, in the type of the files.
  const std::vector<Member>& members() const override { return members_; }
  // Returns [2 C, h, w], [Tt, txt_width] and [vec_width]. A dropped caption's encoding is that of the empty caption.
  absl::StatusOr<std::vector<at::Tensor>> make(const data::Sample& sample,
                                               const random::SampleDraws& draws) const override;

 private:
  const std::vector<Member> members_;
  const at::Tensor empty_t5_, empty_clip_;
};

}  // namespace titan::model::flux
