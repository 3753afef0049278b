#include "common/plan/models/vision_activations.h"

namespace titan::models {
namespace {

constexpr int64_t kPixelBytes = 4;

// Adds up what the operations of one block keep for the backward pass.
class VisionTally {
 public:
  VisionTally(const VisionSpec& spec, const VisionShape& shape)
      : spec_(spec), shape_(shape), e_(shape.element_bytes), wide_(e_ == 8 ? 8 : 4) {}

  BlockActivations embeddings() {
    if (e_ != kPixelBytes) keep(spec_.patch_values());
    result_.by_operation = result_.graph;  // Never recomputed.
    return result_;
  }

  BlockActivations layer() {
    result_.input = bytes(spec_.dim);
    norm();
    for (int i = 0; i < 3; ++i) product(spec_.dim, spec_.dim);
    keep(3 * spec_.dim);
    attention();
    product(spec_.dim, spec_.dim);
    keep(spec_.dim);  // The sum of input and attention, which the second norm reads.
    norm();
    product(spec_.dim, spec_.ffn_hidden);
    keep(2 * spec_.ffn_hidden);  // The activation's input and result.
    product(spec_.ffn_hidden, spec_.dim);
    return result_;
  }

  BlockActivations projector() {
    result_.input = bytes(spec_.dim);
    norm();
    product(spec_.dim, spec_.dim);
    keep(2 * spec_.dim);  // The activation's input and result.
    product(spec_.dim, spec_.out_dim);
    return result_;
  }

 private:
  int64_t bytes(int64_t columns) const { return shape_.patches * columns * e_; }
  void keep(int64_t columns) { result_.graph += bytes(columns); }

  // Counts the mean and the deviation of each patch, and the result. The input is counted elsewhere.
  void norm() {
    result_.graph += 2 * shape_.patches * wide_;
    keep(spec_.dim);
  }

  // Counts a matrix product that a memory budget may keep. Recomputation by operation keeps none, because all have
  // biases.
  void product(int64_t depth, int64_t columns) {
    result_.costly.push_back({bytes(columns), 2.0 * static_cast<double>(shape_.patches * depth * columns)});
  }

  // Counts the result and the logs of the denominators.
  void attention() {
    const int64_t all = bytes(spec_.dim) + shape_.patches * spec_.n_heads * wide_;
    result_.graph += all;
    result_.by_operation += all;
    result_.costly.push_back(
        {all, 4.0 * static_cast<double>(shape_.patches * spec_.dim) * static_cast<double>(shape_.patches_of_image)});
  }

  const VisionSpec& spec_;
  const VisionShape& shape_;
  const int64_t e_, wide_;
  BlockActivations result_;
};

}  // namespace

std::vector<BlockActivations> block_activations(const VisionSpec& spec, const VisionShape& shape) {
  std::vector<BlockActivations> blocks{VisionTally(spec, shape).embeddings()};
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) blocks.push_back(VisionTally(spec, shape).layer());
  blocks.push_back(VisionTally(spec, shape).projector());
  return blocks;
}

}  // namespace titan::models
