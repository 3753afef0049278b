// Tests the loss of rows of packed documents.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/numerics/small_models/small_specs.h"
#include "tests/worker/rank/runtime/training_world.h"
#include "worker/rank/data/loader/batch.h"
#include "worker/rank/model/language/objective.h"
#include "worker/rank/runtime/step/microbatches.h"

namespace titan {
namespace {

using testing::TrainingPlan;

// Documents without a special token at their ends, so that only the batch says where they are.
const std::vector<std::vector<int64_t>> kDocuments = {{9, 4, 31, 7, 7, 22}, {3, 48, 11}, {17, 2, 5, 40, 1}, {6, 13}};

constexpr int64_t kWidth = 16;

data::Batch empty_batch(int64_t rows) {
  return {{data::kTokens, at::full({rows, kWidth}, 49, at::kLong)},
          {data::kLabels, at::full({rows, kWidth}, nn::kIgnoreIndex, at::kLong)},
          {data::kDocuments, at::zeros({rows, kWidth}, at::kLong)}};
}

// Writes a document into the batch from a column on. Its last token has no label.
void place(data::Batch& batch, int64_t row, int64_t column, const std::vector<int64_t>& document, int64_t number) {
  for (size_t i = 0; i < document.size(); ++i, ++column) {
    batch[data::kTokens][row][column] = document[i];
    batch[data::kDocuments][row][column] = number;
    if (i + 1 < document.size()) batch[data::kLabels][row][column] = document[i + 1];
  }
}

double loss_of(const data::Batch& batch, std::optional<int64_t> document_end) {
  TrainingPlan plan;
  plan.spec = testing::small_spec("llama3_packed");
  plan.seq_len = kWidth;
  double loss = 0;
  testing::run_ranks({}, 1, testing::every_axis(), [&](testing::ThreadRank& self) {
    testing::RankModel model = testing::build_rank(plan, self);
    model.sharded->init_weights(7);
    const runtime::Microbatches made = runtime::make_microbatches(model::LanguageObjective(document_end), batch, {});
    loss = model.executor->run(pipeline::forward_only(model.schedule, 1), made.contexts).item<double>();
    model.sharded->release();
  });
  return loss;
}

TEST(PackedBatchTest, LossEqualsThatOfSeparateDocuments) {
  data::Batch packed = empty_batch(1);
  data::Batch alone = empty_batch(static_cast<int64_t>(kDocuments.size()));
  int64_t column = 0, number = 0;
  for (const std::vector<int64_t>& document : kDocuments) {
    place(packed, 0, column, document, number);
    place(alone, number, 0, document, 0);
    column += static_cast<int64_t>(document.size());
    ++number;
  }
  ASSERT_EQ(column, kWidth);
  const double together = loss_of(packed, 49);
  EXPECT_NEAR(together, loss_of(alone, 49), testing::kExact);
  // Without the batch's documents the whole row is one document, and its loss differs.
  packed[data::kDocuments] = at::Tensor();
  EXPECT_GT(std::abs(together - loss_of(packed, 49)), 1e-3);
}

// Padding after the last document changes no loss, and is not counted.
TEST(PackedBatchTest, PaddingHasNoEffect) {
  data::Batch packed = empty_batch(1), alone = empty_batch(1);
  place(packed, 0, 0, kDocuments[0], 0);
  packed[data::kDocuments].select(0, 0).slice(0, 6).copy_(at::arange(1, kWidth - 5));
  place(alone, 0, 0, kDocuments[0], 0);
  EXPECT_EQ(runtime::make_microbatches(model::LanguageObjective(std::nullopt), packed, {}).loss_terms, 5);
  EXPECT_NEAR(loss_of(packed, 49), loss_of(alone, 49), testing::kExact);
}

}  // namespace
}  // namespace titan
