#include "worker/rank/comm/shared_memory_backend.h"

#include <c10/util/accumulate.h>

#include <cstring>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "worker/rank/comm/shared_memory_group.h"
#include "worker/rank/comm/shared_sum.h"
#include "worker/rank/comm/wrapped_backend.h"

namespace titan::comm {
namespace {

using Part = SharedOperation::Part;

// Work of a SharedOperation or a SharedMessage.
template <typename Operation>
class SharedMemoryWork : public c10d::Work {
 public:
  SharedMemoryWork(std::shared_ptr<SharedMemoryGroup> group, std::shared_ptr<SharedMemoryGroups> groups,
                   std::shared_ptr<Operation> operation, std::chrono::milliseconds limit)
      : group_(std::move(group)), groups_(std::move(groups)), operation_(std::move(operation)), limit_(limit) {}

  bool isCompleted() override { return group_->done(*operation_); }

  bool wait(std::chrono::milliseconds timeout) override {
    group_->wait(*operation_, timeout == kNoTimeout ? limit_ : timeout, *groups_);
    return true;
  }

 private:
  const std::shared_ptr<SharedMemoryGroup> group_;
  const std::shared_ptr<SharedMemoryGroups> groups_;
  const std::shared_ptr<Operation> operation_;
  const std::chrono::milliseconds limit_;
};

std::byte* memory_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

Part whole(const at::Tensor& tensor) { return {memory_of(tensor), static_cast<int64_t>(tensor.nbytes())}; }

bool is_plain(const at::Tensor& tensor) { return tensor.is_cpu() && tensor.is_contiguous(); }

// Returns `count` equal pieces.
std::vector<Part> pieces(const at::Tensor& tensor, int count) {
  const int64_t bytes = static_cast<int64_t>(tensor.nbytes()) / count;
  std::vector<Part> parts(count);
  for (int index = 0; index < count; ++index) parts[index] = {memory_of(tensor) + index * bytes, bytes};
  return parts;
}

// Returns the pieces by rows of dim 0, or equal pieces without splits.
std::vector<Part> rows(const at::Tensor& tensor, const std::vector<int64_t>& splits, int count) {
  if (splits.empty()) return pieces(tensor, count);
  const int64_t row = tensor.element_size() * c10::multiply_integers(tensor.sizes().slice(1));
  std::vector<Part> parts(count);
  std::byte* at = memory_of(tensor);
  for (int index = 0; index < count; ++index) {
    parts[index] = {at, splits[index] * row};
    at += parts[index].bytes;
  }
  return parts;
}

void copy_own(const Part& from, const Part& to) {
  TORCH_CHECK(from.bytes == to.bytes, "a rank's own part is sent with ", from.bytes, " bytes and received with ",
              to.bytes);
  if (from.memory != to.memory && from.bytes > 0) std::memcpy(to.memory, from.memory, static_cast<size_t>(from.bytes));
}

class SharedMemoryBackend : public WrappedBackend {
 public:
  SharedMemoryBackend(c10::intrusive_ptr<c10d::Backend> sockets, std::shared_ptr<SharedMemoryGroup> group,
                      std::shared_ptr<SharedMemoryGroups> groups, std::chrono::milliseconds timeout)
      : WrappedBackend(std::move(sockets), timeout), group_(std::move(group)), groups_(std::move(groups)) {}
  ~SharedMemoryBackend() override { group_->leave(); }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    if (tensors.size() != 1 || !is_plain(tensors[0])) return inner_->broadcast(tensors, options);
    SharedOperation operation = begin(SharedKind::kBroadcast, tensors[0]);
    operation.sends = rank_ == options.rootRank;
    operation.same_for_all = true;
    operation.sent.assign(size_, whole(tensors[0]));
    operation.received = operation.sent;
    operation.receives.assign(size_, false);
    operation.receives.at(options.rootRank) = !operation.sends;
    return issue(std::move(operation));
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    if (tensors.size() != 1 || !is_plain(tensors[0]) || !can_combine(options.reduceOp, tensors[0].scalar_type())) {
      return inner_->allreduce(tensors, options);
    }
    SharedOperation operation = begin(SharedKind::kReduce, tensors[0]);
    operation.same_for_all = true;
    operation.sent.assign(size_, whole(tensors[0]));
    operation.received = operation.sent;
    reduce(operation, options.reduceOp, memory_of(tensors[0]), memory_of(tensors[0]));
    return issue(std::move(operation));
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    if (!is_plain(output) || !is_plain(input)) return inner_->_allgather_base(output, input, options);
    TORCH_CHECK(output.numel() == size_ * input.numel() && output.scalar_type() == input.scalar_type(),
                "all_gather of ", input.numel(), " ", input.scalar_type(), " into ", output.numel(), " ",
                output.scalar_type(), " over ", size_, " ranks");
    SharedOperation operation = begin(SharedKind::kGather, input);
    operation.tensors.push_back(output);
    operation.same_for_all = true;
    operation.sent.assign(size_, whole(input));
    operation.received = pieces(output, size_);
    copy_own(whole(input), operation.received[rank_]);
    return issue(std::move(operation));
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override {
    if (!is_plain(output) || !is_plain(input) || !can_combine(options.reduceOp, input.scalar_type())) {
      return inner_->_reduce_scatter_base(output, input, options);
    }
    TORCH_CHECK(input.numel() == size_ * output.numel() && output.scalar_type() == input.scalar_type(),
                "reduce_scatter of ", input.numel(), " ", input.scalar_type(), " into ", output.numel(), " ",
                output.scalar_type(), " over ", size_, " ranks");
    SharedOperation operation = begin(SharedKind::kReduceScatter, input);
    operation.tensors.push_back(output);
    operation.sent = pieces(input, size_);
    operation.received = operation.sent;
    reduce(operation, options.reduceOp, operation.sent[rank_].memory, memory_of(output));
    return issue(std::move(operation));
  }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) override {
    if (!is_plain(output) || !is_plain(input)) {
      return inner_->alltoall_base(output, input, output_splits, input_splits, options);
    }
    TORCH_CHECK(output.scalar_type() == input.scalar_type(), "all_to_all of ", input.scalar_type(), " into ",
                output.scalar_type());
    check_rows(output, output_splits);
    check_rows(input, input_splits);
    SharedOperation operation = begin(SharedKind::kExchange, input);
    operation.tensors.push_back(output);
    operation.sent = rows(input, input_splits, size_);
    operation.received = rows(output, output_splits, size_);
    copy_own(operation.sent[rank_], operation.received[rank_]);
    return issue(std::move(operation));
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& /*options*/) override {
    SharedOperation operation;
    operation.kind = SharedKind::kBarrier;
    operation.same_for_all = true;
    operation.receives = all_others();
    operation.sent.resize(size_);
    operation.received.resize(size_);
    return issue(std::move(operation));
  }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int destination, int tag) override {
    if (tensors.size() != 1 || !is_plain(tensors[0])) return inner_->send(tensors, destination, tag);
    return issue(message(/*sends=*/true, destination, tag, tensors[0]));
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source, int tag) override {
    if (tensors.size() != 1 || !is_plain(tensors[0])) return inner_->recv(tensors, source, tag);
    return issue(message(/*sends=*/false, source, tag, tensors[0]));
  }

