#include "worker/rank/comm/group.h"

#include <c10/util/Type.h>

#include <chrono>
#include <string_view>
#include <typeinfo>

#include "worker/rank/comm/turns.h"
#include "worker/rank/device/trace_scope.h"

namespace titan::comm {

void TransferSpan::wait_begins(c10d::Work& work) {
  transfer_.wait_ns = trace::now_ns();
  if (work.isCompleted()) transfer_.end_ns = std::max(transfer_.wait_ns, trace::now_ns());
}

void TransferSpan::wait_ended() {
  transfer_.waited_ns = trace::now_ns();
  if (transfer_.end_ns == 0) transfer_.end_ns = transfer_.waited_ns;
  spans_->add(std::move(transfer_));
}

bool is_timeout(const std::string& text) {
  for (const char* words : {kTookNoPart, "imed out", "iming out", "imeout"}) {
    if (text.find(words) != std::string::npos) return true;
  }
  return false;
}

bool is_disagreement(const std::string& text) { return text.find(kNotTheSame) != std::string::npos; }

std::string describe(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

std::string words(const Call& call) {
  const std::string what = *call.name + " " + call.operation;
  return call.peer < 0 ? what + *call.among : what + " rank " + std::to_string(call.peer);
}

namespace {

// Waits and adds the time to the ledger. Pending::wait() calls Turns::pass() first, so turns of the other half are not
// counted.
bool timed_wait(c10d::Work& work, Ledger* ledger) {
  if (ledger == nullptr) return work.wait();
  const auto began = std::chrono::steady_clock::now();
  const bool done = work.wait();
  ledger->add_wait(std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count());
  return done;
}

}  // namespace

Pending::Pending(c10::intrusive_ptr<c10d::Work> work, Call call, std::vector<at::Tensor> keep_alive,
                 std::unique_ptr<TransferSpan> span, Ledger* ledger)
    : work_(std::move(work)),
      call_(std::move(call)),
      keep_alive_(std::move(keep_alive)),
      span_(std::move(span)),
      ledger_(ledger) {}

void Pending::wait() {
  if (!work_.defined()) return;
  Turns::pass();
  const device::TraceScope trace([&] { return std::string("wait for ") + call_.operation + " " + *call_.name; });
  auto work = std::move(work_);
  work_.reset();
  const std::unique_ptr<TransferSpan> span = std::move(span_);
  translate(call_, [&] {
    if (span) span->wait_begins(*work);
    return timed_wait(*work, ledger_);
  });
  if (span) span->wait_ended();
  keep_alive_.clear();
}

Group::Group(std::string name, std::vector<int> ranks, int my_index, c10::intrusive_ptr<c10d::Backend> backend,
             std::shared_ptr<trace::SpanRecorder> spans, Ledger* ledger, std::optional<at::Device> device)
    : name_(std::make_shared<const std::string>(std::move(name))),
      ranks_(std::move(ranks)),
      among_(std::make_shared<const std::string>(" among " + listed(ranks_))),
      rank_(my_index),
      backend_(std::move(backend)),
      spans_(std::move(spans)),
      ledger_(ledger),
      device_(device) {}

void Group::check_device(const Call& call, const at::Tensor& tensor) const {
  if (!device_ || tensor.is_meta()) return;  // A tensor without memory only represents its shape.
  const at::Device place = tensor.device();
  const bool here = place.type() == device_->type() &&
                    (!place.has_index() || !device_->has_index() || place.index() == device_->index());
  TORCH_CHECK(here, words(call), ": a tensor on ", place, " cannot be sent between ranks on ", *device_);
}

template <typename Issue>
Pending Group::issue(const char* operation, Call call, size_t bytes, std::vector<at::Tensor> tensors,
                     const Issue& start) const {
  const device::TraceScope trace([&] {
    return std::string(operation) + " " + *name_ + ", " + std::to_string(size()) + " ranks, " + std::to_string(bytes) +
           " bytes";
  });
  for (const at::Tensor& tensor : tensors) check_device(call, tensor);
  auto span = TransferSpan::begin(spans_, operation, *name_, size(), bytes);
  auto work = translate(call, [&] { return start(tensors); });
  if (span) span->issued();
  return {std::move(work), std::move(call), std::move(tensors), std::move(span), ledger_};
}

Pending Group::all_gather(at::Tensor output, at::Tensor input) const {
  TORCH_CHECK(output.numel() == input.numel() * size(), *name_, " all_gather: the output has ", output.numel(),
              " elements, not ", size(), " pieces of ", input.numel());
  if (!backend_) {
    output.view({-1}).copy_(input.view({-1}));
    return {};
  }
  return issue("all_gather", call("all_gather"), output.nbytes(), {output.view({-1}), input.view({-1})},
               [&](auto& tensors) { return backend_->_allgather_base(tensors[0], tensors[1], {}); });
}

Pending Group::reduce_scatter(at::Tensor output, at::Tensor input) const {
  TORCH_CHECK(input.numel() == output.numel() * size(), *name_, " reduce_scatter: the input has ", input.numel(),
              " elements, not ", size(), " pieces of ", output.numel());
  if (!backend_) {
    output.view({-1}).copy_(input.view({-1}));
    return {};
  }
  return issue("reduce_scatter", call("reduce_scatter"), input.nbytes(), {output.view({-1}), input.view({-1})},
               [&](auto& tensors) { return backend_->_reduce_scatter_base(tensors[0], tensors[1], {}); });
}

Pending Group::all_reduce(at::Tensor tensor, c10d::ReduceOp::RedOpType operation) const {
  if (!backend_) return {};
  c10d::AllreduceOptions options;
  options.reduceOp = operation;
  const size_t bytes = tensor.nbytes();
  return issue("all_reduce", call("all_reduce"), bytes, {std::move(tensor)},
               [&](auto& tensors) { return backend_->allreduce(tensors, options); });
}

Pending Group::all_to_all(at::Tensor output, at::Tensor input) const {
  if (!backend_) {
    output.view({-1}).copy_(input.view({-1}));
    return {};
  }
  std::vector<int64_t> equal;
  const size_t bytes = input.nbytes();
  return issue("all_to_all", call("all_to_all"), bytes, {std::move(output), std::move(input)},
               [&](auto& tensors) { return backend_->alltoall_base(tensors[0], tensors[1], equal, equal, {}); });
}

Pending Group::all_to_all(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                          std::vector<int64_t> input_splits) const {
  if (!backend_) {
    output.copy_(input);
    return {};
  }
  const size_t bytes = input.nbytes();
  return issue("all_to_all", call("all_to_all"), bytes, {std::move(output), std::move(input)}, [&](auto& tensors) {
    return backend_->alltoall_base(tensors[0], tensors[1], output_splits, input_splits, {});
  });
}

Pending Group::send(at::Tensor tensor, int peer, int tag) const {
  TORCH_CHECK(backend_, *name_, " send: a group of one has no peer");
  const size_t bytes = tensor.nbytes();
  return issue("send", call("send to", peer), bytes, {std::move(tensor)},
               [&](auto& tensors) { return backend_->send(tensors, peer, tag); });
}

Pending Group::recv(at::Tensor tensor, int peer, int tag) const {
  TORCH_CHECK(backend_, *name_, " recv: a group of one has no peer");
  const size_t bytes = tensor.nbytes();
  return issue("recv", call("recv from", peer), bytes, {std::move(tensor)},
               [&](auto& tensors) { return backend_->recv(tensors, peer, tag); });
}

Pending Group::broadcast(at::Tensor tensor, int root) const {
  if (!backend_) return {};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  const size_t bytes = tensor.nbytes();
  return issue("broadcast", call("broadcast"), bytes, {std::move(tensor)},
               [&](auto& tensors) { return backend_->broadcast(tensors, options); });
}

void Group::barrier() const {
  if (!backend_) return;
  translate(call("barrier"), [&] { return timed_wait(*backend_->barrier({}), ledger_); });
}

void Group::set_timeout(std::chrono::milliseconds timeout) const {
  if (backend_) backend_->setTimeout(timeout);
}

void Group::abort() const {
  if (backend_) backend_->abort();
}

bool is_lost_connection(const std::exception& error) {
  static constexpr std::string_view kWrongUse[] = {"gloo::EnforceNotMet", "gloo::InvalidOperationException"};
  const std::string type = c10::demangle(typeid(error).name());
  return type.starts_with("gloo::") && std::ranges::find(kWrongUse, type) == std::end(kWrongUse);
}

}  // namespace titan::comm
