#include "tests/worker/rank/runtime/recorded_graphs.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/base/sync/sync.h"
#include "tests/testing/call_counter.h"

namespace titan::testing {
namespace {

// A key directly below autograd that nothing else uses.
constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;
constexpr int kGarbage = 0xFF;

// Returns the operations whose results, or their sizes, depend on values: a GPU's host would wait for them.
const std::set<std::string>& waiting_operations() {
  static const std::set<std::string> all = {"aten::_local_scalar_dense", "aten::equal", "aten::nonzero",
                                            "aten::masked_select", "aten::repeat_interleave.Tensor"};
  return all;
}

void fill_with_garbage(const DeviceBlock& block) { std::memset(block.memory->get(), kGarbage, block.bytes); }

// A tensor as an operation received it, without autograd's data.
class RecordedTensor {
 public:
  // `ours`: the recorded work allocated it, so it lives as long as the graph.
  RecordedTensor(const at::Tensor& tensor, bool ours)
      : storage_(tensor.storage().getWeakStorageImpl()), address_(tensor.storage().data()) {
    if (ours || tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      kept_ = tensor.variable_data();
      return;
    }
    is_conj_ = tensor.is_conj();
    is_neg_ = tensor.is_neg();
    type_ = tensor.dtype();
    sizes_ = tensor.sizes().vec();
    strides_ = tensor.strides().vec();
    offset_ = tensor.storage_offset();
  }

  at::Tensor again() const {
    if (kept_.defined()) return kept_;
    const auto storage = storage_.lock();
    if (!storage) throw std::runtime_error("a graph reads memory that is gone");
    if (storage->data() != address_) throw std::runtime_error("a graph reads memory that has moved");
    auto impl =
        c10::make_intrusive<at::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), type_);
    impl->set_sizes_and_strides(sizes_, strides_, offset_);
    const at::Tensor made(std::move(impl));
    made._set_conj(is_conj_);
    made._set_neg(is_neg_);
    return made;
  }

 private:
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  const void* address_;
  at::Tensor kept_;
  caffe2::TypeMeta type_;
  std::vector<int64_t> sizes_, strides_;
  int64_t offset_ = 0;
  bool is_conj_ = false, is_neg_ = false;
};

// Returns the same value with `change` applied to each defined tensor in it.
c10::IValue with_tensors(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& change) {
  const auto changed = [&](const at::Tensor& one) { return one.defined() ? change(one) : one; };
  if (value.isTensor()) return changed(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& one : value.toTensorVector()) list.push_back(changed(one));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& one : value.toOptionalTensorVector()) {
      list.push_back(one ? std::optional<at::Tensor>(changed(*one)) : one);
    }
    return list;
  }
  return value;
}

void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit) {
  with_tensors(value, [&](const at::Tensor& one) {
    visit(one);
    return one;
  });
}

struct RecordedCall {
  std::function<void()> own;  // From repeat_on_replay(); otherwise:
  std::optional<c10::OperatorHandle> operation;
  std::vector<c10::IValue> arguments;  // With stand-ins for tensors.
  std::vector<RecordedTensor> inputs;  // The tensors, in order.
  std::vector<RecordedTensor> results;
};

// One capture, on the thread that makes it.
class Recording {
 public:
  explicit Recording(bool fails) : fails_(fails), outer_(std::exchange(current_, this)) {}
  ~Recording() {
    current_ = outer_;
    for (const auto& [storage, bytes] : before_) std::memcpy(storage.mutable_data(), bytes.data(), bytes.size());
    for (const DeviceBlock& block : own_) fill_with_garbage(block);
  }

  static Recording* current() { return current_; }
  void keep(DeviceBlock block) {
    own_addresses_.insert(block.memory->get());
    own_.push_back(std::move(block));
  }

  static void see(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const c10::impl::ExcludeDispatchKeyGuard below(kKey);
    const c10::DispatchKeySet rest = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
    if (current_ == nullptr) return operation.redispatchBoxed(rest, stack);
    current_->record(operation, rest, stack);
  }

  std::vector<RecordedCall> calls;
  const std::vector<DeviceBlock>& own() const { return own_; }

 private:
  bool is_own(const at::Tensor& tensor) const {
    return own_addresses_.count(tensor.storage().data()) > 0 ||
           own_storages_.count(tensor.storage().unsafeGetStorageImpl()) > 0;
  }

  void remember(const at::Tensor& written) {
    if (is_own(written) || !seen_before_.insert(written.storage().unsafeGetStorageImpl()).second) return;
    const auto* bytes = static_cast<const char*>(written.storage().data());
    before_.emplace_back(written.storage(), std::vector<char>(bytes, bytes + written.storage().nbytes()));
  }

