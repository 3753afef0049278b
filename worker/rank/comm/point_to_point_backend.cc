#include "worker/rank/comm/point_to_point_backend.h"

#include <ATen/native/Resize.h>

#include <algorithm>

namespace titan::comm {
namespace {

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
    // Gloo's thread releases its references slightly later; free the memory now.
    at::native::resize_bytes_cpu(pieces_.storage().unsafeGetStorageImpl(), 0);
    pieces_.reset();
    return true;
  }

 private:
  c10::intrusive_ptr<c10d::Work> exchange_;
  at::Tensor pieces_;
  at::Tensor output_;
};

// Sends to and receives from every other rank. Waits at most `limit` for each part, unless wait() gets a timeout.
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

c10::intrusive_ptr<c10d::Work> PointToPointBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                                    const c10d::AllgatherOptions& /*options*/) {
  const int tag = kMessageTags + next_tag_;
  next_tag_ = (next_tag_ + 1) % (kTagsOfSpace - kMessageTags);
  const at::Tensor pieces = output.view({size_, input.numel()});
  auto work = c10::make_intrusive<ExchangeWork>(timeout());
  for (int distance = 1; distance < size_; ++distance) {  // Every rank starts with a different peer.
    const int source = (rank_ + size_ - distance) % size_;
    std::vector<at::Tensor> target{pieces[source]};
    work->add(inner_->recv(target, source, tag));
  }
  for (int distance = 1; distance < size_; ++distance) {
    std::vector<at::Tensor> own{input};
    work->add(inner_->send(own, (rank_ + distance) % size_, tag));
  }
  at::NoGradGuard no_grad;
  if (pieces[rank_].const_data_ptr() != input.const_data_ptr()) pieces[rank_].copy_(input.view({-1}));
  return work;
}

c10::intrusive_ptr<c10d::Work> PointToPointBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                         const c10d::ReduceScatterOptions& options) {
  if (options.reduceOp != c10d::ReduceOp::SUM) return inner_->_reduce_scatter_base(output, input, options);
  at::Tensor pieces = at::empty({size_, input.numel() / size_}, input.options());
  c10d::AllToAllOptions exchange_options;
  exchange_options.timeout = options.timeout;
  std::vector<int64_t> equal_splits;
  at::Tensor flat = input.view({-1});
  at::Tensor flat_pieces = pieces.view({-1});
  auto exchange = inner_->alltoall_base(flat_pieces, flat, equal_splits, equal_splits, exchange_options);
  return c10::make_intrusive<OrderedSumWork>(std::move(exchange), std::move(pieces), output);
}

c10::intrusive_ptr<c10d::Work> PointToPointBackend::send(std::vector<at::Tensor>& tensors, int destination, int tag) {
  auto work = c10::make_intrusive<ExchangeWork>(timeout());
  work->add(inner_->send(tensors, destination, tag));
  return work;
}

c10::intrusive_ptr<c10d::Work> PointToPointBackend::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  auto work = c10::make_intrusive<ExchangeWork>(timeout());
  work->add(inner_->recv(tensors, source, tag));
  return work;
}

}  // namespace titan::comm
