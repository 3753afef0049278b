#include "worker/rank/comm/local_backend.h"

#include <c10/util/accumulate.h>

#include <numeric>

#include "worker/rank/comm/make_device.h"

namespace titan::comm {
namespace {

using Operation = c10d::ReduceOp::RedOpType;

std::string describe_tensor(const at::Tensor& tensor) {
  return std::to_string(tensor.numel()) + " " + c10::toString(tensor.scalar_type());
}

std::string operation_name(Operation operation) {
  switch (operation) {
    case c10d::ReduceOp::SUM:
      return "SUM";
    case c10d::ReduceOp::AVG:
      return "AVG";
    case c10d::ReduceOp::PRODUCT:
      return "PRODUCT";
    case c10d::ReduceOp::MIN:
      return "MIN";
    case c10d::ReduceOp::MAX:
      return "MAX";
    default:
      TORCH_CHECK(false, "ranks as threads do not support the reduction ", static_cast<int>(operation));
  }
}

void combine(at::Tensor& sum, const at::Tensor& one, Operation operation) {
  switch (operation) {
    case c10d::ReduceOp::PRODUCT:
      sum.mul_(one);
      break;
    case c10d::ReduceOp::MIN:
      at::minimum_out(sum, sum, one);
      break;
    case c10d::ReduceOp::MAX:
      at::maximum_out(sum, sum, one);
      break;
    default:
      sum.add_(one);
  }
}

const at::Tensor& contiguous(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), "a tensor that is not contiguous cannot be sent: sizes ", tensor.sizes(),
              ", strides ", tensor.strides());
  return tensor;
}

at::Tensor& only(std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(tensors.size() == 1, "expected one tensor, not ", tensors.size());
  contiguous(tensors[0]);
  return tensors[0];
}

// Returns piece `index` of `count` equal ones, flattened.
at::Tensor piece(const at::Tensor& tensor, size_t index, size_t count) {
  const int64_t numel = tensor.numel() / static_cast<int64_t>(count);
  return tensor.view({tensor.numel()}).narrow(0, static_cast<int64_t>(index) * numel, numel);
}

void gather_pieces(std::vector<LocalPart>& parts) {
  for (LocalPart& to : parts) {
    for (size_t from = 0; from < parts.size(); ++from) {
      at::Tensor place = piece(to.output, from, parts.size());
      const at::Tensor given = piece(parts[from].input, 0, 1);
      // The rank's own piece may be there already.
      if (place.const_data_ptr() != given.const_data_ptr()) place.copy_(given);
    }
  }
}

// Adds in rank order on every rank, so the bits do not depend on the order of arrival.
void reduce_pieces(std::vector<LocalPart>& parts, Operation operation) {
  const size_t count = parts.size();
  for (size_t rank = 0; rank < count; ++rank) {
    at::Tensor sum = piece(parts[rank].output, 0, 1);
    sum.copy_(piece(parts[0].input, rank, count));
    for (size_t from = 1; from < count; ++from) combine(sum, piece(parts[from].input, rank, count), operation);
    if (operation == c10d::ReduceOp::AVG) sum.div_(static_cast<int64_t>(count));
  }
}

void reduce_all(std::vector<LocalPart>& parts, Operation operation) {
  at::Tensor sum = piece(parts[0].output, 0, 1);
  for (size_t from = 1; from < parts.size(); ++from) combine(sum, piece(parts[from].output, 0, 1), operation);
  if (operation == c10d::ReduceOp::AVG) sum.div_(static_cast<int64_t>(parts.size()));
  for (size_t to = 1; to < parts.size(); ++to) piece(parts[to].output, 0, 1).copy_(sum);
}

void exchange(std::vector<LocalPart>& parts) {
  std::vector<int64_t> sent(parts.size(), 0);  // Rows of each input that were copied already.
  for (size_t to = 0; to < parts.size(); ++to) {
    int64_t row = 0;
    for (size_t from = 0; from < parts.size(); ++from) {
      const int64_t rows = parts[to].output_splits[from];
      TORCH_CHECK_VALUE(rows == parts[from].input_splits[to], "all_to_all: rank ", to, " of the group expects ", rows,
                        " rows from rank ", from, ", which sends ", parts[from].input_splits[to]);
      parts[to].output.narrow(0, row, rows).copy_(parts[from].input.narrow(0, sent[from], rows));
      row += rows;
      sent[from] += rows;
    }
  }
}

