#pragma once

// Reads a plain state dict that torch.save wrote to one file: names and tensors.

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "worker/rank/checkpoint/formats/pickle/archive.h"
#include "worker/rank/checkpoint/shards/tensor_box.h"

namespace titan::checkpoint {

// Returns the whole tensor, `[saved.shape...]` with its saved strides, on the CPU. `type` has to be that of saved.type.
absl::StatusOr<at::Tensor> read_saved(storage::ReadableFile& file, const pickle::SavedTensor& saved,
                                      c10::ScalarType type);

// Copies what two boxes of a larger tensor have in common into `out`, the box `box` of it, `[box.shape...]`, row-major
// and of type `type`, from the saved tensor, which is its box `of`. Reads little more than these numbers of a row-major
// tensor, and the whole storage of any other.
absl::Status read_common(storage::ReadableFile& file, const pickle::SavedTensor& saved, c10::ScalarType type,
                         const Box& of, const Box& box, at::Tensor& out);

// An open file with one state dict. Reads tensors on request.
class TorchFile {
 public:
  // Opens the dict itself, or the one under "model" or "state_dict" in it. Entries whose name `skip` accepts are left
  // out, and need not be tensors. Errors: those of pickle::Archive; FailedPrecondition without a dict of tensors.
  static absl::StatusOr<std::unique_ptr<TorchFile>> open(storage::Files& files, const std::string& path,
                                                         const std::function<bool(const std::string& name)>& skip = {});

  const std::string& path() const { return path_; }
  const std::map<std::string, pickle::SavedTensor>& tensors() const { return tensors_; }
  // Returns the whole tensor, in its saved shape `[...]` and type, contiguous, on the CPU. NotFound, names it.
  absl::StatusOr<at::Tensor> read(const std::string& name) const;
  // Returns a box of it, `[box.shape...]`, likewise.
  absl::StatusOr<at::Tensor> read(const std::string& name, const Box& box) const;

 private:
  explicit TorchFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::unique_ptr<storage::ReadableFile> file_;
  std::map<std::string, pickle::SavedTensor> tensors_;
};

}  // namespace titan::checkpoint
