#include "worker/rank/comm/recording_backend.h"

namespace titan::comm {
namespace {

class RecordedWork : public c10d::Work {
 public:
  RecordedWork(c10::intrusive_ptr<c10d::Work> inner, FlightRecorder& recorder, int64_t number)
      : inner_(std::move(inner)), recorder_(recorder), number_(number) {}

  bool isCompleted() override { return inner_->isCompleted(); }

  bool wait(std::chrono::milliseconds timeout) override {
    recorder_.waiting(number_);
    const bool done = inner_->wait(timeout);
    recorder_.waited(number_);
    return done;
  }

 private:
  const c10::intrusive_ptr<c10d::Work> inner_;
  FlightRecorder& recorder_;
  const int64_t number_;
};

}  // namespace

RecordingBackend::RecordingBackend(c10::intrusive_ptr<c10d::Backend> inner, FlightRecorder& recorder, int group,
                                   std::chrono::milliseconds timeout)
    : WrappedBackend(std::move(inner), timeout), recorder_(recorder), group_(group) {}

// If `issue` throws, the recording stays scheduled, because the backend never had it.
template <typename Issue>
c10::intrusive_ptr<c10d::Work> RecordingBackend::recorded(int64_t number, const Issue& issue) {
  auto work = issue();
  recorder_.started(number);
  return c10::make_intrusive<RecordedWork>(std::move(work), recorder_, number);
}

c10::intrusive_ptr<c10d::Work> RecordingBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                           const c10d::BroadcastOptions& options) {
  const int64_t number = recorder_.begin(group_, "broadcast", tensors.front(), tensors.front(), timeout());
  return recorded(number, [&] { return inner_->broadcast(tensors, options); });
}

c10::intrusive_ptr<c10d::Work> RecordingBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                           const c10d::AllreduceOptions& options) {
  const int64_t number = recorder_.begin(group_, "all_reduce", tensors.front(), tensors.front(), timeout());
  return recorded(number, [&] { return inner_->allreduce(tensors, options); });
}

c10::intrusive_ptr<c10d::Work> RecordingBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                                 const c10d::AllgatherOptions& options) {
  const int64_t number = recorder_.begin(group_, "_all_gather_base", input, output, timeout());
  return recorded(number, [&] { return inner_->_allgather_base(output, input, options); });
}

c10::intrusive_ptr<c10d::Work> RecordingBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                      const c10d::ReduceScatterOptions& options) {
  const int64_t number = recorder_.begin(group_, "_reduce_scatter_base", input, output, timeout());
  return recorded(number, [&] { return inner_->_reduce_scatter_base(output, input, options); });
}

c10::intrusive_ptr<c10d::Work> RecordingBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                               std::vector<int64_t>& output_splits,
                                                               std::vector<int64_t>& input_splits,
                                                               const c10d::AllToAllOptions& options) {
  const int64_t number = recorder_.begin(group_, "all_to_all", input, output, timeout());
  return recorded(number, [&] { return inner_->alltoall_base(output, input, output_splits, input_splits, options); });
}

c10::intrusive_ptr<c10d::Work> RecordingBackend::send(std::vector<at::Tensor>& tensors, int destination, int tag) {
  const int64_t number = recorder_.begin_message(group_, "send", rank_, destination, tensors.front(), timeout());
  return recorded(number, [&] { return inner_->send(tensors, destination, tag); });
}

c10::intrusive_ptr<c10d::Work> RecordingBackend::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  const int64_t number = recorder_.begin_message(group_, "recv", source, rank_, tensors.front(), timeout());
  return recorded(number, [&] { return inner_->recv(tensors, source, tag); });
}

c10::intrusive_ptr<c10d::Work> RecordingBackend::barrier(const c10d::BarrierOptions& options) {
  const int64_t number = recorder_.begin(group_, "all_reduce_barrier", {}, {}, timeout());
  return recorded(number, [&] { return inner_->barrier(options); });
}

}  // namespace titan::comm
