#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace titan::parallel {

// Memory for gathered weights that stays where it is for the whole run: what a device's graph reads must lie where it
// lay when the graph was captured. Units of one layout that are never gathered at the same time take it in turn.
class WeightSlot {
 public:
  // One piece for each weight of a unit.
  WeightSlot(const std::vector<int64_t>& bytes, at::Device device);

  // The weight's storage lies in this piece from now on; not while another's does.
  void lend(size_t piece, c10::StorageImpl& storage);
  // The storage is empty again.
  void take_back(size_t piece, c10::StorageImpl& storage);

 private:
  struct Piece {
    at::Tensor memory;  // Bytes.
    const c10::StorageImpl* borrower = nullptr;
  };
  std::vector<Piece> pieces_;
};

}  // namespace titan::parallel
