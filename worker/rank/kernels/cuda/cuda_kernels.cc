// Exports titan_cuda_kernels (kernels/device_kernels.h) from libtitan_cuda.so.

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "worker/rank/kernels/cuda/launch.h"
#include "worker/rank/kernels/device_kernels.h"

namespace titan::kernels {
namespace {

// Launches on the current stream of the current device, which a rank and autograd's threads set once.
class OnCurrentStream final : public DeviceKernels {
 public:
  bool run(const RmsNormForward& args) const override { return args.dim > 0 && launched(args); }
  bool run(const RmsNormBackward& args) const override { return args.dim > 0 && launched(args); }
  bool run(const RopeRotation& args) const override { return args.dim % 2 == 0 && launched(args); }
  bool run(const SwigluForward& args) const override { return launched(args); }
  bool run(const SwigluBackward& args) const override { return launched(args); }
  bool run(const SumRows& args) const override { return launched(args); }
  bool run(const SumRowsBackward& args) const override {
    return (args.weights != nullptr || args.dx == nullptr) && launched(args);
  }
  bool run(const SoftmaxChunk& args) const override { return launched(args); }
  bool run(const CrossEntropyGradient& args, const float* scale) const override { return launched(args, scale); }
  bool run(const CrossEntropyLoss& args, float* loss) const override {
    C10_CUDA_CHECK(device::launch(args, loss, c10::cuda::getCurrentCUDAStream()));
    return true;
  }
  bool run(const LowBitAdam& args, const DeviceStep& where) const override {
    C10_CUDA_CHECK(device::launch(args, where, c10::cuda::getCurrentCUDAStream()));
    return true;
  }
  bool run(const Float8Amax& args) const override { return by_eights(args); }
  bool run(const Float8ColumnAmax& args) const override { return by_eights(args); }
  bool run(const Float8Cast& args) const override { return by_eights(args); }
  bool run(const Float8Rows& args) const override { return by_eights(args); }
  bool run(const Float8Columns& args) const override { return by_eights(args); }
  bool run(const TransposeBytes& args) const override { return by_eights(args); }
  bool run(const FindPaddedRows& args) const override { return by_eights(args); }

 private:
  template <typename Args>
  static bool by_eights(const Args& args) {
    const cudaError_t error = device::launch(args, c10::cuda::getCurrentCUDAStream());
    if (error == device::kDeclined) return false;
    C10_CUDA_CHECK(error);
    return true;
  }

  template <typename Args, typename... More>
  static bool launched(const Args& args, More... more) {
    if (args.type != Dtype::kBf16) return false;
    C10_CUDA_CHECK(device::launch(args, more..., c10::cuda::getCurrentCUDAStream()));
    return true;
  }
};

}  // namespace
}  // namespace titan::kernels

extern "C" __attribute__((visibility("default"))) const titan::kernels::DeviceKernels* titan_cuda_kernels() {
  static const titan::kernels::OnCurrentStream kernels;
  return &kernels;
}
