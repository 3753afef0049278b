#pragma once

// Hugging Face weights: a folder with one model.safetensors, or several files and model.safetensors.index.json.
// diffusers has the same with other file names.

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_coded.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"

namespace titan::checkpoint {

inline constexpr char kHfIndexName[] = "model.safetensors.index.json";
inline constexpr char kDiffusersIndexName[] = "diffusion_pytorch_model.safetensors.index.json";
// A file in a folder that is being written, or whose writer was stopped. It names the writer's process.
inline constexpr char kWriterName[] = ".writer";

// An open folder of Hugging Face weights. Reads tensors, or boxes of them, on request.
class HfFolder {
 public:
  // Reads the index, every header, and the quantization that config.json states, if it exists. Errors: NotFound (no
  // weights); DataLoss, names file and tensor, or what shows that files are missing; FailedPrecondition (a quantization
  // that is not supported).
  static absl::StatusOr<std::unique_ptr<HfFolder>> open(storage::Files& files, const std::string& folder);
  // Does the same for one file, whatever else its folder has. folder() is then the file's path.
  static absl::StatusOr<std::unique_ptr<HfFolder>> open_file(storage::Files& files, const std::string& path);

  const std::string& folder() const { return folder_; }
  const std::vector<std::string>& keys() const { return keys_; }
  bool has(const std::string& key) const { return tensors_.contains(key); }
  // Returns the number of tensors that are stored quantized. read() returns the numbers that they represent.
  int64_t quantized() const;
  const Quantization& quantization() const { return quantization_; }

  // Returns how the tensor is stored, and the shape of its numbers. Errors: NotFound, names the key;
  // FailedPrecondition, names file and tensor, if it cannot be read.
  absl::StatusOr<Coded> coded(const std::string& key) const;
  // Returns the type that read() returns. NotFound, names the key.
  absl::StatusOr<c10::ScalarType> dtype(const std::string& key) const;
  // Return the tensor, `[coded(key).shape...]`, or a box of it, `[box.shape...]`: on the CPU, in the file's type, or in
  // float32 if it is quantized. Read little more than the box from the file (hf_coded.h).
  absl::StatusOr<at::Tensor> read(const std::string& key) const;
  absl::StatusOr<at::Tensor> read(const std::string& key, const Box& box) const;

 private:
  HfFolder(storage::Files& files, std::string folder) : files_(files), folder_(std::move(folder)) {}
  absl::Status read_quantization(const std::string& folder);
  absl::Status add_file(const std::string& path);
  absl::StatusOr<const Stored*> stored(const std::string& key) const;
  const Stored* find(const std::string& key) const;  // Null if there is none.

  storage::Files& files_;
  std::string folder_;
  std::map<std::string, std::unique_ptr<storage::ReadableFile>> open_;
  std::map<std::string, Stored> tensors_;
  std::vector<std::string> keys_;
  Quantization quantization_;
};

// Returns FailedPrecondition if the folder has tensors that the model does not use: they would be ignored silently.
// Scales are used if their tensor is; without their tensor they are an error.
absl::Status check_keys(const HfFolder& weights, const HfMapper& mapper);

// Returns notes for the user on how the folder is quantized. `expected`: the configuration says that it is.
std::vector<std::string> quantization_notes(const HfFolder& weights, bool expected);

// Returns the layout in which the folder holds parameter `fqn`; no value if it has none of the mapper's layouts.
absl::StatusOr<std::optional<HfLayout>> layout_in(const HfFolder& weights, const HfMapper& mapper,
                                                  const std::string& fqn);

// Reads the box of parameter `fqn` of full shape `shape`; of stacked experts, reads only those inside the box. Returns
// `[box.shape...]`, or an undefined tensor if Hugging Face weights have no place for it, or if it is optional and the
// folder lacks it. Errors: FailedPrecondition if the weights do not fit, DataLoss if they are damaged.
absl::StatusOr<at::Tensor> read_parameter(const HfFolder& weights, const HfMapper& mapper, const std::string& fqn,
                                          const std::vector<int64_t>& shape, const Box& box);

}  // namespace titan::checkpoint
