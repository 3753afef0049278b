#pragma once

// Issues the collectives and messages of one mesh axis, records them for traces, and reports a lost peer as PeerLost.

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "worker/rank/comm/ledger.h"
#include "worker/rank/device/device.h"
#include "worker/rank/trace/spans.h"

namespace titan::comm {

// Returns "ranks 2, 3". Of more than eight ranks it lists the first eight and the last.
inline std::string listed(const std::vector<int>& ranks) {
  constexpr size_t kMost = 8;
  std::string text = "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMost); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > kMost) text += ", ... " + std::to_string(ranks.back());
  return text;
}

// The trace span of one operation of a group, from its issue until its result is there. The span ends when the wait
// starts, if the work is complete then; otherwise it ends when the wait returns, because nothing polls in between.
// NCCL's wait returns at once; its kernels have separate rows in the profiler's trace.
class TransferSpan {
 public:
  // Null unless a trace is being recorded. `operation`: a string literal.
  static std::unique_ptr<TransferSpan> begin(const std::shared_ptr<trace::SpanRecorder>& spans, const char* operation,
                                             const std::string& axis, int ranks, size_t bytes) {
    if (!spans || !spans->recording()) return nullptr;
    return std::unique_ptr<TransferSpan>(new TransferSpan(spans, {.operation = operation,
                                                                  .axis = axis,
                                                                  .ranks = ranks,
                                                                  .bytes = static_cast<int64_t>(bytes),
                                                                  .begin_ns = trace::now_ns()}));
  }

  void issued() { transfer_.issued_ns = trace::now_ns(); }
  void wait_begins(c10d::Work& work);  // Throws what the work throws.
  void wait_ended();

 private:
  TransferSpan(std::shared_ptr<trace::SpanRecorder> spans, trace::Transfer transfer)
      : spans_(std::move(spans)), transfer_(std::move(transfer)) {}

  const std::shared_ptr<trace::SpanRecorder> spans_;
  trace::Transfer transfer_;
};

// A collective or the rendezvous failed: another rank is gone or did not answer in time. The group is unusable
// afterwards.
class PeerLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Texts of Titan's own backends for a rank that did not come in time, and for ranks that issue different operations.
inline constexpr char kTookNoPart[] = " took no part within ";
inline constexpr char kNotTheSame[] = ": all ranks must issue the same operations in the same order";
// Returns whether an error text reports a timeout (of any backend) or a disagreement (of Titan's backends).
bool is_timeout(const std::string& text);
bool is_disagreement(const std::string& text);

// The text of an exception for users, without LibTorch's C++ stack.
std::string describe(const std::exception& error);

// Describes one call of a group for error messages. The text is built only on failure, because most calls succeed.
struct Call {
  std::shared_ptr<const std::string> name;   // Name of the group.
  std::shared_ptr<const std::string> among;  // " among ranks 2, 3": the ranks of which one may be gone.
  const char* operation = "";
  int peer = -1;  // Global rank. -1: all ranks take part.
};
std::string words(const Call& call);

// A collective in flight. Its tensors may be read after wait(); they are kept alive until then.
class Pending {
 public:
  Pending() = default;
  // `keep_alive`: any shapes [...]. `span`: null unless traced. `ledger`: receives the waited time; may be null.
  Pending(c10::intrusive_ptr<c10d::Work> work, Call call, std::vector<at::Tensor> keep_alive,
          std::unique_ptr<TransferSpan> span, Ledger* ledger);
  Pending(Pending&&) = default;
  Pending& operator=(Pending&&) = default;

