#pragma once

// Counts the collectives of one rank, their bytes and the time waited for them, where they enter the c10d backend.

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "common/base/sync/sync.h"
#include "worker/rank/comm/wrapped_backend.h"

namespace titan::comm {

// Total of one rank's collectives of one kind on one group. `bytes` counts the whole tensor of the operation: the
// gathered output of an all_gather, the input of a reduce_scatter or all_to_all, the tensor itself for others; a
// barrier has 0.
struct LedgerEntry {
  int64_t calls = 0;
  int64_t bytes = 0;

  bool operator==(const LedgerEntry&) const = default;
};

// Key: "group/operation", for example "fsdp/all_gather".
using LedgerCounts = std::map<std::string, LedgerEntry>;

// Difference of two readings, without unchanged entries.
LedgerCounts subtract(const LedgerCounts& after, const LedgerCounts& before);

// Counts collectives where they enter the c10d backend, so that a step's traffic can be compared with its closed form.
// Thread-safe.
class Ledger {
 public:
  // The backend wrapper calls it for every collective that it forwards.
  void add(const std::string& group, const char* operation, int64_t bytes);

  LedgerCounts counts() const;

  // Time that this rank's host has waited for collectives and messages so far. On a device that runs asynchronously the
  // wait returns at once, so the value is meaningless.
  void add_wait(int64_t nanos) { waited_nanos_.fetch_add(nanos, std::memory_order_relaxed); }
  int64_t waited_nanos() const { return waited_nanos_.load(std::memory_order_relaxed); }

  // Mirrors the number of collectives so far in `target` (the rank's beacon), which must outlive its use.
  void mirror_sequence(std::atomic<int64_t>* target) { sequence_mirror_ = target; }

 private:
  mutable sync::Mutex mutex_;
  LedgerCounts counts_ TITAN_GUARDED_BY(mutex_);
  std::atomic<int64_t> sequence_{0};
  std::atomic<int64_t> waited_nanos_{0};
  std::atomic<std::atomic<int64_t>*> sequence_mirror_{nullptr};
};

// Counts each collective in the ledger under `group`.
class LedgerBackend : public WrappedBackend {
 public:
  // Tensors without a comment have any shape [...].
  // `tag_space` (0 to 15) separates the messages of wrappers that share one inner backend.
  LedgerBackend(c10::intrusive_ptr<c10d::Backend> inner, std::string group, Ledger& ledger, int tag_space);

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
  const std::string group_;
  Ledger& ledger_;
  const int tag_space_;
};

}  // namespace titan::comm
