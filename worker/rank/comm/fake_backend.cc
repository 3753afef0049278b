#include "worker/rank/comm/fake_backend.h"

#include <c10/util/accumulate.h>

#include <numeric>

namespace titan::comm {
namespace {

class DoneWork : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

c10::intrusive_ptr<c10d::Work> done() { return c10::make_intrusive<DoneWork>(); }

class FakeBackend : public c10d::Backend {
 public:
  using c10d::Backend::Backend;

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& /*tensors*/,
                                           const c10d::BroadcastOptions& /*options*/) override {
    return done();
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& /*tensors*/,
                                           const c10d::AllreduceOptions& /*options*/) override {
    return done();
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& /*options*/) override {
    TORCH_CHECK(output.numel() == size_ * input.numel() && output.scalar_type() == input.scalar_type(),
                "all_gather of ", input.sizes(), " ", input.scalar_type(), " into ", output.sizes(), " ",
                output.scalar_type(), " over ", size_, " ranks");
    return done();
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& /*options*/) override {
    TORCH_CHECK(input.numel() == size_ * output.numel() && output.scalar_type() == input.scalar_type(),
                "reduce_scatter of ", input.sizes(), " ", input.scalar_type(), " into ", output.sizes(), " ",
                output.scalar_type(), " over ", size_, " ranks");
    return done();
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& /*options*/) override {
    check_splits(output, output_splits);
    check_splits(input, input_splits);
    return done();
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& /*tensors*/, int /*destination*/, int /*tag*/) override {
    return done();
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& /*tensors*/, int /*source*/, int /*tag*/) override {
    return done();
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& /*options*/) override { return done(); }

  void setTimeout(std::chrono::milliseconds /*timeout*/) override {}
  const std::string getBackendName() const override { return "fake"; }

 private:
  void check_splits(const at::Tensor& tensor, const std::vector<int64_t>& splits) const {
    if (splits.empty()) {
      TORCH_CHECK(tensor.numel() % size_ == 0, "all_to_all: ", tensor.sizes(), " cannot be split into ", size_,
                  " equal pieces");
      return;
    }
    const int64_t rows = std::accumulate(splits.begin(), splits.end(), int64_t{0});
    TORCH_CHECK(static_cast<int>(splits.size()) == size_ && rows == tensor.size(0), "all_to_all: splits ", splits,
                " must be one per rank (", size_, ") and add up to ", tensor.size(0), " rows");
  }
};

class FakeDevice : public device::Device {
 public:
  at::Device torch_device() const override { return at::kMeta; }

  c10::intrusive_ptr<c10d::Backend> make_backend(const device::BackendOptions& options) override {
    return c10::make_intrusive<FakeBackend>(options.rank, options.size);
  }

  // Uses the allocator, so that memory counters see weights come and go.
  void resize_storage(c10::StorageImpl& storage, int64_t bytes) override {
    storage.set_data_ptr_noswap(c10::GetAllocator(c10::kMeta)->allocate(static_cast<size_t>(bytes)));
    storage.set_nbytes(bytes);
  }

  int64_t peak_memory_bytes() const override { return 0; }
  int64_t total_memory_bytes() const override { return 0; }
  std::string name() const override { return "none (dry run)"; }
};

}  // namespace

std::unique_ptr<device::Device> make_fake_device() { return std::make_unique<FakeDevice>(); }

}  // namespace titan::comm
