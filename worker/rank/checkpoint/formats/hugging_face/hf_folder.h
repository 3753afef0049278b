#pragma once

// Hugging Face weights: a folder with one model.safetensors, or several files and model.safetensors.index.json.

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
// Beside files of which the rest is still being written, or never was: it names the process.
inline constexpr char kWriterName[] = ".writer";

class HfFolder {
 public:
  // Reads the index, every header, and what config.json, if there is one, says of quantization. Errors: NotFound (no
  // weights), DataLoss naming file and tensor, or what shows that files are missing, FailedPrecondition (quantized in a
  // way that is not read).
  static absl::StatusOr<std::unique_ptr<HfFolder>> open(storage::Files& files, const std::string& folder);

  const std::string& folder() const { return folder_; }
  const std::vector<std::string>& keys() const { return keys_; }
  bool has(const std::string& key) const { return tensors_.contains(key); }
  // Tensors that are stored quantized, and read as the numbers that they stand for.
  int64_t quantized() const;
  const Quantization& quantization() const { return quantization_; }

  // How the tensor is stored, and its numbers' shape. NotFound naming the key; FailedPrecondition naming file and
  // tensor when it cannot be read.
  absl::StatusOr<Coded> coded(const std::string& key) const;
  // Of what read() gives. NotFound naming the key.
  absl::StatusOr<c10::ScalarType> dtype(const std::string& key) const;
  // The tensor, or a box inside it: CPU, in the file's dtype, of a quantized one in float32. Little else than the box
  // is read from the file (hf_coded.h).
  absl::StatusOr<at::Tensor> read(const std::string& key) const;
  absl::StatusOr<at::Tensor> read(const std::string& key, const Box& box) const;

 private:
  HfFolder(storage::Files& files, std::string folder) : files_(files), folder_(std::move(folder)) {}
  absl::Status add_file(const std::string& name);
  absl::StatusOr<const Stored*> stored(const std::string& key) const;
  const Stored* find(const std::string& key) const;  // Null: there is none.

  storage::Files& files_;
  std::string folder_;
  std::map<std::string, std::unique_ptr<storage::ReadableFile>> open_;
  std::map<std::string, Stored> tensors_;
  std::vector<std::string> keys_;
  Quantization quantization_;
};

// FailedPrecondition when the folder has tensors that the model has no use for: they would be left out in silence.
// Scales are as good as the tensor that they belong to, which must be there.
absl::Status check_keys(const HfFolder& weights, const HfMapper& mapper);

// What a user should know of how the folder is quantized; `expected`: somebody said that it is.
std::vector<std::string> quantization_notes(const HfFolder& weights, bool expected);

// The form, of those that the model has for parameter `fqn`, in which the folder holds it. Nothing: it does not.
absl::StatusOr<std::optional<HfLayout>> layout_in(const HfFolder& weights, const HfMapper& mapper,
                                                  const std::string& fqn);

// Reads the box of parameter `fqn` of full shape `shape`, and of stacked experts only those inside the box. Undefined
// when Hugging Face weights have no place for it. FailedPrecondition when the weights do not fit, DataLoss when they
// are damaged.
absl::StatusOr<at::Tensor> read_parameter(const HfFolder& weights, const HfMapper& mapper, const std::string& fqn,
                                          const std::vector<int64_t>& shape, const Box& box);

}  // namespace titan::checkpoint
