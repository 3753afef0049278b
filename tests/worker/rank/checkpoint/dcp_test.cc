// Tests folders of torch.distributed.checkpoint as a job's start: any mesh reads its boxes from any pieces, and a
// mismatch is refused by name. tests/worker/rank/tools/dcp_test.py checks that the real library writes and reads such
// folders.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "common/rank_protocol/launch.h"
#include "tests/worker/rank/checkpoint/fake_job.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_folder.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_writer.h"
#include "worker/rank/checkpoint/formats/pickle/archive_writer.h"

namespace titan::checkpoint::testing {
namespace {

using nlohmann::json;
using storage::posix_files;
using ::testing::AllOf;
using ::testing::HasSubstr;

enum class Pieces { kRows, kColumns };

// Boxes that cut a tensor into `parts`; the last one may be smaller.
std::vector<Box> cut(const std::vector<int64_t>& shape, Pieces pieces, int64_t parts) {
  const size_t dim = pieces == Pieces::kColumns && shape.size() > 1 ? 1 : 0;
  std::vector<Box> boxes;
  const int64_t step = (shape[dim] + parts - 1) / parts;
  for (int64_t at = 0; at < shape[dim]; at += step) {
    boxes.push_back(whole(shape));
    boxes.back().offset[dim] = at;
    boxes.back().shape[dim] = std::min(step, shape[dim] - at);
  }
  return boxes;
}

class DcpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    output_rows = 70;  // Small files, because many are made.
    root_ = storage::join_path(::testing::TempDir(), "dcp." + std::to_string(::getpid()));
    ASSERT_TRUE(posix_files().remove_folder(root_).ok());
    ASSERT_TRUE(posix_files().make_folders(folder()).ok());
  }
  void TearDown() override {
    output_rows = rows_;
    posix_files().remove_folder(root_).IgnoreError();
  }

  std::string folder() const { return root_ + "/tt"; }
  DcpWriter writer() {
    return DcpWriter(posix_files(), folder(), 100'000, [](const std::string&) {});
  }

  static void add(DcpWriter& out, const std::string& key, const std::string& ours, const std::vector<int64_t>& shape,
                  Pieces pieces, int64_t parts) {
    const at::Tensor full = full_tensor(ours, shape, 10);
    for (const Box& box : cut(shape, pieces, parts)) {
      at::Tensor piece = full;
      for (size_t d = 0; d < shape.size(); ++d)
        piece = piece.narrow(static_cast<int64_t>(d), box.offset[d], box.shape[d]);
      ASSERT_TRUE(out.add(key, shape, box, piece.contiguous()).ok());
    }
  }

  // Writes torchtitan's checkpoint of the small model after step 10. `data` is the state of its first rank's
  // dataloader.
  void write(Pieces pieces = Pieces::kRows, int64_t parts = 3,
             const json& data = {{"dataset_state", {{"sample_idx", 5}, {"token_buffer", {1, 2, 3}}}}}) {
    DcpWriter out = writer();
    for (const Parameter& one : small_model()) {
      add(out, one.fqn, "model." + one.fqn, one.shape, pieces, parts);
      const std::string state = "optimizer.state." + one.fqn;
      add(out, state + ".exp_avg", "optim.exp_avg." + one.fqn, one.shape, pieces, parts);
      ASSERT_TRUE(out.add(state + ".step", {}, whole({}), full_tensor("optim.step", {}, 10)).ok());
    }
    ASSERT_TRUE(out.add("freqs_cis", {2}, whole({2}), at::zeros({2})).ok());
    ASSERT_TRUE(out.add("train_state.step", json(10)).ok());
    ASSERT_TRUE(out.add("train_state.ntokens_seen", json(1000)).ok());
    ASSERT_TRUE(out.add("lr_scheduler.last_epoch", json(9)).ok());
    const std::string bytes = pickle::Writer().plain(data).finish();
    ASSERT_TRUE(out.add("dataloader.dp_rank_0", json::binary(std::vector<uint8_t>(bytes.begin(), bytes.end()))).ok());
    ASSERT_TRUE(out.add("dataloader.world_size", json(2)).ok());
    ASSERT_TRUE(out.finish().ok());
  }

  Attempt::Options options(int world, Split split, bool model_only) {
    Attempt::Options all{.dump = root_ + "/job" + std::to_string(jobs_++), .world = world, .split = split};
    all.config.initial_load_path = folder();
    all.config.initial_load_model_only = model_only;
    return all;
  }
  std::string refusal(bool model_only = false) {
    const auto loaded = Attempt(options(2, Split::kRows, model_only)).load();
    return loaded.ok() ? "loaded" : std::string(loaded.status().message());
  }

  const int64_t rows_ = output_rows;
  std::string root_;
  int jobs_ = 0;
};

TEST_F(DcpTest, AnyMeshReadsAnyPieces) {
  for (const Pieces pieces : {Pieces::kRows, Pieces::kColumns}) {
    ASSERT_NO_FATAL_FAILURE(SetUp());
    write(pieces);
    for (const Split split : {Split::kReplicated, Split::kRows, Split::kHybrid, Split::kColumns}) {
      const auto loaded = Attempt(options(4, split, false)).load(10);
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      EXPECT_EQ(loaded->source, Source::kInitial);
    }
  }
}

TEST_F(DcpTest, LoadsTrainState) {
  write();
  const auto loaded = Attempt(options(1, Split::kRows, false)).load(10);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->step, 10);
  const json positions = {{{"sample_idx", 5}, {"tokens_left", 3}}, {{"unread", "it has no dataloader.dp_rank_1"}}};
  const json state = {{"step", 10},
                      {"ntokens_seen", 2000},  // Tokens of both ranks.
                      {"lr_scheduler", {{"last_epoch", 9}}},
                      {"dataloader", {{"order", "per_rank"}, {"dp_size", 2}, {"ranks", positions}}}};
  EXPECT_EQ(loaded->train_state, state);
}

