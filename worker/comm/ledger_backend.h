#pragma once

#include <string>

#include "worker/comm/ledger.h"
#include "worker/comm/wrapped_backend.h"

namespace titan::comm {

// How the gathering and scattering collectives are carried out.
enum class Collectives {
  kNative,  // The backend's own (NCCL).
  // For Gloo, whose own all_gather keeps a second copy of the output and whose reduce_scatter is slow: an all_gather is
  // messages from rank to rank, straight into the output; a reduce_scatter is an all-to-all, and this rank then adds
  // the pieces in rank order, so that the order of the sum is fixed.
  kPointToPoint,
};

// Notes each collective in the ledger under `group`. Gloo's messages between two ranks keep the timeout that their
// connection began with: the waits here carry their own.
class LedgerBackend : public WrappedBackend {
 public:
  // `tag_space` (0 to 15) keeps the messages of wrappers apart that share one inner backend.
  LedgerBackend(c10::intrusive_ptr<c10d::Backend> inner, std::string group, Ledger& ledger, Collectives mode,
                int tag_space);

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
  c10::intrusive_ptr<c10d::Work> exchange_pieces(at::Tensor& output, at::Tensor& input);

  const std::string group_;
  Ledger& ledger_;
  const Collectives mode_;
  const int tag_space_;
  int next_tag_ = 0;  // The same on every rank, because all issue the same collectives in the same order.
};

}  // namespace titan::comm
