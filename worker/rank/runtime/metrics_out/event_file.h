#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/io/storage/file.h"

namespace titan::runtime {

// A PNG file for TensorBoard.
struct BoardImage {
  std::string tag;  // "validation/pictures"
  std::string png;
  int width = 0, height = 0;
};

// One TensorBoard event file: TFRecord frames with hand-encoded tensorflow.Event messages. Each write has whole frames,
// so the file stays readable if the job is killed.
class EventFile {
 public:
  // Creates {folder}/events.out.tfevents.{seconds}.{host}.{pid}.{n}, which TensorBoard reads after all existing files.
  // Its first event makes TensorBoard drop their data from `first_step` on: steps that an earlier attempt trained after
  // the checkpoint from which this one resumed.
  static absl::StatusOr<std::unique_ptr<EventFile>> create(storage::Files& files, const std::string& folder,
                                                           absl::Time now, int64_t first_step);

  // Writes one event with all of `scalars`. After an error the file ends in a torn frame: discard it and create
  // another.
  absl::Status add_scalars(int64_t step, absl::Time wall, const std::vector<std::pair<std::string, double>>& scalars);

  // Writes one event with a picture. Errors: those of add_scalars().
  absl::Status add_image(int64_t step, absl::Time wall, const BoardImage& image);

  const std::string& path() const { return path_; }

 private:
  EventFile(std::unique_ptr<storage::WritableFile> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}
  std::unique_ptr<storage::WritableFile> file_;
  std::string path_;
};

// Exposed for tests.
std::string tf_record(std::string_view data);
std::string session_start(int64_t step, absl::Time wall);
std::string image_event(int64_t step, absl::Time wall, const BoardImage& image);
std::string scalar_event(int64_t step, absl::Time wall, const std::vector<std::pair<std::string, double>>& scalars);

}  // namespace titan::runtime
