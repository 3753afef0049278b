#pragma once

#include "worker/rank/comm/wrapped_backend.h"

namespace titan::comm {

// Tags of messages are split evenly among at most kTagSpaces users of one connection, of which each sends with the
// first kMessageTags of its own; what follows those in the first space is for pieces of collectives. Gloo's tags are
// non-negative 32-bit numbers.
inline constexpr int kTagSpaces = 16;
inline constexpr int kTagsOfSpace = 1 << 27;
inline constexpr int kMessageTags = (1 << 20) + 1;

// Over Gloo, whose own all_gather keeps a second copy of the output and whose reduce_scatter is slow: an all_gather is
// messages from rank to rank, straight into the output; a reduce_scatter is an all-to-all, and this rank then adds the
// pieces in rank order, so that the order of the sum is fixed. Everything else is Gloo's. Its messages between two
// ranks keep the timeout that their connection began with: the waits here carry their own.
class PointToPointBackend : public WrappedBackend {
 public:
  PointToPointBackend(c10::intrusive_ptr<c10d::Backend> gloo, std::chrono::milliseconds timeout)
      : WrappedBackend(std::move(gloo), timeout) {}

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    return inner_->broadcast(tensors, options);
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    return inner_->allreduce(tensors, options);
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) override {
    return inner_->alltoall_base(output, input, output_splits, input_splits, options);
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int destination, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    return inner_->barrier(options);
  }

 private:
  int next_tag_ = 0;  // The same on every rank, because all issue the same collectives in the same order.
};

}  // namespace titan::comm
