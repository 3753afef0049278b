#pragma once

#include <ATen/ATen.h>

// A recipe that a parameter names (Parameter::products) may quantise the operands of a layer's products, dense and of
// experts.
namespace titan::nn {

struct RowGroups;

// An operand of a product: plain numbers, or quantised values with scales.
struct Operand {
  at::Tensor values;  // [...]
  at::Tensor scales;  // Undefined: the values are the numbers. Otherwise in the shape that the recipe defines.
  // Type of the numbers before they were quantised, and of a product's results. A recipe that quantises sets it for a
  // layer's input and an output's gradient. Operands that were kept between the passes, or were gathered quantised,
  // need not have it.
  at::ScalarType type = at::kBFloat16;

  bool quantised() const { return scales.defined(); }
};

// Computes the three products with a weight, and decides which form of their operands is kept between the passes.
// Results have the type of the layer's activations, [..., out] and [..., in]. A weight's gradient is [out, in] (of
// experts [experts, out, in]). A recipe is stateless: all microbatches, recomputation and the later half of a split
// backward pass call it in any order.
class MatmulRecipe {
 public:
  virtual ~MatmulRecipe() = default;

  // Whether quantising communicates with other ranks. If so, layers contain collectives, on every rank alike.
  virtual bool exchanges_with_ranks() const { return false; }

  // Returns the operand for a layer's input x [..., in]. It is kept for the backward pass in place of x. Products of
  // one input share it. A recipe that quantises along a different dimension for each product returns the input itself.
  virtual Operand of_input(const at::Tensor& x) const = 0;
  // Returns the same for a weight [out, in] or [experts, out, in], unless it was gathered quantised
  // (Parameter::arrived). It is not kept, but computed in each pass.
  virtual Operand of_weight(const at::Tensor& weight) const = 0;
  // Returns the same for the gradient dy [..., out] of the layer's output. Both products of the backward pass share it.
  virtual Operand of_gradient(const at::Tensor& dy) const = 0;

  // Returns x w^T, [..., out].
  virtual at::Tensor matmul_nt(const Operand& x, const Operand& weight) const = 0;
  // Adds dy w to sum [..., in], or sets sum to it if undefined.
  virtual void add_matmul_nn(at::Tensor& sum, const Operand& dy, const Operand& weight) const = 0;
  // Returns dy^T x over all rows, [out, in].
  virtual at::Tensor weight_gradient(const Operand& dy, const Operand& x) const = 0;

  // The same for rows that belong to one expert after the other, as in matmul.h: [n, out], [n, in] and [experts, out,
  // in].
  virtual at::Tensor grouped_matmul_nt(const Operand& x, const Operand& weights, const RowGroups& groups) const = 0;
  virtual at::Tensor grouped_matmul_nn(const Operand& dy, const Operand& weights, const RowGroups& groups) const = 0;
  virtual at::Tensor grouped_weight_gradient(const Operand& dy, const Operand& x, const RowGroups& groups) const = 0;
};

// Multiplies numbers as they are: bf16, fp32 or fp64, by matmul.h. Parameters use it unless they name another.
const MatmulRecipe& plain_matmul_recipe();

struct Parameter;
// Return the recipe of a weight's products, and the weight as they read it.
const MatmulRecipe& recipe_of(const Parameter& weight);
Operand operand_of(const Parameter& weight);

}  // namespace titan::nn
