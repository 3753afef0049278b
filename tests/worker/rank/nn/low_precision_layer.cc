// Trains one layer with eight-bit products, for comparisons:
//   low_precision_layer RECIPE ROUNDING TYPE ROWS IN OUT STEPS RATE < INPUT > OUTPUT
// RECIPE: tensorwise, rowwise, rowwise_with_gw_hp, mxfp8. ROUNDING: floor, rceil, ceil, even. TYPE: bf16 or fp32. ROWS:
// a number, or the rows of each expert as "32,0,64". INPUT and OUTPUT are numbers of that type, one tensor after the
// other: x [rows, in], w [out, in] (of experts [experts, out, in]) and the target t [rows, out]; the first step's y, dx
// and dw for dy = y - t, and w after all steps of w -= rate * dw.
#include <torch/csrc/autograd/autograd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "worker/rank/kernels/choice.h"
#include "worker/rank/nn/low_precision/recipes.h"
#include "worker/rank/nn/matmul_autograd.h"

namespace {

using titan::nn::LowPrecisionRecipe;
using titan::nn::MxRounding;

const std::map<std::string, LowPrecisionRecipe> kRecipes = {
    {"tensorwise", LowPrecisionRecipe::kFloat8Tensorwise},
    {"rowwise", LowPrecisionRecipe::kFloat8Rowwise},
    {"rowwise_with_gw_hp", LowPrecisionRecipe::kFloat8RowwiseGwHp},
    {"mxfp8", LowPrecisionRecipe::kMxfp8}};
const std::map<std::string, MxRounding> kRoundings = {{"floor", MxRounding::kFloor},
                                                      {"rceil", MxRounding::kRceil},
                                                      {"ceil", MxRounding::kCeil},
                                                      {"even", MxRounding::kEven}};

std::vector<int64_t> numbers_of(const std::string& text) {
  std::vector<int64_t> numbers;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) numbers.push_back(std::stoll(part));
  return numbers;
}

at::Tensor read(const std::vector<int64_t>& shape, at::ScalarType type) {
  at::Tensor tensor = at::empty(shape, type);
  TORCH_CHECK(std::fread(tensor.mutable_data_ptr(), 1, tensor.nbytes(), stdin) == tensor.nbytes(), "input is short");
  return tensor;
}

void write(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().contiguous();
  TORCH_CHECK(std::fwrite(dense.const_data_ptr(), 1, dense.nbytes(), stdout) == dense.nbytes(), "output is short");
}

titan::nn::Parameter parameter_of(const at::Tensor& value, const titan::nn::MatmulRecipe& products) {
  titan::nn::Parameter parameter{"w", value.sizes().vec(), {}, {}};
  parameter.weight = value.set_requires_grad(true);
  parameter.products = &products;
  return parameter;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9)
    return std::fputs("usage: low_precision_layer RECIPE ROUNDING TYPE ROWS IN OUT STEPS RATE\n", stderr), 2;
  const auto products =
      titan::nn::make_low_precision_recipe({.recipe = kRecipes.at(argv[1]), .rounding = kRoundings.at(argv[2])});
  titan::kernels::choose("auto");
  const at::ScalarType type = std::string(argv[3]) == "bf16" ? at::kBFloat16 : at::kFloat;
  const std::vector<int64_t> groups = numbers_of(argv[4]);
  const int64_t in = std::stoll(argv[5]), out = std::stoll(argv[6]);
  const bool experts = groups.size() > 1;
  int64_t rows = 0;
  for (const int64_t count : groups) rows += count;

  const at::Tensor x = read({rows, in}, type).set_requires_grad(true);
  std::vector<int64_t> shape{out, in};
  if (experts) shape.insert(shape.begin(), static_cast<int64_t>(groups.size()));
  titan::nn::Parameter weight = parameter_of(read(shape, type), *products);
  const at::Tensor target = read({rows, out}, type);
  for (int step = 0; step < std::atoi(argv[7]); ++step) {
    const at::Tensor y = experts ? titan::nn::grouped_product(x, weight, nullptr, 1, titan::nn::group_rows(groups, x))
                                 : titan::nn::matrix_product(x, weight);
    const auto gradients = torch::autograd::grad({y}, {x, weight.weight}, {y.detach() - target});
    if (step == 0) write(y), write(gradients[0]), write(gradients[1]);
    weight.weight = (weight.weight.detach() - std::atof(argv[8]) * gradients[1]).set_requires_grad(true);
  }
  write(weight.weight);
  return 0;
}
