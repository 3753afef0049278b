#pragma once

#include <string>

#include "worker/rank/comm/ledger.h"
#include "worker/rank/comm/wrapped_backend.h"

namespace titan::comm {

// Notes each collective in the ledger under `group`.
class LedgerBackend : public WrappedBackend {
 public:
  // `tag_space` (0 to 15) keeps the messages of wrappers apart that share one inner backend.
  LedgerBackend(c10::intrusive_ptr<c10d::Backend> inner, std::string group, Ledger& ledger, int tag_space);

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

 private:
  const std::string group_;
  Ledger& ledger_;
  const int tag_space_;
};

}  // namespace titan::comm