  void record(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const std::string name = c10::toString(operation.operator_name());
    if (waiting_operations().count(name) > 0) throw std::runtime_error(name + " while work is captured");
    if (fails_ && calls.size() == 3) throw std::runtime_error("this capture is to fail");
    const auto& schema = operation.schema();
    const size_t count = schema.arguments().size();
    RecordedCall call{{}, operation, {}, {}, {}};
    std::set<const c10::StorageImpl*> given;
    const at::Tensor stand_in = at::detail::empty_cpu({0}, at::TensorOptions());
    for (size_t i = 0; i < count; ++i) {
      const c10::IValue& argument = (*stack)[stack->size() - count + i];
      const bool written = schema.arguments()[i].alias_info() && schema.arguments()[i].alias_info()->isWrite();
      call.arguments.push_back(with_tensors(argument, [&](const at::Tensor& tensor) {
        given.insert(tensor.storage().unsafeGetStorageImpl());
        if (written) remember(tensor);
        call.inputs.emplace_back(tensor, is_own(tensor));
        return stand_in;
      }));
    }
    operation.redispatchBoxed(keys, stack);
    for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
      for_each_tensor((*stack)[i], [&](const at::Tensor& result) {
        auto* storage = result.storage().unsafeGetStorageImpl();
        if (given.count(storage) == 0) own_storages_.insert(storage);  // Includes storages without memory.
        call.results.emplace_back(result, is_own(result));
      });
    }
    calls.push_back(std::move(call));
  }

  static inline thread_local Recording* current_ = nullptr;
  const bool fails_;
  Recording* const outer_;
  std::set<const void*> own_addresses_;
  std::vector<DeviceBlock> own_;
  std::set<const c10::StorageImpl*> own_storages_;
  std::set<const c10::StorageImpl*> seen_before_;
  std::vector<std::pair<c10::Storage, std::vector<char>>> before_;
};

// Allocates the CPU's memory. Memory allocated during a capture belongs to the graph, as in the pool of a GPU's graph:
// it is not reused for anything else, even after it is freed.
class GraphAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory = cpu().allocate(bytes);
    Recording* const recording = Recording::current();
    if (recording == nullptr || bytes == 0) return memory;
    void* const address = memory.get();
    const auto shared = std::make_shared<c10::DataPtr>(std::move(memory));
    recording->keep({shared, bytes});
    const sync::Lock lock(mutex_);
    lent_[address] = shared;
    return {address, address, let_go, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return let_go; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static c10::Allocator& cpu() { return *c10::GetDefaultCPUAllocator(); }

  // If LibTorch frees a pointer by itself, the deleter gets only that pointer.
  static void let_go(void* address) {
    {
      const sync::Lock lock(mutex_);
      if (lent_.erase(address) > 0) return;
    }
    cpu().raw_deallocate(address);
  }

  static inline sync::Mutex mutex_;
  static inline auto& lent_ TITAN_GUARDED_BY(mutex_) = *new std::map<void*, std::shared_ptr<c10::DataPtr>>;
};

// Sets the allocator before any rank's thread allocates.
const bool allocator_is_set = [] {
  c10::SetCPUAllocator(new GraphAllocator);
  return true;
}();

class RecordedGraph final : public device::DeviceGraph {
 public:
  RecordedGraph(std::vector<RecordedCall> calls, std::vector<DeviceBlock> own,
                std::shared_ptr<std::vector<DeviceBlock>> shared, std::shared_ptr<GraphCounts> counts)
      : calls_(std::move(calls)), own_(std::move(own)), shared_(std::move(shared)), counts_(std::move(counts)) {}

  void replay() override {
    ++counts_->replays;
    const CallCounter::OneCall launch;
    for (const DeviceBlock& block : *shared_) fill_with_garbage(block);
    const at::AutoDispatchBelowADInplaceOrView below;
    for (const RecordedCall& call : calls_) {
      if (call.own) {
        call.own();
        continue;
      }
      torch::jit::Stack stack;
      auto input = call.inputs.begin();
      for (const c10::IValue& argument : call.arguments) {
        stack.push_back(with_tensors(argument, [&](const at::Tensor&) { return (input++)->again(); }));
      }
      call.operation->callBoxed(&stack);
      auto result = call.results.begin();
      for (const c10::IValue& value : stack) {
        for_each_tensor(value, [&](const at::Tensor& made) {
          const at::Tensor place = (result++)->again();
          if (place.const_data_ptr() != made.const_data_ptr()) place.copy_(made);
        });
      }
    }
  }

 private:
  const std::vector<RecordedCall> calls_;
  const std::vector<DeviceBlock> own_;
  const std::shared_ptr<std::vector<DeviceBlock>> shared_;
  const std::shared_ptr<GraphCounts> counts_;
};

}  // namespace

TORCH_LIBRARY_IMPL(_, Fake, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&Recording::see>()); }

void repeat_on_replay(std::function<void()> operation) {
  if (Recording* const recording = Recording::current()) {
    recording->calls.push_back({std::move(operation), std::nullopt, {}, {}, {}});
  }
}

bool is_captured() { return Recording::current() != nullptr; }

RecordingDevice::RecordingDevice(std::unique_ptr<device::Device> cpu, std::shared_ptr<GraphCounts> counts)
    : cpu_(std::move(cpu)), counts_(std::move(counts)) {}

RecordingDevice::~RecordingDevice() = default;

std::unique_ptr<device::DeviceGraph> RecordingDevice::capture(const std::function<void()>& work,
                                                              device::GraphMemory memory) {
  const bool fails = fail_from_ >= 0 && captures_ >= fail_from_;
  ++captures_;
  std::vector<RecordedCall> calls;
  std::vector<DeviceBlock> own;
  try {
    Recording recording(fails);
    const c10::impl::IncludeDispatchKeyGuard including(kKey);
    work();
    calls = std::move(recording.calls);
    own = recording.own();
  } catch (...) {
    ++counts_->failures;
    throw;
  }
  ++counts_->captures;
  counts_->recorded += static_cast<int>(calls.size());
  if (memory == device::GraphMemory::kShared) shared_->insert(shared_->end(), own.begin(), own.end());
  return std::make_unique<RecordedGraph>(std::move(calls), std::move(own), shared_, counts_);
}

}  // namespace titan::testing
