#pragma once

// Reads the folders that Meta and Mistral release: params.json, and the weights as consolidated.00.pth, 01, ..., each
// file a slice of every cut tensor (fairscale's model parallelism), or as one consolidated.pth or
// consolidated.safetensors.

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "common/plan/models/model_spec.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/meta/meta_names.h"
#include "worker/rank/checkpoint/shards/tensor_box.h"

namespace titan::checkpoint {

// One file of a series.
class MetaFile;

// An open folder. Use it on one thread.
class MetaFolder {
 public:
  // Whether the folder is one of these: it has params.json or consolidated.00.pth, and no config.json.
  static bool is_one(storage::Files& files, const std::string& folder);
  // Opens all files. Errors: NotFound, names params.json or the file of the series that is missing; those of
  // TorchFile::open and HfFolder::open_file.
  static absl::StatusOr<std::unique_ptr<MetaFolder>> open(storage::Files& files, const std::string& folder);
  ~MetaFolder();

  const std::string& folder() const { return folder_; }
  const nlohmann::json& params() const { return params_; }
  size_t files() const { return files_.size(); }
  bool has(const std::string& name) const;  // In the first file.
  // Returns the number of rows of the embedding that the files show; 0 if they have none.
  int64_t vocab_size(int64_t dim) const;

  // Checks that the files hold every parameter of the model, in slices of its shape, and nothing that it does not use.
  // FailedPrecondition, names file and tensor.
  absl::Status check(const models::ModelSpec& spec) const;

  // Returns a box, `[box.shape...]`, of a parameter or buffer of this shape, on the CPU, in the files' type; undefined
  // if releases do not hold it. Reads only the slices' parts inside the box. Errors: FailedPrecondition as check();
  // DataLoss, names both files, if copies of the same numbers differ.
  absl::StatusOr<at::Tensor> read(const models::ModelSpec& spec, const std::string& fqn,
                                  const std::vector<int64_t>& shape, const Box& box) const;

 private:
  // A part of a parameter in one file.
  struct Piece {
    size_t file = 0;
    Box box;                // Its place in the parameter.
    int64_t first_row = 0;  // Where it begins in the stored tensor.
    bool is_copy = false;   // An earlier piece has the same box.
  };
  struct Pieces {
    MetaPlace place;
    std::vector<Piece> pieces;
  };

  explicit MetaFolder(std::string folder);
  absl::StatusOr<Pieces> pieces(const models::ModelSpec& spec, const std::string& fqn,
                                const std::vector<int64_t>& shape) const;
  absl::StatusOr<Pieces> pieces_of_heads(Pieces all, int64_t heads, const std::vector<int64_t>& shape) const;
  // Checks that every file holds the tensor in the needed shape.
  absl::Status check_shapes(const MetaPlace& place, const std::vector<int64_t>& needed, bool is_cut) const;
  absl::StatusOr<at::Tensor> read_piece(const Pieces& all, const Piece& piece, const Box& part) const;

  std::string folder_;
  nlohmann::json params_;
  std::vector<std::unique_ptr<MetaFile>> files_;
};

}  // namespace titan::checkpoint
