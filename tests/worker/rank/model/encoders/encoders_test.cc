// Tests the encoders' blocks without files: their sizes, memory, random values, and inputs that are
// refused. Their numbers are compared with other programs' in encoders_oracle_test.py.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "common/plan/encoders/cost.h"
#include "tests/testing/allocation_meter.h"
#include "tests/worker/rank/model/encoders/small_models.h"
#include "worker/rank/model/encoders/clip_text.h"
#include "worker/rank/model/encoders/int8_rows.h"
#include "worker/rank/model/encoders/parameters.h"
#include "worker/rank/model/encoders/t5.h"

namespace titan::encoders {
namespace {

ParameterCount counted(const std::vector<nn::Parameter*>& parameters) {
  ParameterCount count;
  for (const nn::Parameter* parameter : parameters) {
    EXPECT_TRUE(parameter->frozen) << parameter->fqn;
    const int64_t elements = c10::multiply_integers(parameter->shape);
    ++count.tensors;
    count.elements += elements;
    count.of_linear += parameter->of_linear ? elements : 0;
  }
  return count;
}

void expect_count(const ParameterCount& formula, const ParameterCount& built, int64_t tensors, int64_t elements) {
  EXPECT_EQ(formula.tensors, tensors);
  EXPECT_EQ(formula.elements, elements);
  EXPECT_EQ(built.tensors, tensors);
  EXPECT_EQ(built.elements, elements);
  EXPECT_EQ(built.of_linear, formula.of_linear);
}

// The encoders of FLUX.1 have as many parameters as their files. Nothing is allocated for them.
TEST(EncodersTest, SizesOfFluxFollowFromClosedForms) {
  const T5Options t5{
      .vocab_size = 32128, .dim = 4096, .num_layers = 24, .num_heads = 64, .head_dim = 64, .ffn_hidden = 10240};
  expect_count(parameter_count(t5), counted(build_t5(t5).parameters()), 219, 4'762'310'656);
  const ClipTextOptions clip{.dim = 768, .num_heads = 12, .ffn_hidden = 3072};
  expect_count(parameter_count(clip), counted(build_clip_text(clip).parameters()), 196, 123'060'480);
  const AutoencoderOptions autoencoder;
  ImageEncoder encoder(autoencoder);
  ImageDecoder decoder(autoencoder);
  expect_count(encoder_parameter_count(autoencoder), counted(testing::parameters_of(encoder)), 106, 34'274'208);
  expect_count(decoder_parameter_count(autoencoder), counted(testing::parameters_of(decoder)), 138, 49'545'475);
}

TEST(EncodersTest, RandomWeightsDependOnTheSeedOnly) {
  const TextEncoder one = build_clip_text(testing::small_clip()), same = build_clip_text(testing::small_clip());
  ASSERT_TRUE(draw(5, one.parameters(), {}).ok());
  ASSERT_TRUE(draw(5, same.parameters(), {.dtype = at::kBFloat16}).ok());
  for (size_t i = 0; i < one.parameters().size(); ++i) {
    EXPECT_TRUE(one.parameters()[i]->weight.to(at::kBFloat16).equal(same.parameters()[i]->weight));
  }
  ASSERT_TRUE(draw(6, same.parameters(), {}).ok());
  EXPECT_FALSE(one.parameters()[0]->weight.equal(same.parameters()[0]->weight));
}

// Keys after the query have the upper half of the buckets, and far keys share one.
TEST(EncodersTest, PositionsAreBucketedByLogarithm) {
  const at::Tensor buckets = position_buckets(testing::small_t5(), 300);
  const auto bucket = [&](int64_t query, int64_t key) { return buckets[query][key].item<int64_t>(); };
  for (int64_t distance = 0; distance < 8; ++distance) EXPECT_EQ(bucket(distance, 0), distance);
  EXPECT_EQ(bucket(0, 1), 17);
  EXPECT_EQ(bucket(15, 0), 9);
  EXPECT_EQ(bucket(16, 0), 10);
  EXPECT_EQ(bucket(64, 0), 14);
  EXPECT_EQ(bucket(127, 0), 15);
  EXPECT_EQ(bucket(299, 0), 15);
  EXPECT_EQ(bucket(0, 299), 31);
}

TEST(EncodersTest, OneBlockRunsAloneUnlessItNeedsTheCall) {
  const TextEncoder t5 = build_t5(testing::small_t5()), clip = build_clip_text(testing::small_clip());
  ASSERT_TRUE(draw(1, t5.parameters(), {}).ok());
  ASSERT_TRUE(draw(1, clip.parameters(), {}).ok());
  const at::Tensor ids = at::ones({1, 4}, at::kLong);
  at::Tensor x = ids;
  for (const auto& block : clip.blocks()) x = block->forward(x, {.tokens = ids});
  EXPECT_TRUE(x.equal(clip.encode(ids)));
  x = t5.blocks()[0]->forward(ids, {.tokens = ids});
  EXPECT_THROW(t5.blocks()[1]->forward(x, {.tokens = ids}), c10::Error);
}

TEST(EncodersTest, WrongIdsThrow) {
  const TextEncoder clip = build_clip_text(testing::small_clip());
  ASSERT_TRUE(draw(1, clip.parameters(), {}).ok());
  EXPECT_THROW(clip.encode(at::ones({1, 10}, at::kLong)), c10::Error);  // More than the positions.
  EXPECT_THROW(clip.encode(at::ones({4}, at::kLong)), c10::Error);
  EXPECT_THROW(clip.encode(at::ones({1, 4}, at::kInt)), c10::Error);
  EXPECT_THROW(clip.encode(at::ones({1, 0}, at::kLong)), c10::Error);
  EXPECT_THROW(clip.encode(at::full({1, 4}, 19, at::kLong)), c10::Error);  // Beyond the vocabulary.
  EXPECT_FALSE(clip.encode(at::ones({1, 4}, at::kLong)).requires_grad());
}

// A row of any width keeps its numbers within half a step of its scale, whatever the other rows hold.
TEST(EncodersTest, Int8RowsAreSeparate) {
  for (const int64_t columns : {1, 4, 7, 64}) {
    at::Tensor matrix = at::randn({5, columns});
    matrix[1] = 0;
    matrix[2].mul_(1e6);
    const at::Tensor packed = int8_pack(matrix);
    EXPECT_EQ(packed.size(1), int8_row_bytes(columns));
    EXPECT_TRUE(int8_pack(matrix.narrow(0, 2, 2)).equal(packed.narrow(0, 2, 2)));
    const at::Tensor identity = at::eye(columns);
    const at::Tensor back = int8_matmul_recipe().matmul_nt({identity, {}}, {packed, {}}).t();
    const at::Tensor step = matrix.abs().amax(1, true) / 127;
    EXPECT_TRUE(((back - matrix).abs() <= 0.5001 * step).all().item<bool>()) << columns;
  }
  at::Tensor bad = at::ones({2, 3});
  bad[1][1] = std::numeric_limits<float>::infinity();
  const at::Tensor products = int8_matmul_recipe().matmul_nt({at::ones({1, 3}), {}}, {int8_pack(bad), {}});
  EXPECT_NEAR(products[0][0].item<float>(), 3, 1e-5);
  EXPECT_TRUE(std::isnan(products[0][1].item<float>()));
}

TEST(EncodersTest, LatentsAreScaledAndShifted) {
  const AutoencoderOptions options;
  const Moments moments{.mean = at::full({1, 16, 2, 3}, 0.5), .logvar = at::full({1, 16, 2, 3}, 2.0)};
  const at::Tensor latents = sample_latents(options, moments, at::full({1, 16, 2, 3}, -1.0));
  EXPECT_TRUE(at::allclose(latents, at::full({1, 16, 2, 3}, 0.3611 * (0.5 - std::exp(1.0) - 0.1159)), 1e-6));
  EXPECT_THROW(sample_latents(options, moments, at::zeros({16, 2, 3})), c10::Error);
}

TEST(EncodersTest, SidesMustBeMultiplesOfTheFactor) {
  const AutoencoderOptions options;
  EXPECT_TRUE(check_image_size(options, 8, 24).ok());
  for (const auto& [height, width] : {std::pair{8, 12}, {20, 8}, {0, 8}, {-8, 8}}) {
    const absl::Status status = check_image_size(options, height, width);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("multiples of 8"));
  }
  ImageEncoder encoder(testing::small_autoencoder());
  ASSERT_TRUE(draw(1, testing::parameters_of(encoder), {}).ok());
  EXPECT_THROW(encoder.moments(at::zeros({1, 3, 4, 5})), c10::Error);
  EXPECT_THROW(encoder.moments(at::zeros({1, 4, 4, 4})), c10::Error);
  EXPECT_THROW(encoder.moments(at::zeros({3, 4, 4})), c10::Error);
  ImageDecoder decoder(testing::small_autoencoder());
  EXPECT_THROW(decoder.decode(at::zeros({1, 2, 4, 4})), c10::Error);
}

TEST(EncodersTest, OneMegapixelTakesThreeQuartersOfAGibibyte) {
  constexpr int64_t kSide = 1024;
  EXPECT_EQ(encoder_activation_bytes({}, kSide, kSide, 2), 384 * kSide * kSide * 2);
  EXPECT_EQ(decoder_activation_bytes({}, kSide, kSide, 2), 640 * kSide * kSide * 2);
}

// Memory for a picture is what the closed form says, so that a job knows the batch that fits. Convolutions on a CPU add
// up to a copy of their input.
TEST(EncodersTest, PicturesTakeTheStatedMemory) {
  const AutoencoderOptions options{
      .channels = {16, 32, 32, 32}, .blocks_per_level = 1, .latent_channels = 4, .norm_groups = 8};
  ImageEncoder encoder(options);
  ImageDecoder decoder(options);
  ASSERT_TRUE(draw(1, testing::parameters_of(encoder), {}).ok());
  ASSERT_TRUE(draw(1, testing::parameters_of(decoder), {}).ok());
  const at::Tensor images = at::zeros({2, 3, 128, 192}), latents = at::zeros({2, 4, 16, 24});
  testing::AllocationMeter meter;
  const testing::AllocationMeter::Scope scope(meter);
  int64_t before = meter.begin();
  encoder.moments(images);
  const auto encoding = static_cast<double>(meter.highest() - before);
  before = meter.begin();
  decoder.decode(latents);
  const auto decoding = static_cast<double>(meter.highest() - before);
  const double stated_encoding = 2.0 * static_cast<double>(encoder_activation_bytes(options, 128, 192, 4));
  const double stated_decoding = 2.0 * static_cast<double>(decoder_activation_bytes(options, 128, 192, 4));
  for (const double share : {encoding / stated_encoding, decoding / stated_decoding}) {
    EXPECT_GT(share, 0.95);
    EXPECT_LT(share, 1.45);
  }
}

}  // namespace
}  // namespace titan::encoders