class LocalWork : public c10d::Work {
 public:
  LocalWork(std::shared_ptr<LocalGroup> group, std::shared_ptr<LocalOperation> operation,
            std::chrono::milliseconds limit)
      : group_(std::move(group)), operation_(std::move(operation)), limit_(limit) {}

  bool isCompleted() override { return group_->done(*operation_); }

  bool wait(std::chrono::milliseconds timeout) override {
    group_->wait(*operation_, timeout == kNoTimeout ? limit_ : timeout);
    return true;
  }

 private:
  const std::shared_ptr<LocalGroup> group_;
  const std::shared_ptr<LocalOperation> operation_;
  const std::chrono::milliseconds limit_;
};

class LocalBackend : public c10d::Backend {
 public:
  LocalBackend(std::shared_ptr<LocalGroup> group, int rank, int size, std::chrono::milliseconds timeout)
      : c10d::Backend(rank, size), group_(std::move(group)), timeout_(timeout) {}
  ~LocalBackend() override { group_->leave(rank_); }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    const at::Tensor& tensor = only(tensors);
    const auto root = static_cast<size_t>(options.rootRank);
    return meet("broadcast from " + std::to_string(root) + " of " + describe_tensor(tensor), {.output = tensor},
                [root](std::vector<LocalPart>& parts) {
                  for (size_t to = 0; to < parts.size(); ++to) {
                    if (to != root) piece(parts[to].output, 0, 1).copy_(piece(parts[root].output, 0, 1));
                  }
                });
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    const at::Tensor& tensor = only(tensors);
    const Operation operation = options.reduceOp;
    return meet("all_reduce " + operation_name(operation) + " of " + describe_tensor(tensor), {.output = tensor},
                [operation](std::vector<LocalPart>& parts) { reduce_all(parts, operation); });
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& /*options*/) override {
    TORCH_CHECK(contiguous(output).numel() == size_ * contiguous(input).numel(), "all_gather: the output has ",
                output.numel(), " elements, not ", size_, " pieces of ", input.numel());
    return meet("all_gather of pieces of " + describe_tensor(input), {.output = output, .input = input}, gather_pieces);
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override {
    TORCH_CHECK(contiguous(input).numel() == size_ * contiguous(output).numel(), "reduce_scatter: the input has ",
                input.numel(), " elements, not ", size_, " pieces of ", output.numel());
    const Operation operation = options.reduceOp;
    return meet("reduce_scatter " + operation_name(operation) + " to pieces of " + describe_tensor(output),
                {.output = output, .input = input},
                [operation](std::vector<LocalPart>& parts) { reduce_pieces(parts, operation); });
  }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& /*options*/) override {
    // Without splits the shapes do not matter: each tensor consists of `size` equal pieces.
    const bool equal = output_splits.empty() && input_splits.empty();
    at::Tensor to = as_rows(contiguous(output), equal);
    at::Tensor from = as_rows(contiguous(input), equal);
    const std::string signature =
        "all_to_all of rows of " + std::to_string(from.size(1)) + " " + c10::toString(from.scalar_type());
    TORCH_CHECK(to.size(1) == from.size(1) && to.scalar_type() == from.scalar_type(), signature, " into rows of ",
                to.size(1), " ", c10::toString(to.scalar_type()));
    LocalPart part{to, from, rows(to, output_splits), rows(from, input_splits)};
    return meet(signature, std::move(part), exchange);
  }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int destination, int tag) override {
    const at::Tensor& tensor = only(tensors);
    return work(group_->message(rank_, destination, tag, /*sending=*/true, message_name(destination, tensor),
                                {.input = tensor}));
  }

  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source, int tag) override {
    const at::Tensor& tensor = only(tensors);
    return work(
        group_->message(source, rank_, tag, /*sending=*/false, message_name(rank_, tensor), {.output = tensor}));
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& /*options*/) override {
    return meet("barrier", {}, [](std::vector<LocalPart>&) {});
  }

  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void abort() override { group_->fail("rank " + std::to_string(rank_) + " of the group has aborted"); }
  const std::string getBackendName() const override { return "local"; }

 private:
  at::Tensor as_rows(const at::Tensor& tensor, bool equal_pieces) const {
    if (!equal_pieces) return tensor.view({tensor.size(0), c10::multiply_integers(tensor.sizes().slice(1))});
    TORCH_CHECK(tensor.numel() % size_ == 0, "all_to_all: ", tensor.numel(), " elements cannot be split into ", size_,
                " equal pieces");
    return tensor.view({size_, tensor.numel() / size_});
  }

  std::vector<int64_t> rows(const at::Tensor& tensor, const std::vector<int64_t>& splits) const {
    const int64_t total = tensor.size(0);
    if (splits.empty()) {
      TORCH_CHECK(total % size_ == 0, "all_to_all: ", total, " rows cannot be split into ", size_, " equal pieces");
      return std::vector<int64_t>(size_, total / size_);
    }
    const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
    TORCH_CHECK(static_cast<int>(splits.size()) == size_ && sum == total, "all_to_all: splits ", splits,
                " must be one per rank (", size_, ") and add up to ", total, " rows");
    return splits;
  }

  static std::string message_name(int destination, const at::Tensor& tensor) {
    return "message to rank " + std::to_string(destination) + " of " + describe_tensor(tensor);
  }

  c10::intrusive_ptr<c10d::Work> meet(const std::string& signature, LocalPart part, LocalGroup::Execute execute) {
    return work(group_->collective(rank_, signature, std::move(part), std::move(execute)));
  }

  c10::intrusive_ptr<c10d::Work> work(std::shared_ptr<LocalOperation> operation) {
    return c10::make_intrusive<LocalWork>(group_, std::move(operation), timeout_.load());
  }

  const std::shared_ptr<LocalGroup> group_;
  std::atomic<std::chrono::milliseconds> timeout_;
};

