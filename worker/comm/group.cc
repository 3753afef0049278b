#include "worker/comm/group.h"

#include "worker/comm/rank_list.h"
#include "worker/comm/translate.h"
#include "worker/comm/turns.h"

namespace titan::comm {
std::string describe(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

std::string words(const Call& call) {
  const std::string what = *call.name + " " + call.operation;
  return call.peer < 0 ? what + *call.among : what + " rank " + std::to_string(call.peer);
}

Pending::Pending(c10::intrusive_ptr<c10d::Work> work, Call call, std::vector<at::Tensor> keep_alive)
    : work_(std::move(work)), call_(std::move(call)), keep_alive_(std::move(keep_alive)) {}

void Pending::wait() {
  if (!work_.defined()) return;
  Turns::pass();
  const TraceScope trace([&] { return std::string("wait for ") + call_.operation + " " + *call_.name; });
  auto work = std::move(work_);
  work_.reset();
  translate(call_, [&] { return work->wait(); });
  keep_alive_.clear();
}

TraceScope Group::traced(const char* operation, const at::Tensor& tensor) const {
  return TraceScope([&] {
    return std::string(operation) + " " + *name_ + ", " + std::to_string(size()) + " ranks, " +
           std::to_string(tensor.nbytes()) + " bytes";
  });
}

Group::Group(std::string name, std::vector<int> ranks, int my_index, c10::intrusive_ptr<c10d::Backend> backend)
    : name_(std::make_shared<const std::string>(std::move(name))),
      ranks_(std::move(ranks)),
      among_(std::make_shared<const std::string>(" among " + listed(ranks_))),
      rank_(my_index),
      backend_(std::move(backend)) {}

Pending Group::all_gather(at::Tensor output, at::Tensor input) const {
  TORCH_CHECK(output.numel() == input.numel() * size(), *name_, " all_gather: ", output.numel(), " elements for ",
              size(), " pieces of ", input.numel());
  if (!backend_) {
    output.view({-1}).copy_(input.view({-1}));
    return {};
  }
  output = output.view({-1});
  input = input.view({-1});
  const Call what = call("all_gather");
  const TraceScope trace = traced("all_gather", output);
  auto work = translate(what, [&] { return backend_->_allgather_base(output, input, {}); });
  return {std::move(work), what, {std::move(output), std::move(input)}};
}

Pending Group::reduce_scatter(at::Tensor output, at::Tensor input) const {
  TORCH_CHECK(input.numel() == output.numel() * size(), *name_, " reduce_scatter: ", input.numel(), " elements for ",
              size(), " pieces of ", output.numel());
  if (!backend_) {
    output.view({-1}).copy_(input.view({-1}));
    return {};
  }
  output = output.view({-1});
  input = input.view({-1});
  const Call what = call("reduce_scatter");
  const TraceScope trace = traced("reduce_scatter", input);
  auto work = translate(what, [&] { return backend_->_reduce_scatter_base(output, input, {}); });
  return {std::move(work), what, {std::move(output), std::move(input)}};
}

Pending Group::all_reduce(at::Tensor tensor, c10d::ReduceOp::RedOpType operation) const {
  if (!backend_) return {};
  const Call what = call("all_reduce");
  const TraceScope trace = traced("all_reduce", tensor);
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
  const Call what = call("all_to_all");
  const TraceScope trace = traced("all_to_all", input);
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
  const Call what = call("all_to_all");
  const TraceScope trace = traced("all_to_all", input);
  auto work = translate(what, [&] { return backend_->alltoall_base(output, input, output_splits, input_splits, {}); });
  return {std::move(work), what, {std::move(output), std::move(input)}};
}

Pending Group::send(at::Tensor tensor, int peer, int tag) const {
  TORCH_CHECK(backend_, *name_, " send: a group of one has no peer");
  const Call what = call("send to", peer);
  const TraceScope trace = traced("send", tensor);
  std::vector<at::Tensor> tensors{tensor};
  auto work = translate(what, [&] { return backend_->send(tensors, peer, tag); });
  return {std::move(work), what, {std::move(tensor)}};
}

Pending Group::recv(at::Tensor tensor, int peer, int tag) const {
  TORCH_CHECK(backend_, *name_, " recv: a group of one has no peer");
  const Call what = call("recv from", peer);
  const TraceScope trace = traced("recv", tensor);
  std::vector<at::Tensor> tensors{tensor};
  auto work = translate(what, [&] { return backend_->recv(tensors, peer, tag); });
  return {std::move(work), what, {std::move(tensor)}};
}

Pending Group::broadcast(at::Tensor tensor, int root) const {
  if (!backend_) return {};
  const Call what = call("broadcast");
  const TraceScope trace = traced("broadcast", tensor);
  std::vector<at::Tensor> tensors{tensor};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  auto work = translate(what, [&] { return backend_->broadcast(tensors, options); });
  return {std::move(work), what, {std::move(tensor)}};
}

void Group::barrier() const {
  if (!backend_) return;
  translate(call("barrier"), [&] { return backend_->barrier({})->wait(); });
}

void Group::set_timeout(std::chrono::milliseconds timeout) const {
  if (backend_) backend_->setTimeout(timeout);
}

void Group::abort() const {
  if (backend_) backend_->abort();
}

}  // namespace titan::comm