  const std::string getBackendName() const override { return "shared memory"; }
  void abort() override {
    group_->abort();
    inner_->abort();
  }
  void shutdown() override {
    group_->abort();
    inner_->shutdown();
  }

 private:
  std::vector<bool> all_others() const {
    std::vector<bool> others(size_, true);
    others[rank_] = false;
    return others;
  }

  // Starts an operation in which every rank receives from all others.
  SharedOperation begin(SharedKind kind, const at::Tensor& tensor) const {
    SharedOperation operation;
    operation.kind = kind;
    operation.type = tensor.scalar_type();
    operation.tensors = {tensor};
    operation.receives = all_others();
    return operation;
  }

  SharedMessage message(bool sends, int peer, int tag, const at::Tensor& tensor) const {
    TORCH_CHECK(peer >= 0 && peer < size_ && peer != rank_, "rank ", rank_, " of ", size_, " has no peer ", peer);
    return {.sends = sends, .peer = peer, .tag = tag, .tensor = tensor};
  }

  static void reduce(SharedOperation& operation, c10d::ReduceOp::RedOpType reduction, std::byte* own,
                     std::byte* result) {
    operation.reduces = true;
    operation.reduction = reduction;
    operation.own = own;
    operation.result = result;
  }

  void check_rows(const at::Tensor& tensor, const std::vector<int64_t>& splits) const {
    if (!splits.empty()) return c10d::checkSplitSizes(splits, tensor, size_);
    TORCH_CHECK(tensor.numel() % size_ == 0, "all_to_all: ", tensor.sizes(), " cannot be split into ", size_,
                " equal pieces");
  }

