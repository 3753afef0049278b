// Tests a T5 whose weights are shared out over ranks: the encodings have the bits of an unsharded one, a rank holds and
// reads only its share, and weights are gathered for at most two blocks at a time.

#include "worker/rank/model/encoders/sharded_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>

#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/model/encoders/small_models.h"
#include "worker/rank/checkpoint/shards/shard.h"
#include "worker/rank/model/encoders/t5.h"

namespace titan::encoders {
namespace {

using Bytes = std::atomic<int64_t>;

class CountedFile final : public storage::ReadableFile {
 public:
  CountedFile(std::unique_ptr<storage::ReadableFile> file, Bytes& read) : file_(std::move(file)), read_(read) {}
  int64_t size() const override { return file_->size(); }
  absl::Status read(int64_t offset, int64_t bytes, char* out) override {
    read_ += bytes;
    return file_->read(offset, bytes, out);
  }

 private:
  std::unique_ptr<storage::ReadableFile> file_;
  Bytes& read_;
};

// Files that can only be read, and count the bytes.
class CountedFiles final : public storage::Files {
 public:
  absl::StatusOr<std::unique_ptr<storage::ReadableFile>> open(const std::string& path) override {
    auto file = real_.open(path);
    if (!file.ok()) return file.status();
    return std::make_unique<CountedFile>(*std::move(file), read_);
  }
  absl::StatusOr<std::vector<std::string>> list(const std::string& folder) override { return real_.list(folder); }
  bool exists(const std::string& path) override { return real_.exists(path); }
  bool is_folder(const std::string& path) override { return real_.is_folder(path); }
  int64_t bytes() const { return read_; }

  absl::StatusOr<std::unique_ptr<storage::WritableFile>> create(const std::string&) override { return none(); }
  absl::StatusOr<std::unique_ptr<storage::WritableFile>> append_to(const std::string&) override { return none(); }
  absl::StatusOr<std::unique_ptr<storage::ReadableFile>> open_no_link(const std::string&) override { return none(); }
  absl::Status rename(const std::string&, const std::string&) override { return none(); }
  absl::Status truncate(const std::string&, int64_t) override { return none(); }
  absl::Status remove(const std::string&) override { return none(); }
  absl::Status remove_folder(const std::string&) override { return none(); }
  absl::Status make_folders(const std::string&) override { return none(); }
  absl::Status sync_folder(const std::string&) override { return none(); }
  absl::StatusOr<absl::Time> touch(const std::string&) override { return none(); }
  absl::StatusOr<absl::Time> modified(const std::string&) override { return none(); }
  absl::StatusOr<std::unique_ptr<storage::FileLock>> lock(const std::string&, storage::LockMode,
                                                          absl::Duration) override {
    return none();
  }
  absl::StatusOr<std::unique_ptr<storage::FileLock>> try_lock(const std::string&, storage::LockMode) override {
    return none();
  }

 private:
  static absl::Status none() { return absl::UnimplementedError("only reading is counted"); }

  storage::Files& real_ = storage::posix_files();
  Bytes read_ = 0;
};

class ShardedWeightsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    folder_ = storage::join_path(::testing::TempDir(), "sharded_weights." + std::to_string(::getpid()));
    ASSERT_TRUE(files_.remove_folder(folder_).ok());
    ASSERT_TRUE(files_.make_folders(folder_).ok());
  }
  void TearDown() override { files_.remove_folder(folder_).IgnoreError(); }

  // Writes random weights of an encoder in fp32.
  void write(const TextEncoder& encoder) {
    std::vector<checkpoint::Staged> parts;
    for (const nn::Parameter* parameter : encoder.parameters()) {
      const std::vector<int64_t>& shape = parameter->global_shape;
      parts.push_back({parameter->fqn, shape, std::vector<int64_t>(shape.size()), at::randn(shape)});
    }
    ASSERT_TRUE(write_tensors(files_, folder_, "model.safetensors", parts).ok());
  }
  FrozenWeights open(storage::Files& files, const TextEncoder& encoder) {
    return FrozenWeights(open_weights(files, folder_).value(), encoder.names());
  }

  storage::Files& files_ = storage::posix_files();
  std::string folder_;
};

const at::Tensor& ids() {
  static const at::Tensor ids = at::arange(14, at::kLong).view({2, 7});
  return ids;
}

int64_t bytes_of(const std::vector<nn::Parameter*>& parameters) {
  int64_t bytes = 0;
  for (const nn::Parameter* parameter : parameters) {
    if (parameter->weight.defined()) bytes += static_cast<int64_t>(parameter->weight.nbytes());
  }
  return bytes;
}

// Runs `check` on every rank of a mesh with an encoder and its sharded weights, which have no values yet.
void on_ranks(int ranks, WeightForm form, const Placement& placement,
              const std::function<void(TextEncoder&, ShardedWeights&)>& check) {
  testing::run_ranks({.dp_shard = ranks}, ranks, {mesh::Axis::kFsdp}, [&](testing::ThreadRank& self) {
    TextEncoder encoder = build_t5(testing::small_t5(), form);
    ShardedWeights weights(encoder, self.mesh->group(mesh::Axis::kFsdp), placement);
    check(encoder, weights);
  });
}

