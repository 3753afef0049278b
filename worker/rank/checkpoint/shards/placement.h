#pragma once

// Which piece of which tensor lies in which file, in a few rows however many ranks wrote.

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/shards/box.h"
#include "worker/rank/checkpoint/shards/progression.h"
#include "worker/rank/checkpoint/shards/records.h"

namespace titan::checkpoint {

// Each of the tensors, which are of one shape, has a piece of `shape` at each of the places.
struct PlacementRow {
  std::vector<Progression> tensors;  // Of numbers of tensors.
  std::vector<int64_t> shape;        // Of each piece.
  std::vector<Progression> places;   // Of (number of the file, offset of the piece in each dim).
};
// [tensors, shape, places]
nlohmann::json to_json(const PlacementRow& row);
PlacementRow row_from_json(const nlohmann::json& from);  // Throws what nlohmann::json throws; unchecked.

// Whether all numbers are such of these tensors and files, and every tensor is covered exactly once. Errors: DataLoss
// naming the tensor.
absl::Status check_placement(const std::vector<PlacementRow>& rows, const std::vector<TensorRecord>& tensors,
                             size_t files);

// Finds pieces in rows that have been checked, and must outlive it.
class Placement {
 public:
  Placement(const std::vector<PlacementRow>& rows, size_t tensors);

  // The pieces of a tensor that share an element with `window`.
  void for_each_piece(size_t tensor, const Box& window,
                      absl::FunctionRef<void(int64_t file, const Box& piece)> visit) const;
  void for_each_piece_in(int64_t file, absl::FunctionRef<void(size_t tensor, const Box& piece)> visit) const;
  int64_t pieces_of(size_t tensor) const;

 private:
  const std::vector<PlacementRow>& rows_;
  std::vector<std::vector<Point>> tensors_of_;  // By row.
  std::vector<std::vector<size_t>> rows_of_;    // By tensor.
};

}  // namespace titan::checkpoint