class LocalDevice : public device::Device {
 public:
  explicit LocalDevice(std::shared_ptr<LocalHub> hub) : hub_(std::move(hub)), cpu_(make_cpu_device()) {}

  at::Device torch_device() const override { return cpu_->torch_device(); }

  c10::intrusive_ptr<c10d::Backend> make_backend(const device::BackendOptions& options) override {
    // The first rank of the group sets its name.
    const std::string name = options.store->compareSet("local-group", "", hub_->new_name());
    return c10::make_intrusive<LocalBackend>(hub_->group(name, options.size), options.rank, options.size,
                                             options.timeout);
  }

  void resize_storage(c10::StorageImpl& storage, int64_t bytes) override { cpu_->resize_storage(storage, bytes); }
  int64_t peak_memory_bytes() const override { return cpu_->peak_memory_bytes(); }
  int64_t total_memory_bytes() const override { return cpu_->total_memory_bytes(); }

 private:
  const std::shared_ptr<LocalHub> hub_;
  const std::unique_ptr<device::Device> cpu_;
};

}  // namespace

void LocalHub::fail(const std::string& why) {
  std::map<std::string, std::shared_ptr<LocalGroup>> groups;
  {
    sync::Lock lock(mutex_);
    if (broken_.empty()) broken_ = why;
    groups = groups_;
  }
  for (auto& [name, group] : groups) group->fail(why);
  store_->fail(why);
}

std::shared_ptr<LocalGroup> LocalHub::group(const std::string& name, int size) {
  sync::Lock lock(mutex_);
  std::shared_ptr<LocalGroup>& slot = groups_[name];
  if (!slot) {
    slot = std::make_shared<LocalGroup>(size);
    if (!broken_.empty()) slot->fail(broken_);
  }
  return slot;
}

std::unique_ptr<device::Device> make_local_device(std::shared_ptr<LocalHub> hub) {
  return std::make_unique<LocalDevice>(std::move(hub));
}

}  // namespace titan::comm