// A job cannot use the positions of other data loaders: it reports that its data starts from the beginning.
TEST_F(DcpTest, MarksPositionsOfOtherDataloadersUnread) {
  for (const json& data : {json{{"dataset_state", nullptr}}, json{{"dataset_state", {1, 2}}}, json{{"fetched", 4}},
                           json::array({1}), json(7), json{{"dataset_state", {{"sample_idx", nullptr}}}}}) {
    SCOPED_TRACE(data.dump());
    ASSERT_NO_FATAL_FAILURE(SetUp());
    write(Pieces::kRows, 3, data);
    const auto loaded = Attempt(options(1, Split::kRows, false)).load(10);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_TRUE(loaded->train_state["dataloader"]["ranks"][0].contains("unread")) << loaded->train_state;
  }
}

TEST_F(DcpTest, LoadsOnlyTheModel) {
  write();
  const auto loaded = Attempt(options(2, Split::kColumns, true)).load(10);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->step, 0);
  EXPECT_TRUE(loaded->model_only);
}

// From a folder of steps, as torchtitan keeps them, a load chooses the newest.
TEST_F(DcpTest, LoadsTheNewestOfAFolderOfSteps) {
  write();
  ASSERT_TRUE(posix_files().make_folders(root_ + "/steps").ok());
  ASSERT_TRUE(posix_files().rename(folder(), root_ + "/steps/step-10").ok());
  Attempt::Options all = options(1, Split::kRows, false);
  all.config.initial_load_path = root_ + "/steps";
  const auto loaded = Attempt(std::move(all)).load(10);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->path, root_ + "/steps/step-10");
}

