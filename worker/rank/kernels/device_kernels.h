#pragma once

#include <algorithm>
#include <cstdint>

#include "worker/rank/kernels/cpu/cross_entropy.h"
#include "worker/rank/kernels/cpu/expert_rows.h"
#include "worker/rank/kernels/cpu/low_bit_adam.h"
#include "worker/rank/kernels/cpu/rms_norm.h"
#include "worker/rank/kernels/cpu/rope.h"
#include "worker/rank/kernels/cpu/swiglu.h"
#include "worker/rank/kernels/float8_scales.h"

// Row operations on a device. They compute what worker/rank/kernels/cpu computes, but over device memory, with the same
// arguments (`threads` is ignored) and error bounds, for bf16 with fp32 statistics. Casts to eight-bit floats are here
// too.
namespace titan::kernels {

// Number of parts in which RMSNorm's weight gradient is summed. It depends only on the shape.
constexpr int64_t device_rms_norm_parts(int64_t rows, int64_t dim) {
  return std::min<int64_t>(rows, dim <= 512 ? 2048 : 512);
}

// Numbers that a step of LowBitAdam reads in device memory instead of from its arguments. The maps of its moments are
// in device memory too.
constexpr int64_t kLowBitAdamScratch = 10;
struct DeviceStep {
  // [1]: number of the step, from 1. Replaces `correction1`, `correction2` and `random_step`.
  const float* step = nullptr;
  const float* divisor = nullptr;  // [1]: divisor of the gradients, replaces `gradient_factor`. Null: 1.
  const float* skip = nullptr;     // [1]: nonzero changes nothing. Null: 0.
  float* scratch = nullptr;        // [kLowBitAdamScratch], in use until the step is done.
};

// Each call queues its work on the device's current stream and returns. False means that it declined and writes
// nothing. Throws if the device refuses the launch.
class DeviceKernels {
 public:
  virtual ~DeviceKernels() = default;

  virtual bool run(const RmsNormForward& args) const = 0;
  // `scratch` holds device_rms_norm_parts(rows, dim) * dim floats.
  virtual bool run(const RmsNormBackward& args) const = 0;
  virtual bool run(const RopeRotation& args) const = 0;
  virtual bool run(const SwigluForward& args) const = 0;
  virtual bool run(const SwigluBackward& args) const = 0;
  virtual bool run(const SumRows& args) const = 0;
  virtual bool run(const SumRowsBackward& args) const = 0;
  virtual bool run(const SoftmaxChunk& args) const = 0;
  // `scale`, [1], is read on the device and replaces the one in the arguments.
  virtual bool run(const CrossEntropyGradient& args, const float* scale) const = 0;
  // Sums in fp64 into `loss`, [1], in a fixed order that differs from the CPU's.
  virtual bool run(const CrossEntropyLoss& args, float* loss) const = 0;

  // Accepts float32 and bf16, and produces the bits of the CPU's kernels.
  virtual bool run(const LowBitAdam& args, const DeviceStep& where) const = 0;
  // These process eight numbers at a time. They require rows of a multiple of eight numbers, a multiple of sixteen rows
  // in matrices that are transposed, and data aligned to 16 bytes, and decline everything else.
  virtual bool run(const Float8Amax& args) const = 0;
  virtual bool run(const Float8ColumnAmax& args) const = 0;
  virtual bool run(const Float8Cast& args) const = 0;
  virtual bool run(const Float8Rows& args) const = 0;
  virtual bool run(const Float8Columns& args) const = 0;
  virtual bool run(const TransposeBytes& args) const = 0;
  virtual bool run(const FindPaddedRows& args) const = 0;

  // Whether these kernels work on host memory, as those of tests do.
  virtual bool on_host() const { return false; }
};

// Returns the kernels of CUDA devices. Null until libtitan_cuda.so is loaded, which comm::make_device does.
const DeviceKernels* cuda_kernels();

// Type and name of the symbol that libtitan_cuda.so exports for it.
using CudaKernels = const DeviceKernels* (*)();
inline constexpr char kCudaKernelsSymbol[] = "titan_cuda_kernels";

}  // namespace titan::kernels
