#include "worker/rank/kernels/cpu/gemm.h"

namespace titan::kernels {

namespace avx2 {
void gemm(const Gemm& args);
void weight_gradient(const WeightGradient& args);
}  // namespace avx2
namespace avx512 {
void gemm(const Gemm& args);
void weight_gradient(const WeightGradient& args);
}  // namespace avx512
namespace avx512bf16 {
void gemm(const Gemm& args);
void weight_gradient(const WeightGradient& args);
}  // namespace avx512bf16
namespace amx {
void gemm(const Gemm& args);
void weight_gradient(const WeightGradient& args);
}  // namespace amx

bool gemm(Level level, const Gemm& args) {
  if (args.scratch == nullptr) return false;
  switch (level) {
    case Level::kAvx2:
      avx2::gemm(args);
      break;
    case Level::kAvx512:
      avx512::gemm(args);
      break;
    case Level::kAvx512Bf16:
      avx512bf16::gemm(args);
      break;
    case Level::kAmx:
      amx::gemm(args);
      break;
  }
  return true;
}

bool weight_gradient(Level level, const WeightGradient& args) {
  if (args.scratch == nullptr) return false;
  switch (level) {
    case Level::kAvx2:
      avx2::weight_gradient(args);
      break;
    case Level::kAvx512:
      avx512::weight_gradient(args);
      break;
    case Level::kAvx512Bf16:
      avx512bf16::weight_gradient(args);
      break;
    case Level::kAmx:
      amx::weight_gradient(args);
      break;
  }
  return true;
}

}  // namespace titan::kernels
