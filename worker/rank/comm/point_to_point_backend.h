#pragma once

#include "worker/rank/comm/wrapped_backend.h"

namespace titan::comm {

// The message tags are divided evenly among at most kTagSpaces users of one connection. Each user sends with the first
// kMessageTags tags of its space; the other tags of the first space are for pieces of collectives. Gloo's tags are
// non-negative 32-bit numbers.
inline constexpr int kTagSpaces = 16;
inline constexpr int kTagsOfSpace = 1 << 27;
inline constexpr int kMessageTags = (1 << 20) + 1;

// Wraps Gloo, whose all_gather keeps a second copy of the output and whose reduce_scatter is slow. Here all_gather is
// point-to-point messages directly into the output, and reduce_scatter of a SUM is an all-to-all followed by a sum in
// rank order. Everything else is Gloo's. Gloo's messages keep the timeout that their connection was created with, so
// the waits here pass the current one.
class PointToPointBackend : public WrappedBackend {
 public:
  // Tensors without a comment have any shape [...].
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
  // output [size * n], input [n].
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  // output [n], input [size * n].
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override;
  // output [sum(output_splits), ...], input [sum(input_splits), ...]; without splits equal pieces.
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
