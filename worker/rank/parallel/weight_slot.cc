#include "worker/rank/parallel/weight_slot.h"

#include <c10/util/Exception.h>

namespace titan::parallel {
namespace {

void point(c10::StorageImpl& storage, void* address, size_t bytes) {
  storage.set_data_ptr_noswap(at::DataPtr(address, storage.device()));
  storage.set_nbytes(bytes);
}

}  // namespace

WeightSlot::WeightSlot(const std::vector<int64_t>& bytes, at::Device device) {
  for (const int64_t piece : bytes) {
    pieces_.push_back({.memory = at::empty({piece}, at::TensorOptions(at::kByte).device(device))});
  }
}

void WeightSlot::lend(size_t piece, c10::StorageImpl& storage) {
  Piece& lent = pieces_.at(piece);
  TORCH_CHECK(lent.borrower == nullptr || lent.borrower == &storage,
              "two units' weights are to be gathered at the same time into one place");
  lent.borrower = &storage;
  point(storage, lent.memory.mutable_data_ptr(), lent.memory.nbytes());
}

void WeightSlot::take_back(size_t piece, c10::StorageImpl& storage) {
  Piece& lent = pieces_.at(piece);
  if (lent.borrower == &storage) lent.borrower = nullptr;
  point(storage, nullptr, 0);
}

}  // namespace titan::parallel