TEST_F(ShardedWeightsTest, EncodingsHaveTheBitsOfUnshardedWeights) {
  for (const WeightForm form : {WeightForm::kPlain, WeightForm::kInt8}) {
    const TextEncoder whole = build_t5(testing::small_t5(), form);
    ASSERT_NO_FATAL_FAILURE(write(whole));
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const Placement placement{.dtype = type};
      ASSERT_TRUE(load(open(files_, whole), whole.parameters(), placement).ok());
      const at::Tensor loaded = whole.encode(ids());
      ASSERT_TRUE(draw(3, whole.parameters(), placement).ok());
      const at::Tensor drawn = whole.encode(ids());
      for (const int ranks : {2, 3, 4, 16}) {  // Some weights have fewer rows than 16.
        on_ranks(ranks, form, placement, [&](TextEncoder& encoder, ShardedWeights& weights) {
          ASSERT_TRUE(weights.load(open(files_, encoder)).ok());
          const TextEncoder moved = std::move(encoder);
          EXPECT_TRUE(moved.encode(ids(), weights.hooks()).equal(loaded)) << ranks;
          EXPECT_TRUE(moved.encode(ids(), weights.hooks()).equal(loaded)) << ranks << ", second call";
          ASSERT_TRUE(weights.draw(3).ok());
          EXPECT_TRUE(moved.encode(ids(), weights.hooks()).equal(drawn)) << ranks;
          for (const nn::Parameter* parameter : moved.parameters()) EXPECT_FALSE(parameter->weight.defined());
        });
      }
    }
    ASSERT_TRUE(files_.remove(folder_ + "/model.safetensors").ok());
  }
}

// All but a row of an odd number is halved, and gathered weights are those of two blocks.
TEST_F(ShardedWeightsTest, TwoRanksHoldAndReadHalf) {
  for (const WeightForm form : {WeightForm::kPlain, WeightForm::kInt8}) {
    const Placement placement{.dtype = at::kBFloat16};
    const T5Options options{
        .vocab_size = 40, .dim = 32, .num_layers = 6, .num_heads = 4, .head_dim = 8, .ffn_hidden = 48};
    const TextEncoder whole = build_t5(options, form);
    ASSERT_NO_FATAL_FAILURE(write(whole));
    ASSERT_TRUE(load(open(files_, whole), whole.parameters(), placement).ok());
    const int64_t all = bytes_of(whole.parameters());
    int64_t two_blocks = 0;
    for (size_t i = 0; i + 1 < whole.blocks().size(); ++i) {
      two_blocks = std::max(two_blocks, bytes_of(testing::parameters_of(*whole.blocks()[i])) +
                                            bytes_of(testing::parameters_of(*whole.blocks()[i + 1])));
    }
    int64_t in_file = 0;
    for (const nn::Parameter* parameter : whole.parameters()) in_file += 4 * c10::multiply_integers(parameter->shape);
    testing::run_ranks({.dp_shard = 2}, 2, {mesh::Axis::kFsdp}, [&](testing::ThreadRank& self) {
      const TextEncoder encoder = build_t5(options, form);
      ShardedWeights weights(encoder, self.mesh->group(mesh::Axis::kFsdp), placement);
      CountedFiles files;
      const FrozenWeights opened = open(files, encoder);
      const int64_t header = files.bytes();
      ASSERT_TRUE(weights.load(opened).ok());
      EXPECT_EQ(files.bytes() - header, in_file / 2);
      EXPECT_EQ(weights.held_bytes(), all / 2);
      EXPECT_EQ(weights.most_gathered_bytes(), 0);
      EXPECT_EQ(bytes_of(encoder.parameters()), 0);
      encoder.encode(ids(), weights.hooks());
      EXPECT_EQ(weights.most_gathered_bytes(), two_blocks);
      EXPECT_LT(two_blocks, all / 2);
    });
    ASSERT_TRUE(files_.remove(folder_ + "/model.safetensors").ok());
  }
}

TEST_F(ShardedWeightsTest, FilesThatDoNotFitAndOtherTypesAreRefused) {
  const TextEncoder other =
      build_t5({.vocab_size = 18, .dim = 10, .num_layers = 2, .num_heads = 3, .head_dim = 4, .ffn_hidden = 14});
  ASSERT_NO_FATAL_FAILURE(write(other));
  on_ranks(2, WeightForm::kPlain, {}, [&](TextEncoder& encoder, ShardedWeights& weights) {
    const absl::Status refused = weights.load(open(files_, encoder));
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()),
                ::testing::HasSubstr("needs [19, 10], tensor shared.weight is [18, 10]"));
  });
  on_ranks(2, WeightForm::kPlain, {.dtype = at::kHalf}, [&](TextEncoder&, ShardedWeights& weights) {
    EXPECT_EQ(weights.draw(1).code(), absl::StatusCode::kInvalidArgument);
  });
}

}  // namespace
}  // namespace titan::encoders
