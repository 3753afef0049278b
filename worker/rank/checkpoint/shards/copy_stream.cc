#include "worker/rank/checkpoint/shards/copy_stream.h"

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace titan::checkpoint {
namespace {

class DeviceCopyStream final : public CopyStream {
 public:
  explicit DeviceCopyStream(at::Device device)
      : device_(device), guard_(device.type()), stream_(guard_.getStreamFromGlobalPool(device)), done_(device.type()) {}

  bool takes(const at::Tensor& tensor) const override { return tensor.device() == device_; }

  at::Tensor make_buffer(at::IntArrayRef sizes, at::ScalarType type) override {
    return at::empty(sizes, at::TensorOptions().dtype(type).pinned_memory(true));
  }

  void follow() override {
    c10::Event now(device_.type());
    now.record(guard_.getStream(device_));
    now.block(stream_);
  }

  void copy(const at::Tensor& to, const at::Tensor& from) override {
    const c10::StreamGuard here(stream_);
    to.copy_(from, /*non_blocking=*/true);
  }

  void mark() override { done_.record(stream_); }
  void block_current_stream() override { done_.block(guard_.getStream(device_)); }
  void wait() override { done_.synchronize(); }

 private:
  const at::Device device_;
  const c10::impl::VirtualGuardImpl guard_;
  const c10::Stream stream_;
  c10::Event done_;
};

}  // namespace

std::unique_ptr<CopyStream> make_copy_stream(at::Device device) { return std::make_unique<DeviceCopyStream>(device); }

}  // namespace titan::checkpoint
