#include "worker/rank/comm/ledger.h"

#include "worker/rank/comm/point_to_point_backend.h"

namespace titan::comm {

LedgerCounts subtract(const LedgerCounts& after, const LedgerCounts& before) {
  LedgerCounts difference;
  for (const auto& [key, entry] : after) {
    LedgerEntry old;
    if (const auto found = before.find(key); found != before.end()) old = found->second;
    const LedgerEntry delta{entry.calls - old.calls, entry.bytes - old.bytes};
    if (delta.calls != 0) difference[key] = delta;
  }
  return difference;
}

void Ledger::add(const std::string& group, const char* operation, int64_t bytes) {
  {
    sync::Lock lock(mutex_);
    LedgerEntry& entry = counts_[group + "/" + operation];
    ++entry.calls;
    entry.bytes += bytes;
  }
  const int64_t sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (auto* mirror = sequence_mirror_.load(std::memory_order_relaxed)) {
    mirror->store(sequence, std::memory_order_relaxed);
  }
}

LedgerCounts Ledger::counts() const {
  sync::Lock lock(mutex_);
  return counts_;
}

namespace {

int message_tag(int space, int tag) {
  TORCH_CHECK(tag >= 0 && tag < kMessageTags, "message tag ", tag, " must be from 0 to ", kMessageTags - 1);
  return space * kTagsOfSpace + tag;
}

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace

LedgerBackend::LedgerBackend(c10::intrusive_ptr<c10d::Backend> inner, std::string group, Ledger& ledger, int tag_space)
    : WrappedBackend(std::move(inner), kNoTimeout), group_(std::move(group)), ledger_(ledger), tag_space_(tag_space) {
  TORCH_CHECK(tag_space >= 0 && tag_space < kTagSpaces, "tag space ", tag_space, " must be from 0 to ", kTagSpaces - 1);
}

c10::intrusive_ptr<c10d::Work> LedgerBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                        const c10d::BroadcastOptions& options) {
  ledger_.add(group_, "broadcast", bytes_of(tensors));
  return inner_->broadcast(tensors, options);
}

c10::intrusive_ptr<c10d::Work> LedgerBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                        const c10d::AllreduceOptions& options) {
  ledger_.add(group_, "all_reduce", bytes_of(tensors));
  return inner_->allreduce(tensors, options);
}

c10::intrusive_ptr<c10d::Work> LedgerBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                              const c10d::AllgatherOptions& options) {
  ledger_.add(group_, "all_gather", static_cast<int64_t>(output.nbytes()));
  return inner_->_allgather_base(output, input, options);
}

c10::intrusive_ptr<c10d::Work> LedgerBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                   const c10d::ReduceScatterOptions& options) {
  ledger_.add(group_, "reduce_scatter", static_cast<int64_t>(input.nbytes()));
  return inner_->_reduce_scatter_base(output, input, options);
}

c10::intrusive_ptr<c10d::Work> LedgerBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                            std::vector<int64_t>& output_splits,
                                                            std::vector<int64_t>& input_splits,
                                                            const c10d::AllToAllOptions& options) {
  ledger_.add(group_, "all_to_all", static_cast<int64_t>(input.nbytes()));
  return inner_->alltoall_base(output, input, output_splits, input_splits, options);
}

c10::intrusive_ptr<c10d::Work> LedgerBackend::send(std::vector<at::Tensor>& tensors, int destination, int tag) {
  ledger_.add(group_, "send", bytes_of(tensors));
  return inner_->send(tensors, destination, message_tag(tag_space_, tag));
}

c10::intrusive_ptr<c10d::Work> LedgerBackend::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  ledger_.add(group_, "recv", bytes_of(tensors));
  return inner_->recv(tensors, source, message_tag(tag_space_, tag));
}

c10::intrusive_ptr<c10d::Work> LedgerBackend::barrier(const c10d::BarrierOptions& options) {
  ledger_.add(group_, "barrier", 0);
  return inner_->barrier(options);
}

}  // namespace titan::comm
