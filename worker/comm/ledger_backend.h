#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "worker/comm/ledger.h"

namespace titan::comm {

// How a reduce_scatter is carried out by the wrapped backend.
enum class ReduceScatterMode {
  kNative,      // The backend's own (NCCL).
  kOrderedSum,  // All-to-all, then this rank adds the pieces in rank order: faster than Gloo's own, and the order is
                // fixed.
};

// A c10d backend that notes each collective in the ledger under `group`, then passes it on. Only the operations that
// Titan uses are passed on; the others throw as c10d::Backend does.
class LedgerBackend : public c10d::Backend {
 public:
  LedgerBackend(c10::intrusive_ptr<c10d::Backend> inner, std::string group, Ledger& ledger, ReduceScatterMode mode);

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

  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  void abort() override { inner_->abort(); }
  void shutdown() override { inner_->shutdown(); }
  const std::string getBackendName() const override { return inner_->getBackendName(); }

 private:
  c10::intrusive_ptr<c10d::Backend> inner_;
  const std::string group_;
  Ledger& ledger_;
  const ReduceScatterMode mode_;
};

}  // namespace titan::comm
