#include "worker/comm/ledger_backend.h"

#include <ATen/native/Resize.h>

#include <algorithm>

namespace titan::comm {
namespace {

// Every wrapper of a shared inner backend has tags of its own: first those of its callers' messages, then those of the
// pieces of its collectives. Gloo's tags are non-negative 32-bit numbers: 16 spaces.
constexpr int kTagsOfSpace = 1 << 27;
constexpr int kMessageTags = (1 << 20) + 1;

int message_tag(int space, int tag) {
  TORCH_CHECK(tag >= 0 && tag < kMessageTags, "message tag ", tag, " is not from 0 to ", kMessageTags - 1);
  return space * kTagsOfSpace + tag;
}

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

// Waits for the all-to-all, then adds the pieces in rank order on the waiting thread.
class OrderedSumWork : public c10d::Work {
 public:
  OrderedSumWork(c10::intrusive_ptr<c10d::Work> exchange, at::Tensor pieces, at::Tensor output)
      : exchange_(std::move(exchange)), pieces_(std::move(pieces)), output_(std::move(output)) {}

  bool isCompleted() override { return exchange_->isCompleted(); }

  bool wait(std::chrono::milliseconds timeout) override {
    if (!pieces_.defined()) return true;
    exchange_->wait(timeout);
    at::NoGradGuard no_grad;
    const int64_t count = pieces_.size(0);
    at::add_out(output_, pieces_[0], pieces_[1]);
    for (int64_t rank = 2; rank < count; ++rank) output_.add_(pieces_[rank]);
    // Gloo's thread lets go of its references a little later: the memory must not wait for it.
    at::native::resize_bytes_cpu(pieces_.storage().unsafeGetStorageImpl(), 0);
    pieces_.reset();
    return true;
  }

 private:
  c10::intrusive_ptr<c10d::Work> exchange_;
  at::Tensor pieces_;
  at::Tensor output_;
};

// Sends to and receives from every other rank. Waits at most `limit` for each part unless told otherwise.
class ExchangeWork : public c10d::Work {
 public:
  explicit ExchangeWork(std::chrono::milliseconds limit) : limit_(limit) {}

  void add(c10::intrusive_ptr<c10d::Work> part) { parts_.push_back(std::move(part)); }

  bool isCompleted() override {
    return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->isCompleted(); });
  }

  bool wait(std::chrono::milliseconds timeout) override {
    for (auto& part : parts_) part->wait(timeout == kNoTimeout ? limit_ : timeout);
    parts_.clear();
    return true;
  }

 private:
  const std::chrono::milliseconds limit_;
  std::vector<c10::intrusive_ptr<c10d::Work>> parts_;
};

}  // namespace

LedgerBackend::LedgerBackend(c10::intrusive_ptr<c10d::Backend> inner, std::string group, Ledger& ledger,
                             Collectives mode, int tag_space)
    : WrappedBackend(std::move(inner), kNoTimeout),
      group_(std::move(group)),
      ledger_(ledger),
      mode_(mode),
      tag_space_(tag_space) {
  TORCH_CHECK(tag_space >= 0 && tag_space < 16, "tag space ", tag_space);
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
  if (mode_ == Collectives::kNative) return inner_->_allgather_base(output, input, options);
  return exchange_pieces(output, input);
}

c10::intrusive_ptr<c10d::Work> LedgerBackend::exchange_pieces(at::Tensor& output, at::Tensor& input) {
  const int tag = tag_space_ * kTagsOfSpace + kMessageTags + next_tag_;
  next_tag_ = (next_tag_ + 1) % (kTagsOfSpace - kMessageTags);
  const at::Tensor pieces = output.view({size_, input.numel()});
  auto work = c10::make_intrusive<ExchangeWork>(timeout());
  for (int distance = 1; distance < size_; ++distance) {  // Every rank starts with another peer.
    const int source = (rank_ + size_ - distance) % size_;
    std::vector<at::Tensor> target{pieces[source]};
    work->add(inner_->recv(target, source, tag));
  }
  for (int distance = 1; distance < size_; ++distance) {
    std::vector<at::Tensor> own{input};
    work->add(inner_->send(own, (rank_ + distance) % size_, tag));
  }
  at::NoGradGuard no_grad;
  pieces[rank_].copy_(input.view({-1}));
  return work;
}

c10::intrusive_ptr<c10d::Work> LedgerBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                   const c10d::ReduceScatterOptions& options) {
  ledger_.add(group_, "reduce_scatter", static_cast<int64_t>(input.nbytes()));
  if (mode_ == Collectives::kNative || options.reduceOp != c10d::ReduceOp::SUM) {
    return inner_->_reduce_scatter_base(output, input, options);
  }
  at::Tensor pieces = at::empty({size_, input.numel() / size_}, input.options());
  c10d::AllToAllOptions exchange_options;
  exchange_options.timeout = options.timeout;
  std::vector<int64_t> equal_splits;
  at::Tensor flat = input.view({-1});
  at::Tensor flat_pieces = pieces.view({-1});
  auto exchange = inner_->alltoall_base(flat_pieces, flat, equal_splits, equal_splits, exchange_options);
  return c10::make_intrusive<OrderedSumWork>(std::move(exchange), std::move(pieces), output);
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
  auto message = inner_->send(tensors, destination, message_tag(tag_space_, tag));
  if (mode_ == Collectives::kNative) return message;
  auto work = c10::make_intrusive<ExchangeWork>(timeout());
  work->add(std::move(message));
  return work;
}

c10::intrusive_ptr<c10d::Work> LedgerBackend::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  ledger_.add(group_, "recv", bytes_of(tensors));
  auto message = inner_->recv(tensors, source, message_tag(tag_space_, tag));
  if (mode_ == Collectives::kNative) return message;
  auto work = c10::make_intrusive<ExchangeWork>(timeout());
  work->add(std::move(message));
  return work;
}

c10::intrusive_ptr<c10d::Work> LedgerBackend::barrier(const c10d::BarrierOptions& options) {
  ledger_.add(group_, "barrier", 0);
  return inner_->barrier(options);
}

}  // namespace titan::comm
