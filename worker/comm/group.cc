#include "worker/comm/group.h"

#include <algorithm>

#include "worker/comm/translate.h"
#include "worker/comm/turns.h"

namespace titan::comm {
namespace {

// " among ranks 2, 3": who may be the one that is gone. Long lists are cut.
std::string among(const std::vector<int>& ranks) {
  constexpr size_t kMost = 8;
  std::string text = " among ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMost); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > kMost) text += ", ... " + std::to_string(ranks.back());
  return text;
}

}  // namespace

std::string describe(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

Pending::Pending(c10::intrusive_ptr<c10d::Work> work, std::string what, std::vector<at::Tensor> keep_alive)
    : work_(std::move(work)), what_(std::move(what)), keep_alive_(std::move(keep_alive)) {}

void Pending::wait() {
  if (!work_.defined()) return;
  Turns::pass();
  auto work = std::move(work_);
  work_.reset();
  translate(what_, [&] { return work->wait(); });
  keep_alive_.clear();
}

Group::Group(std::string name, std::vector<int> ranks, int my_index, c10::intrusive_ptr<c10d::Backend> backend)
    : name_(std::move(name)), ranks_(std::move(ranks)), rank_(my_index), backend_(std::move(backend)) {}

Pending Group::all_gather(at::Tensor output, at::Tensor input) const {
  TORCH_CHECK(output.numel() == input.numel() * size(), name_, " all_gather: ", output.numel(), " elements for ",
              size(), " pieces of ", input.numel());
  if (!backend_) {
    output.view({-1}).copy_(input.view({-1}));
    return {};
  }
  output = output.view({-1});
  input = input.view({-1});
  const std::string what = name_ + " all_gather" + among(ranks_);
  auto work = translate(what, [&] { return backend_->_allgather_base(output, input, {}); });
  return {std::move(work), what, {std::move(output), std::move(input)}};
}

Pending Group::reduce_scatter(at::Tensor output, at::Tensor input) const {
  TORCH_CHECK(input.numel() == output.numel() * size(), name_, " reduce_scatter: ", input.numel(), " elements for ",
              size(), " pieces of ", output.numel());
  if (!backend_) {
    output.view({-1}).copy_(input.view({-1}));
    return {};
  }
  output = output.view({-1});
  input = input.view({-1});
  const std::string what = name_ + " reduce_scatter" + among(ranks_);
  auto work = translate(what, [&] { return backend_->_reduce_scatter_base(output, input, {}); });
  return {std::move(work), what, {std::move(output), std::move(input)}};
}

Pending Group::all_reduce(at::Tensor tensor, c10d::ReduceOp::RedOpType operation) const {
  if (!backend_) return {};
  const std::string what = name_ + " all_reduce" + among(ranks_);
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = operation;
  auto work = translate(what, [&] { return backend_->allreduce(tensors, options); });
  return {std::move(work), what, {std::move(tensor)}};
}

Pending Group::all_to_all(at::Tensor output, at::Tensor input) const {
  if (!backend_) {
    output.view({-1}).copy_(input.view({-1}));
    return {};
  }
  const std::string what = name_ + " all_to_all" + among(ranks_);
  std::vector<int64_t> equal;
  auto work = translate(what, [&] { return backend_->alltoall_base(output, input, equal, equal, {}); });
  return {std::move(work), what, {std::move(output), std::move(input)}};
}

Pending Group::all_to_all(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                          std::vector<int64_t> input_splits) const {
  if (!backend_) {
    output.copy_(input);
    return {};
  }
  const std::string what = name_ + " all_to_all" + among(ranks_);
  auto work = translate(what, [&] { return backend_->alltoall_base(output, input, output_splits, input_splits, {}); });
  return {std::move(work), what, {std::move(output), std::move(input)}};
}

Pending Group::send(at::Tensor tensor, int peer, int tag) const {
  TORCH_CHECK(backend_, name_, " send: a group of one has no peer");
  const std::string what = name_ + " send to rank " + std::to_string(ranks_.at(peer));
  std::vector<at::Tensor> tensors{tensor};
  auto work = translate(what, [&] { return backend_->send(tensors, peer, tag); });
  return {std::move(work), what, {std::move(tensor)}};
}

Pending Group::recv(at::Tensor tensor, int peer, int tag) const {
  TORCH_CHECK(backend_, name_, " recv: a group of one has no peer");
  const std::string what = name_ + " recv from rank " + std::to_string(ranks_.at(peer));
  std::vector<at::Tensor> tensors{tensor};
  auto work = translate(what, [&] { return backend_->recv(tensors, peer, tag); });
  return {std::move(work), what, {std::move(tensor)}};
}

Pending Group::broadcast(at::Tensor tensor, int root) const {
  if (!backend_) return {};
  const std::string what = name_ + " broadcast" + among(ranks_);
  std::vector<at::Tensor> tensors{tensor};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  auto work = translate(what, [&] { return backend_->broadcast(tensors, options); });
  return {std::move(work), what, {std::move(tensor)}};
}

void Group::barrier() const {
  if (!backend_) return;
  translate(name_ + " barrier" + among(ranks_), [&] { return backend_->barrier({})->wait(); });
}

void Group::set_timeout(std::chrono::milliseconds timeout) const {
  if (backend_) backend_->setTimeout(timeout);
}

void Group::abort() const {
  if (backend_) backend_->abort();
}

}  // namespace titan::comm
