#pragma once

#include "worker/rank/comm/flight_recorder.h"
#include "worker/rank/comm/wrapped_backend.h"

namespace titan::comm {

// Records when each collective is issued, started and waited for.
class RecordingBackend : public WrappedBackend {
 public:
  // Tensors without a comment have any shape [...]. `group`: number from FlightRecorder::add_group(). The recorder must
  // outlive all works.
  RecordingBackend(c10::intrusive_ptr<c10d::Backend> inner, FlightRecorder& recorder, int group,
                   std::chrono::milliseconds timeout);

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  // output [size * n], input [n].
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  // output [n], input [size * n].
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override;
  // output [sum(output_splits), ...], input [sum(input_splits), ...]; without splits equal pieces.
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int destination, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

 private:
  template <typename Issue>
  c10::intrusive_ptr<c10d::Work> recorded(int64_t number, const Issue& issue);

  FlightRecorder& recorder_;
  const int group_;
};

}  // namespace titan::comm
