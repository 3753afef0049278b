#include "worker/rank/nn/matmul.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_grouped_mm.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "worker/rank/kernels/cpu/gemm.h"
#include "worker/rank/nn/own_kernels.h"

namespace titan::nn {
namespace {

// Most bytes of a packed fp32 operand: weights (a vocabulary's are cut to this size), and rows of a layer's input.
constexpr int64_t kMaxPackedBytes = 8 << 20, kMaxPackedRowsBytes = 16 << 20;

// Returns how many columns of `depth` numbers fit, but at least as many as justify packing the other operand again.
int64_t columns_at_once(int64_t depth, int64_t max_bytes, int64_t least) {
  const int64_t column_bytes = static_cast<int64_t>(sizeof(float)) * kernels::gemm_panels(std::max<int64_t>(depth, 1));
  return std::max(max_bytes / column_bytes / 32 * 32, least);
}

at::Tensor as_matrix(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// Makes the last dimension contiguous.
at::Tensor dense_rows(const at::Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

const uint16_t* bits(const at::Tensor& x) { return reinterpret_cast<const uint16_t*>(x.const_data_ptr()); }

// Returns the address of the element `count` after the first of a result.
void* elements_after(const at::Tensor& c, int64_t count) {
  return static_cast<char*>(c.mutable_data_ptr()) + count * static_cast<int64_t>(c.element_size());
}

kernels::Dtype type_of(const at::Tensor& c) {
  return c.scalar_type() == at::kFloat ? kernels::Dtype::kF32 : kernels::Dtype::kBf16;
}

// Nearly always returns `x` itself, without a call of LibTorch's dispatcher.
at::Tensor in_type(const at::Tensor& x, at::ScalarType type) { return x.scalar_type() == type ? x : x.to(type); }

at::DataPtr scratch_of(int64_t bytes) { return c10::GetCPUAllocator()->allocate(bytes); }

std::vector<int64_t> shape_with(const at::Tensor& x, int64_t last) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = last;
  return shape;
}

// Computes c = a b^T, or a b if `deep`, over the rows of each group, or adds it to c with `add`. weights is [groups,
// out, in], or [out, in] for one group. Computes as many columns at a time as may be packed at once.
void own_product(const at::Tensor& input, const at::Tensor& weights, const std::vector<int64_t>& rows, bool deep,
                 at::Tensor& c, bool add) {
  const at::Tensor a = rows_of(input), b = dense_rows(weights);
  const int64_t columns = c.size(-1), depth = a.size(1);
  const int64_t step = columns_at_once(depth, kMaxPackedBytes, 256);
  const int threads = at::get_num_threads();
  const at::DataPtr scratch = scratch_of(kernels::gemm_scratch(std::min(step, columns), depth, threads));
  for (int64_t first = 0; first < columns; first += step) {
    check_accepted(kernels::gemm(*kernels::chosen_level(), {.rows = a.size(0),
                                                            .columns = std::min(step, columns - first),
                                                            .depth = depth,
                                                            .groups = static_cast<int64_t>(rows.size()),
                                                            .group_rows = rows.data(),
                                                            .a = bits(a),
                                                            .a_stride = a.stride(0),
                                                            .b = bits(b) + first * (deep ? 1 : b.stride(-2)),
                                                            .b_stride = b.stride(-2),
                                                            .b_group = b.dim() == 3 ? b.stride(0) : 0,
                                                            .b_is_deep = deep,
                                                            .c = elements_after(c, first),
                                                            .c_type = type_of(c),
                                                            .c_stride = columns,
                                                            .add = add,
                                                            .scratch = scratch.get(),
                                                            .threads = threads}));
  }
}

at::Tensor own_product(const at::Tensor& input, const at::Tensor& weights, const std::vector<int64_t>& rows, bool deep,
                       at::ScalarType result) {
  at::Tensor c = uninitialized(shape_with(input, weights.size(deep ? -1 : -2)), input.options().dtype(result));
  own_product(input, weights, rows, deep, c, /*add=*/false);
  return c;
}

// Writes each group's [out, in] to `gradients`, one after the other. Computes as many inputs at a time as may be packed
// at once.
void own_weight_gradients(const at::Tensor& dy_rows, const at::Tensor& x_rows, const std::vector<int64_t>& rows,
                          at::Tensor& gradients) {
  const at::Tensor dy = rows_of(dy_rows), x = rows_of(x_rows);
  const int64_t outputs = dy.size(1), inputs = x.size(1);
  // Sized for any load of experts, even if one has all rows.
  const int64_t step = columns_at_once(x.size(0), kMaxPackedRowsBytes, 128);
  const int threads = at::get_num_threads();
  const at::DataPtr scratch = scratch_of(kernels::gemm_scratch(std::min(step, inputs), x.size(0), threads));
  for (int64_t first = 0; first < inputs; first += step) {
    check_accepted(kernels::weight_gradient(*kernels::chosen_level(), {.rows = x.size(0),
                                                                       .outputs = outputs,
                                                                       .inputs = std::min(step, inputs - first),
                                                                       .groups = static_cast<int64_t>(rows.size()),
                                                                       .group_rows = rows.data(),
                                                                       .dy = bits(dy),
                                                                       .dy_stride = dy.stride(0),
                                                                       .x = bits(x) + first,
                                                                       .x_stride = x.stride(0),
                                                                       .c = elements_after(gradients, first),
                                                                       .c_type = type_of(gradients),
                                                                       .c_stride = inputs,
                                                                       .c_group = outputs * inputs,
                                                                       .scratch = scratch.get(),
                                                                       .threads = threads}));
  }
}

// Multiplies each group's rows of x by matrices[group], [in, out], a view of one weight, so nothing is copied.
at::Tensor one_by_one(const at::Tensor& x, const at::Tensor& matrices, const RowGroups& groups) {
  at::Tensor y = at::empty({x.size(0), matrices.size(2)}, x.options());
  for_each_group(rows_on_host(groups), [&](int64_t group, int64_t first, int64_t count) {
    if (count == 0) return;
    at::Tensor part = y.narrow(0, first, count);
    at::mm_out(part, x.narrow(0, first, count), matrices.select(0, group));
  });
  return y;
}

// Whether x is bf16 and its rows begin at multiples of 16 bytes, as CUTLASS's grouped kernel requires.
bool rows_are_aligned(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 && x.is_contiguous() && x.size(-1) % 8 == 0 &&
         reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

bool fits_one_call(const RowGroups& groups, const at::Tensor& x, const at::Tensor& y, int64_t width) {
  return groups.ends.defined() && x.size(0) > 0 && width % 8 == 0 && rows_are_aligned(x) && rows_are_aligned(y);
}

// Multiplies each group's rows of x by weights[group], or by its transposed view.
at::Tensor of_all_groups(const at::Tensor& x, const at::Tensor& weights, bool transposed, const RowGroups& groups) {
  const at::Tensor matrices = transposed ? weights.transpose(1, 2) : weights;
  if (fits_one_call(groups, x, weights, matrices.size(2))) return at::_grouped_mm(x, matrices, groups.ends);
  return one_by_one(x, matrices, groups);
}

using Product = at::Tensor (*)(const at::Tensor&, const at::Tensor&);

at::Tensor own_or(const at::Tensor& x, const at::Tensor& weight, bool deep, ResultType wanted, Product otherwise) {
  const at::ScalarType result = wanted.value_or(x.scalar_type());
  if (can_use_own_gemm(x, weight)) return own_product(x, weight, {x.numel() / x.size(-1)}, deep, result);
  return otherwise(in_type(x, result), in_type(weight, result));
}

}  // namespace

bool can_use_own_gemm(const at::Tensor& x, const at::Tensor& y) {
  return can_use_cpu_kernels(x) && y.scalar_type() == x.scalar_type();
}

at::Tensor matmul_nt(const at::Tensor& x, const at::Tensor& weight, ResultType result) {
  return own_or(x, weight, /*deep=*/false, result,
                [](const at::Tensor& a, const at::Tensor& b) { return at::linear(a, b); });
}

at::Tensor matmul_nn(const at::Tensor& dy, const at::Tensor& weight, ResultType result) {
  return own_or(dy, weight, /*deep=*/true, result,
                [](const at::Tensor& a, const at::Tensor& b) { return at::matmul(a, b); });
}

void add_matmul_nn(at::Tensor& sum, const at::Tensor& dy, const at::Tensor& weight) {
  if (!sum.defined()) {
    sum = matmul_nn(dy, weight);
  } else if (can_use_own_gemm(dy, weight) && sum.is_contiguous()) {
    own_product(dy, weight, {dy.numel() / dy.size(-1)}, /*deep=*/true, sum, /*add=*/true);
  } else {
    sum.add_(matmul_nn(dy, weight));
  }
}

at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x, ResultType wanted) {
  const at::ScalarType result = wanted.value_or(x.scalar_type());
  if (!can_use_own_gemm(x, dy)) return at::mm(in_type(as_matrix(dy), result).t(), in_type(as_matrix(x), result));
  at::Tensor gradient = uninitialized({dy.size(-1), x.size(-1)}, x.options().dtype(result));
  own_weight_gradients(dy, x, {x.numel() / x.size(-1)}, gradient);
  return gradient;
}

at::Tensor grouped_matmul_nt(const at::Tensor& x, const at::Tensor& weights, const RowGroups& groups,
                             ResultType wanted) {
  const at::ScalarType result = wanted.value_or(x.scalar_type());
  at::Tensor y = can_use_own_gemm(x, weights)
                     ? own_product(x, weights, rows_on_host(groups), /*deep=*/false, result)
                     : of_all_groups(in_type(x, result), in_type(weights, result), /*transposed=*/true, groups);
  clear_rows_of_no_group(y, groups);
  return y;
}

at::Tensor grouped_matmul_nn(const at::Tensor& dy, const at::Tensor& weights, const RowGroups& groups,
                             ResultType wanted) {
  const at::ScalarType result = wanted.value_or(dy.scalar_type());
  at::Tensor dx = can_use_own_gemm(dy, weights)
                      ? own_product(dy, weights, rows_on_host(groups), /*deep=*/true, result)
                      : of_all_groups(in_type(dy, result), in_type(weights, result), /*transposed=*/false, groups);
  clear_rows_of_no_group(dx, groups);
  return dx;
}

at::Tensor grouped_weight_gradient(const at::Tensor& dy_rows, const at::Tensor& x_rows, const RowGroups& groups,
                                   ResultType wanted) {
  const at::ScalarType result = wanted.value_or(x_rows.scalar_type());
  const std::vector<int64_t> shape = {groups.count(), dy_rows.size(1), x_rows.size(1)};
  const at::TensorOptions options = x_rows.options().dtype(result);
  if (can_use_own_gemm(x_rows, dy_rows)) {
    at::Tensor own = uninitialized(shape, options);
    own_weight_gradients(dy_rows, x_rows, rows_on_host(groups), own);
    return own;
  }
  const at::Tensor dy = in_type(dy_rows, result), x = in_type(x_rows, result);
  // The kernel writes zeros for a group without rows if the summed dimension is the outer one of both.
  if (fits_one_call(groups, dy, x, x.size(1))) return at::_grouped_mm(dy.t(), x, groups.ends);
  at::Tensor gradient = at::empty(shape, options);
  for_each_group(rows_on_host(groups), [&](int64_t group, int64_t first, int64_t count) {
    at::Tensor part = gradient.select(0, group);
    if (count == 0) {
      part.zero_();
    } else {
      at::mm_out(part, dy.narrow(0, first, count).t(), x.narrow(0, first, count));
    }
  });
  return gradient;
}

namespace {

// Returns the CPU time of this thread, which other work of the machine does not affect.
double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_of_product(const at::Tensor& x, const at::Tensor& weight) {
  const double began = cpu_seconds();
  const at::Tensor product = matmul_nt(x, weight);
  return cpu_seconds() - began;
}

class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_ = at::get_num_threads();
};

}  // namespace

double product_speed(at::ScalarType type) {
  const at::NoGradGuard no_grad;
  const int threads = at::get_num_threads();
  const OneThread one_thread;
  double best = 0, spent = 0;
  int64_t size = 256;
  for (int runs = 0; runs < 2 || spent < 8e-3; ++runs) {
    const at::Tensor x = at::ones({size / 2, size}, type), weight = at::ones({size, size}, type);
    const double seconds = seconds_of_product(x, weight);
    spent += seconds;
    best = std::max(best, static_cast<double>(size * size * size) / seconds);  // 2 * rows * in * out.
    if (seconds < 1e-3 && size < 2048) size *= 2;
  }
  return threads * best;
}

}  // namespace titan::nn