TEST_F(DcpTest, RefusesTensorsThatDoNotMatchTheModel) {
  {
    DcpWriter out = writer();
    for (const Parameter& one : small_model()) {
      if (one.fqn != "output.weight") add(out, one.fqn, "model." + one.fqn, one.shape, Pieces::kRows, 1);
    }
    ASSERT_TRUE(out.finish().ok());
  }
  EXPECT_THAT(refusal(true), HasSubstr("does not fit this model: it has no output.weight"));
  EXPECT_THAT(refusal(false), AllOf(HasSubstr("no train_state.step"), HasSubstr("initial_load_model_only = true")));

  ASSERT_NO_FATAL_FAILURE(SetUp());
  write();
  {
    DcpWriter out(posix_files(), root_ + "/more", 100'000, [](const std::string&) {});
    ASSERT_TRUE(posix_files().make_folders(root_ + "/more").ok());
    for (const Parameter& one : small_model()) add(out, one.fqn, "model." + one.fqn, one.shape, Pieces::kRows, 1);
    add(out, "layers.0.attention.wk.weight", "model.wk", {16, 16}, Pieces::kRows, 1);
    ASSERT_TRUE(out.add("optimizer.state.norm.weight.step", {}, whole({}), at::tensor(3.0f)).ok());
    ASSERT_TRUE(out.add("optimizer.state.output.weight.step", {}, whole({}), at::tensor(4.0f)).ok());
    ASSERT_TRUE(out.add("train_state.step", json(10)).ok());
    ASSERT_TRUE(out.finish().ok());
  }
  ASSERT_TRUE(posix_files().remove_folder(folder()).ok());
  ASSERT_TRUE(posix_files().rename(root_ + "/more", folder()).ok());
  EXPECT_THAT(refusal(true), HasSubstr("model.layers.0.attention.wk.weight that this model lacks"));
  EXPECT_THAT(refusal(false), AllOf(HasSubstr("with another optimizer: it has no optimizer.state."),
                                    HasSubstr("exclude_from_loading")));
}

// A model without a separate head cannot use one; the fake model has one, and the load reports it as missing.
TEST_F(DcpTest, RefusesAHeadThatIsNotTheEmbedding) {
  const at::Tensor embedding = full_tensor("model.tok_embeddings.weight", {37, 16}, 10);
  at::Tensor other = embedding.clone();
  other[36][15] += 1;
  const auto refusal_of = [&](const at::Tensor& head) {
    SetUp();
    DcpWriter out = writer();
    for (const Parameter& one : small_model()) {
      if (one.fqn != "output.weight") add(out, one.fqn, "model." + one.fqn, one.shape, Pieces::kColumns, 3);
    }
    EXPECT_TRUE(out.add("output.weight", head.sizes().vec(), whole(head.sizes().vec()), head).ok());
    EXPECT_TRUE(out.finish().ok());
    Attempt::Options all = options(2, Split::kRows, true);
    all.model.emplace().tied_embeddings = true;
    const auto loaded = Attempt(std::move(all)).load();
    return loaded.ok() ? "loaded" : std::string(loaded.status().message());
  };
  EXPECT_THAT(refusal_of(embedding), HasSubstr("output.weight is [37, 16] in the checkpoint"));
  for (const at::Tensor& head : {other, embedding.slice(0, 0, 36).contiguous()})
    EXPECT_THAT(refusal_of(head), HasSubstr("output.weight differs from tok_embeddings.weight"));
}

TEST_F(DcpTest, RefusesDifferingOptimizerSteps) {
  DcpWriter out = writer();
  for (const Parameter& one : small_model()) {
    add(out, one.fqn, "model." + one.fqn, one.shape, Pieces::kRows, 1);
    add(out, "optimizer.state." + one.fqn + ".exp_avg", "optim.exp_avg." + one.fqn, one.shape, Pieces::kRows, 1);
    const float steps = one.fqn == "output.weight" ? 4 : 3;
    ASSERT_TRUE(out.add("optimizer.state." + one.fqn + ".step", {}, whole({}), at::tensor(steps)).ok());
  }
  ASSERT_TRUE(out.add("train_state.step", json(10)).ok());
  ASSERT_TRUE(out.finish().ok());
  EXPECT_THAT(refusal(), HasSubstr("the parameters were not trained together"));
  Attempt::Options all = options(1, Split::kRows, false);
  all.config.exclude_from_loading = {"optimizer"};
  EXPECT_TRUE(Attempt(std::move(all))
                  .run([](int, Checkpointer& checkpointer) {
                    std::vector<Slice> slices = make_slices(Split::kRows, 0, 1, -1);
                    return checkpointer.load(slices).status();
                  })
                  .ok());
}

// Damage to .metadata gives an error that names the file, unless the damaged bytes are still valid. A data file that is
// cut short or missing is named.
TEST_F(DcpTest, SurvivesDamage) {
  write();
  const auto path = std::filesystem::path(folder()) / ".metadata";
  const std::string good = *storage::read_file(posix_files(), path.string());
  std::mt19937 random(3);
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    std::string bad = good;
    bad[random() % bad.size()] = static_cast<char>(random());
    if (i % 4 == 0) bad.resize(random() % bad.size());
    const auto metadata = dcp_metadata(bad, path.string());
    if (metadata.ok()) continue;
    ++refused;
    EXPECT_THAT(std::string(metadata.status().message()), HasSubstr(path.string())) << metadata.status();
  }
  EXPECT_GT(refused, 200);

  std::filesystem::resize_file(folder() + "/__0_0.distcp", 5000);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("__0_0.distcp"), HasSubstr("cut short")));
  std::filesystem::remove(folder() + "/__0_0.distcp");
  EXPECT_THAT(refusal(), HasSubstr("__0_0.distcp"));
}

}  // namespace
}  // namespace titan::checkpoint::testing