  // Returns when the result is there; later calls return at once. Throws PeerLost.
  void wait();
  bool active() const { return work_.defined(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  Call call_;
  std::vector<at::Tensor> keep_alive_;  // Any shapes [...].
  std::unique_ptr<TransferSpan> span_;
  Ledger* ledger_ = nullptr;
};

// The ranks of one mesh axis (or of a flattened set of axes), as seen by one rank. A group of one has no backend: its
// collectives are local copies and are not counted. All ranks of a group must issue the same collectives in the same
// order. Operations and their waits throw PeerLost, and c10::Error if this rank's tensors do not fit or ranks disagree.
class Group {
 public:
  // `spans`: receives operations while a trace is recorded; may be null. `ledger`: receives the waited time and must
  // outlive the group and its operations; may be null. `device`: where tensors must be. None: anywhere.
  Group(std::string name, std::vector<int> ranks, int my_index, c10::intrusive_ptr<c10d::Backend> backend,
        std::shared_ptr<trace::SpanRecorder> spans = nullptr, Ledger* ledger = nullptr,
        std::optional<at::Device> device = std::nullopt);

  const std::string& name() const { return *name_; }
  int rank() const { return rank_; }  // Index in the group.
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }  // Global ranks in group order.

  // Writes all ranks' inputs [n] to output [size * n], in rank order.
  Pending all_gather(at::Tensor output, at::Tensor input) const;
  // Sums input [size * n] over ranks and writes piece rank() of the sum to output [n].
  Pending reduce_scatter(at::Tensor output, at::Tensor input) const;
  // Reduces `tensor` [...] over all ranks, in place.
  Pending all_reduce(at::Tensor tensor, c10d::ReduceOp::RedOpType operation = c10d::ReduceOp::SUM) const;
  // Exchanges equal pieces: output [size * n], input [size * n].
  Pending all_to_all(at::Tensor output, at::Tensor input) const;
  // Exchanges rows of dim 0: input [sum(input_splits), ...], output [sum(output_splits), ...]. input_splits[r] rows go
  // to rank r, output_splits[r] rows come from it.
  Pending all_to_all(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                     std::vector<int64_t> input_splits) const;
  // Sends or receives one `tensor` [...] to or from the rank with index `peer`; sizes must agree. Messages between two
  // ranks with equal tags arrive in the order of sending. Tags: 0 to 2^20. Throws c10::Error in a group of one.
  Pending send(at::Tensor tensor, int peer, int tag = 0) const;
  Pending recv(at::Tensor tensor, int peer, int tag = 0) const;
  // Copies `tensor` [...] of rank `root` to all ranks, in place.
  Pending broadcast(at::Tensor tensor, int root) const;
  void barrier() const;

  void set_timeout(std::chrono::milliseconds timeout) const;
  void abort() const;

 private:
  // Throws c10::Error if `tensor` [...] is on another device; a tensor without memory may be.
  void check_device(const Call& call, const at::Tensor& tensor) const;
  // Issues the operation and keeps `tensors` alive. `bytes` is shown in traces: "all_gather fsdp, 4 ranks, 65536
  // bytes".
  template <typename Issue>
  Pending issue(const char* operation, Call call, size_t bytes, std::vector<at::Tensor> tensors,
                const Issue& start) const;
  Call call(const char* operation) const { return {name_, among_, operation}; }
  Call call(const char* operation, int peer) const { return {name_, among_, operation, ranks_.at(peer)}; }

  std::shared_ptr<const std::string> name_;
  std::vector<int> ranks_;
  std::shared_ptr<const std::string> among_;
  int rank_;
  c10::intrusive_ptr<c10d::Backend> backend_;  // Null in a group of one.
  std::shared_ptr<trace::SpanRecorder> spans_;
  Ledger* ledger_;
  std::optional<at::Device> device_;
};

// Returns whether one of Gloo's exceptions reports that a connection broke, could not be made or timed out. Uses the
// name of its type, because Gloo's headers cannot be included (gloo.cc).
bool is_lost_connection(const std::exception& error);

inline const std::string& words(const std::string& what) { return what; }

// Runs `issue`. An error that reports a lost rank becomes PeerLost with the collective's name. Every other error (out
// of memory, wrong shape) is this rank's failure and is rethrown.
template <typename What, typename Issue>
auto translate(const What& what, Issue&& issue) {
  try {
    return issue();
  } catch (const c10::DistError& error) {
    throw PeerLost(words(what) + ": " + describe(error));
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (c10::Error& error) {
    error.add_context("in " + words(what));
    throw;
  } catch (const std::exception& error) {
    if (is_lost_connection(error)) throw PeerLost(words(what) + ": " + describe(error));
    throw;
  }
}

}  // namespace titan::comm
