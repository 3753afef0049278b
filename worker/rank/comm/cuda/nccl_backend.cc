#include "worker/rank/comm/cuda/nccl_backend.h"

#include <c10/cuda/CUDAGuard.h>

#include <numeric>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>

#include "worker/rank/comm/cuda/lost_peer.h"
#include "worker/rank/comm/split_groups.h"

namespace titan::comm {
namespace {

using NcclGroup = c10::intrusive_ptr<c10d::ProcessGroupNCCL>;

// The communicator of all ranks and those that are split from it.
class NcclCommunicators final : public Communicators {
 public:
  // Returns when the world's communicator is connected.
  NcclCommunicators(const device::BackendOptions& options, at::Device device)
      : options_(options),
        device_(device),
        group_(connected("nccl", options.rank, options.size, blocking_options(options.max_ctas))) {}

  c10::intrusive_ptr<c10d::Backend> world() override { return group_; }

  c10::intrusive_ptr<c10d::Backend> cut(const CommSplit& cut, size_t number, int max_ctas) override {
    const CommSplitPart part = part_of(cut.groups, options_.rank);
    if (part.color < 0) {
      group_->performNocolorSplit(device_);
      return {};
    }
    auto nccl = blocking_options(max_ctas);
    nccl->split_from = group_;
    nccl->split_color = part.color;
    const std::string prefix = "nccl-" + std::to_string(number) + "/" + std::to_string(part.color);
    return connected(prefix, part.index, part.size, std::move(nccl));
  }

  std::function<void()> abort_notice() const override { return expect_broken_groups; }

 private:
  using NcclOptions = c10::intrusive_ptr<c10d::ProcessGroupNCCL::Options>;

  // Calls return when the communicator is ready, so that errors occur here and not in the first step.
  NcclOptions blocking_options(int max_ctas) const {
    auto nccl = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    nccl->timeout = options_.timeout;
    nccl->config.blocking = 1;
    if (max_ctas > 0) nccl->config.maxCTAs = max_ctas;
    return nccl;
  }

  // On a group that is connected eagerly, LibTorch sends messages through the group's communicator.
  NcclGroup connected(const std::string& prefix, int rank, int size, NcclOptions nccl) const {
    auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, options_.store);
    auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(std::move(store), rank, size, std::move(nccl));
    group->setBoundDeviceId(device_);
    group->eagerConnectSingleDevice(device_);
    return group;
  }

  const device::BackendOptions options_;
  const at::Device device_;
  const NcclGroup group_;
};

}  // namespace

std::vector<c10::intrusive_ptr<c10d::Backend>> open_nccl_groups(const std::vector<Connection>& connections,
                                                                const device::BackendOptions& world,
                                                                at::Device device) {
  if (connections.empty()) return {};
  const c10::cuda::CUDAGuard guard(device);
  NcclCommunicators communicators(world, device);
  return open_split_groups(connections, world, device, communicators);
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const device::BackendOptions& options, at::Device device) {
  std::vector<int> ranks(static_cast<size_t>(options.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const Messages messages = options.size > 1 ? Messages::kNeighbours : Messages::kNone;
  return open_nccl_groups({{.name = "group", .groups = {std::move(ranks)}, .messages = messages}}, options, device)[0];
}

}  // namespace titan::comm
