#include "worker/rank/kernels/device_kernels.h"

#include <dlfcn.h>

namespace titan::kernels {

const DeviceKernels* cuda_kernels() {
  const auto find = reinterpret_cast<CudaKernels>(dlsym(RTLD_DEFAULT, kCudaKernelsSymbol));
  return find == nullptr ? nullptr : find();
}

}  // namespace titan::kernels