  template <typename Operation>
  c10::intrusive_ptr<c10d::Work> issue(Operation operation) {
    return c10::make_intrusive<SharedMemoryWork<Operation>>(group_, groups_, group_->issue(std::move(operation)),
                                                            timeout());
  }

  const std::shared_ptr<SharedMemoryGroup> group_;
  const std::shared_ptr<SharedMemoryGroups> groups_;
};

// Publishes this rank's text about `subject` and returns those of all ranks, by rank. Takes three store requests for
// any number of ranks if the store has multiGet().
std::vector<std::string> exchange_texts(const device::BackendOptions& options, const std::string& subject,
                                        const std::string& own) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < options.size; ++rank) keys.push_back(subject + "/" + std::to_string(rank));
  options.store->set(keys[static_cast<size_t>(options.rank)], own);
  options.store->wait(keys, options.timeout);
  std::vector<std::string> answers;
  if (!options.store->hasExtendedApi()) {  // The store is in this process, so its calls are cheap.
    for (const std::string& key : keys) answers.push_back(options.store->get_to_str(key));
    return answers;
  }
  for (const std::vector<uint8_t>& answer : options.store->multiGet(keys)) {
    answers.emplace_back(answer.begin(), answer.end());
  }
  return answers;
}

// Returns null if a rank does not want shared memory or cannot access that of all others.
std::shared_ptr<SharedMemoryGroup> meet(const device::BackendOptions& options) {
  if (options.size > kMaxMembers) return nullptr;  // All ranks decide the same.
  const bool wanted = options.shared_memory && options.size > 1;
  std::unique_ptr<OwnArea> own = wanted ? OwnArea::create(options.size) : nullptr;
  const auto invitations = exchange_texts(options, "shared-memory", own ? own->invitation() : "none");
  std::vector<std::unique_ptr<PeerArea>> peers(options.size);
  bool sees_all = own != nullptr;
  for (int rank = 0; rank < options.size && sees_all; ++rank) {
    if (rank == options.rank) continue;
    peers[rank] = PeerArea::open(invitations[rank], options.size, options.rank);
    sees_all = peers[rank] != nullptr;
  }
  for (const std::string& verdict : exchange_texts(options, "sees-shared-memory", sees_all ? "all" : "not all")) {
    if (verdict != "all") return nullptr;
  }
  own->forbid_opening();
  return std::make_shared<SharedMemoryGroup>(options.rank, std::move(own), std::move(peers));
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> through_shared_memory(c10::intrusive_ptr<c10d::Backend> sockets,
                                                        const device::BackendOptions& options,
                                                        std::shared_ptr<SharedMemoryGroups> groups) {
  std::shared_ptr<SharedMemoryGroup> group = meet(options);
  if (!group) return sockets;
  groups->add(group);
  return c10::make_intrusive<SharedMemoryBackend>(std::move(sockets), std::move(group), std::move(groups),
                                                  options.timeout);
}

bool shares_memory(const c10d::Backend& backend) {
  return dynamic_cast<const SharedMemoryBackend*>(&backend) != nullptr;
}

}  // namespace titan::comm
