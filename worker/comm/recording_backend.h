#pragma once

#include <atomic>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "worker/comm/flight_recorder.h"

namespace titan::comm {

// A c10d backend that notes in the recorder when each collective begins, is under way and has been waited for, then
// passes it on. Only the operations that Titan uses are passed on; the others throw as c10d::Backend does.
class RecordingBackend : public c10d::Backend {
 public:
  // `group` is the recorder's number; the recorder must outlive all works.
  RecordingBackend(c10::intrusive_ptr<c10d::Backend> inner, FlightRecorder& recorder, int group,
                   std::chrono::milliseconds timeout);

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int destination, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

  void setTimeout(std::chrono::milliseconds timeout) override {
    timeout_ = timeout;
    inner_->setTimeout(timeout);
  }
  void abort() override { inner_->abort(); }
  void shutdown() override { inner_->shutdown(); }
  const std::string getBackendName() const override { return inner_->getBackendName(); }

 private:
  template <typename Issue>
  c10::intrusive_ptr<c10d::Work> recorded(int64_t number, const Issue& issue);

  const c10::intrusive_ptr<c10d::Backend> inner_;
  FlightRecorder& recorder_;
  const int group_;
  std::atomic<std::chrono::milliseconds> timeout_;
};

}  // namespace titan::comm
