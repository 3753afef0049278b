#pragma once

// Issues the collectives and messages of one mesh axis, records them for traces, and turns a lost peer into PeerLost.

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

// "ranks 2, 3"; long lists are cut.
inline std::string listed(const std::vector<int>& ranks) {
  constexpr size_t kMost = 8;
  std::string text = "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMost); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > kMost) text += ", ... " + std::to_string(ranks.back());
  return text;
}

// One operation of a group that somebody records, from its issue until its result was there. That was when somebody
// began to wait for it, if the work then says that it is complete, else when the wait returned: in between nobody
// asks. NCCL's wait returns at once and its kernels have rows of their own in the profiler's trace.
class TransferSpan {
 public:
  // Null while nobody records. `operation`: a literal.
  static std::unique_ptr<TransferSpan> begin(const std::shared_ptr<trace::Spans>& spans, const char* operation,
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
  TransferSpan(std::shared_ptr<trace::Spans> spans, trace::Transfer transfer)
      : spans_(std::move(spans)), transfer_(std::move(transfer)) {}

  const std::shared_ptr<trace::Spans> spans_;
  trace::Transfer transfer_;
};

// A collective or the rendezvous failed: another rank is gone or did not answer in time. The group is unusable
// afterwards.
class PeerLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What this library's own backends say of a rank that did not come in time, and of ranks that do not do the same thing.
inline constexpr char kTookNoPart[] = " took no part within ";
inline constexpr char kNotTheSame[] = ": all ranks must issue the same operations in the same order";
// Whether a failure's text says so; of timeouts in the words of any backend.
bool is_timeout(const std::string& text);
bool is_disagreement(const std::string& text);

// An exception's text for users: without LibTorch's C++ stack.
std::string describe(const std::exception& error);

// One call of a group, for messages: put into words only when it failed, since most never do.
struct Call {
  std::shared_ptr<const std::string> name;   // Of the group.
  std::shared_ptr<const std::string> among;  // " among ranks 2, 3": who may be the one that is gone.
  const char* operation = "";
  int peer = -1;  // Global rank; -1: all ranks take part.
};
std::string words(const Call& call);

// A collective in flight. Its tensors may be read after wait(); they are kept alive until then.
class Pending {
 public:
  Pending() = default;
  // `span`: null where nobody records. `ledger`: gets the time that is waited; may be null.
  Pending(c10::intrusive_ptr<c10d::Work> work, Call call, std::vector<at::Tensor> keep_alive,
          std::unique_ptr<TransferSpan> span, Ledger* ledger);
  Pending(Pending&&) = default;
  Pending& operator=(Pending&&) = default;

  // Returns once the result is there; again: at once. Throws PeerLost.
  void wait();
  bool active() const { return work_.defined(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  Call call_;
  std::vector<at::Tensor> keep_alive_;
  std::unique_ptr<TransferSpan> span_;
  Ledger* ledger_ = nullptr;
};

// The ranks of one mesh axis (or a flattened set of axes) as one rank sees them. A group of one has no backend: its
// collectives are local copies and are not counted. All ranks of a group must issue the same collectives in the same
// order.
class Group {
 public:
  // `spans`: where operations are kept while somebody records; null: nowhere. `ledger`: gets the time that is waited;
  // must outlive the group and what it issued; may be null. `device`: where tensors must be; none: anywhere.
  Group(std::string name, std::vector<int> ranks, int my_index, c10::intrusive_ptr<c10d::Backend> backend,
        std::shared_ptr<trace::Spans> spans = nullptr, Ledger* ledger = nullptr,
        std::optional<at::Device> device = std::nullopt);

  const std::string& name() const { return *name_; }
  int rank() const { return rank_; }  // Index inside the group.
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }  // Global ranks in group order.

  // output [size * n] = the inputs [n] in rank order.
  Pending all_gather(at::Tensor output, at::Tensor input) const;
  // output [n] = piece `rank` of the sum over ranks of input [size * n].
  Pending reduce_scatter(at::Tensor output, at::Tensor input) const;
  Pending all_reduce(at::Tensor tensor, c10d::ReduceOp::RedOpType operation = c10d::ReduceOp::SUM) const;
  // Equal pieces.
  Pending all_to_all(at::Tensor output, at::Tensor input) const;
  // Rows of dim 0: input_splits[r] rows go to rank r, output_splits[r] come from it.
  Pending all_to_all(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                     std::vector<int64_t> input_splits) const;
  // One tensor to or from the rank with index `peer`; sizes must agree. Between two ranks, messages of equal tags
  // arrive in the order they were sent. Tags: 0 to 2^20.
  Pending send(at::Tensor tensor, int peer, int tag = 0) const;
  Pending recv(at::Tensor tensor, int peer, int tag = 0) const;
  Pending broadcast(at::Tensor tensor, int root) const;
  void barrier() const;

  void set_timeout(std::chrono::milliseconds timeout) const;
  void abort() const;

 private:
  // A tensor elsewhere would pass on CPU ranks alone, where all tensors are on the CPU.
  void check_device(const Call& call, const at::Tensor& tensor) const;
  // Issues and keeps `tensors`; `bytes` for profiler traces: "all_gather fsdp, 4 ranks, 65536 bytes".
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
  std::shared_ptr<trace::Spans> spans_;
  Ledger* ledger_;
  std::optional<at::Device> device_;
};

// Whether one of Gloo's exceptions says that a connection broke, could not be made or gave no sign in time. Told by the
// name of its type, since Gloo's headers cannot be used (gloo.cc).
bool is_lost_connection(const std::exception& error);

inline const std::string& words(const std::string& what) { return what; }

// Runs `issue`. What says that another rank is gone becomes PeerLost with the collective's name. Everything else (no
// memory, a tensor of the wrong shape) is this rank's own failure and stays what it is.
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
