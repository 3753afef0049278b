#pragma once

// Manages the folder of all steps in an object store.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/io/s3/object_fence.h"
#include "worker/rank/checkpoint/steps/step_folders.h"

namespace titan::checkpoint {

// A manifest is published and retired through its fence (common/io/s3/object_fence.h). Other objects are deleted only
// if they were listed before the fence was seen to belong to this attempt. Their names are never reused, so a late
// deletion, by an attempt that was paused, hits only objects that are no longer needed.
class ObjectStepStore : public StepStore {
 public:
  // `dump`: the dump folder. Its id distinguishes this training from another with the same name.
  ObjectStepStore(storage::Files& files, const std::string& folder, const storage::Fence& fence, std::string dump,
                  const std::string& job_uid, int attempt, std::function<void(const std::string&)> say)
      : StepStore(files, folder, fence, job_uid, attempt), dump_(std::move(dump)), say_(std::move(say)) {}
  ~ObjectStepStore() override;  // Releases the folder.

  absl::StatusOr<Remembered> take() override;
  absl::Status publish(const Manifest& manifest, const std::string& text, const std::string& folder,
                       bool& discard) override;
  absl::Status publish_export(int64_t step, const std::string& index, absl::FunctionRef<absl::Status()> place,
                              bool& discard) override;
  absl::StatusOr<std::vector<std::string>> clean_leftovers() override;
  absl::Status clean_step(const Manifest& manifest) override;
  absl::Status remove_if_empty(int64_t) override { return absl::OkStatus(); }  // A store has no empty folders.
  absl::Status purge(int keep_latest_k) override;

 private:
  std::string key_of(int64_t step, const std::string& name) const;
  absl::Status publish(const s3::ObjectFence::Commit& commit, bool& discard);
  absl::StatusOr<std::vector<std::string>> leftovers(int64_t step, const std::vector<s3::Object>& objects,
                                                     absl::Time now, std::vector<std::string>& unknown);
  absl::StatusOr<std::vector<std::string>> unnamed(const Manifest& manifest, const std::vector<s3::Object>& objects);
  void delete_keys(std::vector<std::string> keys);

  const std::string dump_;
  const std::function<void(const std::string&)> say_;
  std::string key_;  // Key of the folder.
  std::shared_ptr<s3::S3Client> client_;
  std::unique_ptr<s3::ObjectFence> objects_;  // Set once the fence is taken.
};

}  // namespace titan::checkpoint
