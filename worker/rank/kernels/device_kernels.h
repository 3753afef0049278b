#pragma once

#include <algorithm>
#include <cstdint>

#include "worker/rank/kernels/cpu/cross_entropy.h"
#include "worker/rank/kernels/cpu/expert_rows.h"
#include "worker/rank/kernels/cpu/rms_norm.h"
#include "worker/rank/kernels/cpu/rope.h"
#include "worker/rank/kernels/cpu/small_adam.h"
#include "worker/rank/kernels/cpu/swiglu.h"
#include "worker/rank/kernels/float8_scales.h"

// Row operations on a device: those of worker/rank/kernels/cpu over the device's memory, with the same arguments
// (`threads` means nothing here) and bounds. bf16; statistics are fp32. And what eight-bit floats ask of a device.
namespace titan::kernels {

// How many rows' sums RMSNorm's weight gradient is made of; the shape alone decides.
constexpr int64_t device_rms_norm_parts(int64_t rows, int64_t dim) {
  return std::min<int64_t>(rows, dim <= 512 ? 2048 : 512);
}

// What a step of SmallAdam reads on the device instead of its arguments (learning_rate is theirs): the step's number
// from 1, as `correction1`, `correction2` and `random_step`; what gradients are divided by (null: 1); and whether
// nothing is touched (null or 0: no). Its moments' maps are in the device's memory too.
constexpr int64_t kSmallAdamScratch = 10;
struct DeviceStep {
  const float* step = nullptr;
  const float* divisor = nullptr;
  const float* skip = nullptr;
  float* scratch = nullptr;  // kSmallAdamScratch floats, until the step is done.
};

// Each call queues its work on the device's current stream and returns; false: declined, nothing will be written.
// Throws where the device refuses.
class DeviceKernels {
 public:
  virtual ~DeviceKernels() = default;

  virtual bool run(const RmsNormForward& args) const = 0;
  // `scratch` has device_rms_norm_parts(rows, dim) * dim floats.
  virtual bool run(const RmsNormBackward& args) const = 0;
  virtual bool run(const Rope& args) const = 0;
  virtual bool run(const SwigluForward& args) const = 0;
  virtual bool run(const SwigluBackward& args) const = 0;
  virtual bool run(const SumRows& args) const = 0;
  virtual bool run(const SumRowsBackward& args) const = 0;
  virtual bool run(const SoftmaxChunk& args) const = 0;
  // The scale is read on the device, not from the arguments.
  virtual bool run(const CrossEntropyGradient& args, const float* scale) const = 0;
  // Summed in fp64, in an order of its own.
  virtual bool run(const CrossEntropyLoss& args, float* loss) const = 0;

  // float32 and bf16; the bits are those of the CPU's kernels.
  virtual bool run(const SmallAdam& args, const DeviceStep& where) const = 0;
  // Numbers by eight: lengths are multiples of it (of sixteen for rows that turn into neighbours), or they decline.
  virtual bool run(const Float8Amax& args) const = 0;
  virtual bool run(const Float8ColumnAmax& args) const = 0;
  virtual bool run(const Float8Cast& args) const = 0;
  virtual bool run(const Float8Rows& args) const = 0;
  virtual bool run(const Float8Columns& args) const = 0;
  virtual bool run(const TurnBytes& args) const = 0;
  virtual bool run(const FindSpreadRows& args) const = 0;

  // Whether they take the host's memory: a test's.
  virtual bool on_host() const { return false; }
};

// Those of CUDA devices; null where libtitan_cuda.so is not loaded (comm::make_device loads it).
const DeviceKernels* cuda_kernels();

// What libtitan_cuda.so exports for it.
using CudaKernels = const DeviceKernels* (*)();
inline constexpr char kCudaKernelsSymbol[] = "titan_cuda_kernels";

}  // namespace titan::kernels
