#pragma once

#include <ATen/ATen.h>

// The place where low precision enters a layer's products (for dense layers and for experts): what they read may be
// quantised, by a recipe that a parameter names (Parameter::products).
namespace titan::nn {

struct RowGroups;

// What products read of a matrix: its numbers, or quantised ones.
struct Operand {
  at::Tensor values;
  at::Tensor scales;  // Undefined: the values are the numbers. Else as the recipe that made them says.
  // Of the numbers before they were quantised: a product's results have it. A layer's input and an output's gradient
  // say it as their recipe returns them; what was kept between the passes, or arrived, need not.
  at::ScalarType type = at::kBFloat16;

  bool quantised() const { return scales.defined(); }
};

// How the three products with a weight are computed, and what of their operands is kept between the passes. Results
// have the type of the layer's activations, [..., out] and [..., in]; a weight's gradient is [out, in] (of experts
// [experts, out, in]). A recipe has no state of a step: it is asked by all microbatches, recomputation and the later
// half of a split backward pass in any order.
class ProductRecipe {
 public:
  virtual ~ProductRecipe() = default;

  // Whether it asks other ranks as it quantises: layers with it have collectives inside, on every rank alike.
  virtual bool exchanges_with_ranks() const { return false; }

  // What the products read of a layer's input [..., in], kept for the backward pass in its place; products of one input
  // share it. A recipe that quantises along another dimension for each product returns the input itself.
  virtual Operand of_input(const at::Tensor& x) const = 0;
  // The same of a weight, unless it was gathered quantised (Parameter::arrived). Not kept: asked for in each pass.
  virtual Operand of_weight(const at::Tensor& weight) const = 0;
  // The same of the gradient of the layer's output [..., out]; both products of the backward pass share it.
  virtual Operand of_gradient(const at::Tensor& dy) const = 0;

  // x w^T.
  virtual at::Tensor times_transposed(const Operand& x, const Operand& weight) const = 0;
  // dy w, or with a defined `sum` sum += dy w.
  virtual void add_times(at::Tensor& sum, const Operand& dy, const Operand& weight) const = 0;
  // dy^T x over all rows.
  virtual at::Tensor weight_gradient(const Operand& dy, const Operand& x) const = 0;

  // Of rows that belong to one expert after the other, as matmul.h says.
  virtual at::Tensor grouped_times_transposed(const Operand& x, const Operand& weights,
                                              const RowGroups& groups) const = 0;
  virtual at::Tensor grouped_times(const Operand& dy, const Operand& weights, const RowGroups& groups) const = 0;
  virtual at::Tensor grouped_weight_gradient(const Operand& dy, const Operand& x, const RowGroups& groups) const = 0;
};

// Numbers as they are: bf16, fp32 or fp64, by matmul.h. What parameters name unless they are told another.
const ProductRecipe& plain_products();

struct Parameter;
// The recipe that a weight's products follow, and the weight as they read it.
const ProductRecipe& recipe_of(const Parameter& weight);
Operand operand_of(const Parameter& weight);

}  // namespace titan::nn
