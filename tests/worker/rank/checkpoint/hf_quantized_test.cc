// Tests quantized weights: any box of them equals ATen's result for the whole tensor, a load reads only what the box
// needs, and no damage is taken for numbers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <random>

#include "common/base/status/status.h"
#include "common/io/storage/faulty_files.h"
#include "common/rank_protocol/launch.h"
#include "tests/worker/rank/checkpoint/fake_job.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/checkpoint/shards/safetensors.h"

namespace titan::checkpoint::testing {
namespace {

using storage::posix_files;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::map<std::string, at::Tensor>;

// Maps each parameter to the tensor of the same name.
class PlainNames : public HfMapper {
 public:
  absl::StatusOr<std::vector<HfLayout>> layouts(const std::string& fqn) const override {
    return std::vector{HfLayout{.keys = {fqn}}};
  }
  bool knows(const std::string& key) const override { return key != "stranger" && scaled_by(key).empty(); }
};

// Draws codes of F8_E4M3 other than NaN.
at::Tensor float8_codes(const std::vector<int64_t>& shape) {
  const at::Tensor codes = at::randint(0, 254, shape, at::kByte);
  return at::where(codes >= 127, codes + 1, codes).to(at::kByte);  // Without 0x7f; 0xff is not drawn.
}

// Dequantizes the matrix by operations on whole tensors.
at::Tensor by_blocks(const at::Tensor& codes, const at::Tensor& scales, int64_t rows, int64_t columns) {
  const at::Tensor spread = scales.repeat_interleave(rows, 0)
                                .narrow(0, 0, codes.size(0))
                                .repeat_interleave(columns, 1)
                                .narrow(1, 0, codes.size(1));
  return codes.view(at::kFloat8_e4m3fn).to(at::kFloat) * spread;
}

at::Tensor from_mxfp4(const at::Tensor& blocks, const at::Tensor& exponents) {
  const at::Tensor table =
      at::tensor({0., .5, 1., 1.5, 2., 3., 4., 6., -0., -.5, -1., -1.5, -2., -3., -4., -6.}, at::kFloat);
  const at::Tensor codes = at::stack({blocks.bitwise_and(15), blocks.bitwise_right_shift(4)}, -1).to(at::kLong);
  const at::Tensor numbers = table.index({codes}).flatten(-2, -1);
  return at::ldexp(numbers, (exponents.to(at::kInt) - 127).unsqueeze(-1)).flatten(-2, -1);
}

int64_t count_of(int64_t size, int64_t block) { return (size + block - 1) / block; }

class HfQuantizedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = storage::join_path(::testing::TempDir(), "quantized." + std::to_string(::getpid()));
    at::manual_seed(static_cast<uint64_t>(::testing::UnitTest::GetInstance()->random_seed()));
  }
  void TearDown() override { posix_files().remove_folder(folder_).IgnoreError(); }

  int64_t draw(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }

  // Writes a folder without syncing it, because the tests write hundreds of them.
  void write(const Tensors& tensors, const std::string& config) {
    ASSERT_TRUE(posix_files().remove_folder(folder_).ok());
    ASSERT_TRUE(posix_files().make_folders(folder_).ok());
    std::vector<TensorEntry> entries;
    for (const auto& [key, value] : tensors) entries.push_back({key, value.scalar_type(), value.sizes().vec()});
    const auto placed = layout(entries);
    ASSERT_TRUE(placed.ok()) << placed.status();
    std::ofstream file(folder_ + "/model.safetensors", std::ios::binary);
    file << placed->header;
    for (const TensorEntry& entry : entries) {
      const at::Tensor value = tensors.at(entry.key).contiguous();
      file.seekp(entry.begin);
      file.write(static_cast<const char*>(value.const_data_ptr()), static_cast<std::streamsize>(value.nbytes()));
    }
    if (!config.empty()) std::ofstream(folder_ + "/config.json") << config;
  }
  absl::StatusOr<at::Tensor> read(const std::string& key, const std::vector<int64_t>& shape, const Box& box) {
    TITAN_ASSIGN_OR_RETURN(const auto weights, HfFolder::open(counting_, folder_));
    TITAN_RETURN_IF_ERROR(check_keys(*weights, PlainNames()));
    bytes_read_ = 0;
    return read_parameter(*weights, PlainNames(), key, shape, box);
  }
  Box any_box(const std::vector<int64_t>& shape) {
    Box box;
    for (const int64_t size : shape) {
      box.offset.push_back(draw(0, size - 1));
      box.shape.push_back(draw(1, size - box.offset.back()));
    }
    return box;
  }
  static at::Tensor part_of(at::Tensor value, const Box& box) {
    for (size_t d = 0; d < box.shape.size(); ++d)
      value = value.narrow(static_cast<int64_t>(d), box.offset[d], box.shape[d]);
    return value;
  }

  std::mt19937 random_{static_cast<uint32_t>(::testing::UnitTest::GetInstance()->random_seed())};
  int64_t bytes_read_ = 0;
  storage::FaultyFiles counting_{[this](const storage::FileOperation& operation) {
    if (operation.kind == storage::FileOperation::Kind::kRead) bytes_read_ += operation.bytes;
    return storage::Fault{};
  }};
  std::string folder_;
};

std::string fp8_config(int64_t rows, int64_t columns) {
  return nlohmann::json{
      {"quantization_config",
       {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {rows, columns}}}}}
      .dump();
}

TEST_F(HfQuantizedTest, ReadsAnyBoxOfFloat8Blocks) {
  for (int round = 0; round < 60; ++round) {
    const bool configured = round % 2 == 0;
    const int64_t rows = configured ? draw(1, 40) : 128, columns = configured ? draw(1, 40) : 128;
    const std::vector<int64_t> shape = {draw(1, 300), draw(1, 300)};
    const at::Tensor codes = float8_codes(shape);
    const at::Tensor scales = at::rand({count_of(shape[0], rows), count_of(shape[1], columns)}) + 0.01;
    write({{"w.weight", codes.view(at::kFloat8_e4m3fn)}, {"w.weight_scale_inv", scales}},
          configured ? fp8_config(rows, columns) : "");
    const Box box = any_box(shape);
    const auto got = read("w.weight", shape, box);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(at::equal(*got, part_of(by_blocks(codes, scales, rows, columns), box)));
  }
}

TEST_F(HfQuantizedTest, ReadsAnyBoxOfMxfp4) {
  for (int round = 0; round < 60; ++round) {
    const std::vector<int64_t> stored = {draw(1, 5), draw(1, 9), draw(1, 4), 16};
    const std::vector<int64_t> shape = {stored[0], stored[1], stored[2] * 32};
    const at::Tensor blocks = at::randint(0, 256, stored, at::kByte);
    const at::Tensor exponents = at::randint(0, 253, {stored[0], stored[1], stored[2]}, at::kByte);
    write({{"w_blocks", blocks}, {"w_scales", exponents}}, R"({"quantization_config": {"quant_method": "mxfp4"}})");
    const Box box = any_box(shape);
    const auto got = read("w_blocks", shape, box);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(at::equal(*got, part_of(from_mxfp4(blocks, exponents), box)));
  }
}

class OneLayout : public HfMapper {
 public:
  explicit OneLayout(HfLayout layout) : layout_(std::move(layout)) {}
  absl::StatusOr<std::vector<HfLayout>> layouts(const std::string&) const override { return std::vector{layout_}; }

 private:
  HfLayout layout_;
};

// The layout of a tensor and the format of its numbers are independent.
TEST_F(HfQuantizedTest, EveryLayoutMayBeFloat8) {
  const HfLayout heads{.keys = {"t.0"}, .permute_heads = 4}, turned{.keys = {"t.0"}, .transposed = true};
  const HfLayout half{.keys = {"t.0"}, .transposed = true, .part = 1, .parts = 2};
  const HfLayout experts{.keys = {"t.0", "t.1", "t.2"}, .stacked = true};
  const std::vector<std::pair<HfLayout, std::vector<int64_t>>> forms = {
      {heads, {48, 33}}, {turned, {21, 40}}, {half, {21, 40}}, {experts, {3, 20, 35}}};
  for (int round = 0; round < 40; ++round) {
    const auto& [layout, shape] = forms[static_cast<size_t>(round) % forms.size()];
    Tensors coded, numbers;
    for (const std::string& key : layout.keys) {
      const std::vector<int64_t> there = hf_shape(layout, shape);
      const at::Tensor codes = float8_codes(there), scales = at::rand({count_of(there[0], 8), count_of(there[1], 8)});
      numbers[key] = by_blocks(codes, scales, 8, 8);
      const bool plain = key == "t.1" && draw(0, 1) == 0;  // One expert that was not quantized.
      coded[key] = plain ? numbers[key].to(at::kBFloat16) : codes.view(at::kFloat8_e4m3fn);
      if (plain) numbers[key] = coded[key].to(at::kFloat);
      if (!plain) coded[key + "_scale_inv"] = scales;
    }
    const Box box = any_box(shape);
    write(numbers, "");
    const auto want = read_parameter(**HfFolder::open(posix_files(), folder_), OneLayout(layout), "p", shape, box);
    write(coded, fp8_config(8, 8));
    const auto got = read_parameter(**HfFolder::open(posix_files(), folder_), OneLayout(layout), "p", shape, box);
    ASSERT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
    EXPECT_TRUE(at::equal(got->to(at::kFloat), *want)) << "layout " << round % 4;
  }
}

// A rank with a quarter of the columns, or two experts of eight, reads a quarter of the bytes, and only their scales.
TEST_F(HfQuantizedTest, ReadsOnlyWhatTheBoxNeeds) {
  const std::vector<int64_t> shape = {256, 20480};
  write({{"w.weight", float8_codes(shape).view(at::kFloat8_e4m3fn)}, {"w.weight_scale_inv", at::ones({2, 160})}}, "");
  ASSERT_TRUE(read("w.weight", shape, {{0, 5120}, {256, 5120}}).ok());
  EXPECT_EQ(bytes_read_, 256 * 5120 + 2 * 160 * 4) << "scales of a row of blocks lie within a page";
  ASSERT_TRUE(read("w.weight", shape, {{128, 0}, {64, 20480}}).ok());
  EXPECT_EQ(bytes_read_, 64 * 20480 + 160 * 4);

  write({{"w_blocks", at::zeros({8, 64, 4, 16}, at::kByte)}, {"w_scales", at::full({8, 64, 4}, 127, at::kByte)}}, "");
  ASSERT_TRUE(read("w_blocks", {8, 64, 128}, {{2, 0, 0}, {2, 64, 128}}).ok());
  EXPECT_EQ(bytes_read_, 2 * 64 * 4 * (16 + 1));
  write({{"w_blocks", at::zeros({2, 512, 4, 16}, at::kByte)}, {"w_scales", at::full({2, 512, 4}, 127, at::kByte)}}, "");
  ASSERT_TRUE(read("w_blocks", {2, 512, 128}, {{0, 128, 0}, {2, 128, 128}}).ok());
  EXPECT_EQ(bytes_read_, 2 * 128 * 4 * 16 + 2 * 512 * 4) << "rows of each expert";
}

// Columns of a box are read run by run, without the columns in between, and land in the right place.
TEST_F(HfQuantizedTest, PlainColumnsAreReadByRuns) {
  const at::Tensor value = at::rand({40, 3000});
  write({{"w", value}}, "");
  const Box box{{3, 700}, {30, 1500}};
  EXPECT_TRUE(at::equal(*read("w", {40, 3000}, box), part_of(value, box)));
  EXPECT_EQ(bytes_read_, 30 * 1500 * 4);
}

TEST_F(HfQuantizedTest, RefusesUnsupportedTypesAndScales) {
  const auto error = [&](const Tensors& tensors, const std::string& config, const std::string& key,
                         const std::vector<int64_t>& shape) {
    write(tensors, config);
    const auto got = read(key, shape, whole(shape));
    EXPECT_EQ(got.status().code(), absl::StatusCode::kFailedPrecondition);
    return std::string(got.status().message());
  };
  const at::Tensor codes = float8_codes({130, 200}).view(at::kFloat8_e4m3fn), scales = at::ones({2, 2});
  const std::vector<int64_t> shape = {130, 200};
  const std::string file = folder_ + "/model.safetensors";
  EXPECT_THAT(
      error({{"w.weight", codes}}, "", "w.weight", shape),
      AllOf(HasSubstr(file), HasSubstr("w.weight is F8_E4M3 and has no scales: w.weight_scale_inv is missing")));
  EXPECT_THAT(
      error({{"w.weight", codes}, {"w.weight_scale_inv", at::ones({2, 3})}}, "", "w.weight", shape),
      AllOf(HasSubstr(file), HasSubstr("w.weight_scale_inv is [2, 3], but w.weight of [130, 200] needs [2, 2]")));
  EXPECT_THAT(error({{"w.weight", codes}, {"w.weight_scale_inv", scales}}, fp8_config(64, 64), "w.weight", shape),
              HasSubstr("one for each 64x64 block, by quantization_config.weight_block_size"));
  EXPECT_THAT(error({{"w.weight", codes}, {"w.weight_scale_inv", scales.to(at::kInt)}}, "", "w.weight", shape),
              HasSubstr("w.weight_scale_inv is I32"));
  EXPECT_THAT(
      error({{"w.weight", codes.view(at::kFloat8_e5m2)}, {"w.weight_scale_inv", scales}}, "", "w.weight", shape),
      HasSubstr("w.weight is stored as F8_E5M2"));
  EXPECT_THAT(
      error({{"w.weight", at::rand(shape).to(at::kBFloat16)}, {"w.weight_scale_inv", scales}}, "", "w.weight", shape),
      HasSubstr("w.weight is BF16 and has scales, w.weight_scale_inv: remove them"));
  EXPECT_THAT(
      error({{"v", scales}, {"w.weight_scale_inv", scales}}, "", "v", {2, 2}),
      AllOf(HasSubstr(folder_), HasSubstr("scales without the tensor that they belong to: w.weight_scale_inv")));
  const at::Tensor blocks = at::zeros({2, 3, 2, 16}, at::kByte);
  EXPECT_THAT(error({{"w_blocks", blocks}}, "", "w_blocks", {2, 3, 64}), HasSubstr("w_scales is missing"));
  EXPECT_THAT(error({{"w_blocks", blocks}, {"w_scales", at::zeros({2, 3, 3}, at::kByte)}}, "", "w_blocks", {2, 3, 64}),
              HasSubstr("w_scales is [2, 3, 3]"));
  EXPECT_THAT(error({{"w_blocks", blocks.narrow(3, 0, 8)}, {"w_scales", at::zeros({2, 3, 2}, at::kByte)}}, "",
                    "w_blocks", {2, 3, 64}),
              HasSubstr("w_blocks is U8 of shape [2, 3, 2, 8]"));
  EXPECT_THAT(error({{"w.qweight", at::zeros({2, 3}, at::kInt)}}, "", "w.qweight", {2, 3}),
              HasSubstr("w.qweight is stored as I32"));
}

TEST_F(HfQuantizedTest, RefusesUnsupportedQuantizationMethods) {
  for (const std::string method : {"compressed-tensors", "bitsandbytes", "gptq", "awq", "unknown"}) {
    write({{"w", at::rand({2})}}, nlohmann::json{{"quantization_config", {{"quant_method", method}}}}.dump());
    const absl::Status status = HfFolder::open(counting_, folder_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("config.json"), HasSubstr("quant_method \"" + method + "\" is not read")));
  }
  for (const char* config : {R"({"quantization_config": 3})", R"({"quantization_config": {"bits": 4}})",
                             R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 1]}})", "["}) {
    write({{"w", at::rand({2})}}, config);
    EXPECT_THAT(std::string(HfFolder::open(counting_, folder_).status().message()), HasSubstr("config.json")) << config;
  }
}

// In 240 folders, each with one fault chosen by a seed, no fault is read as numbers; every error names the file and the
// tensor.
TEST_F(HfQuantizedTest, DamageIsNeverReadAsNumbers) {
  const std::vector<int64_t> matrix = {70, 90}, experts = {3, 4, 64};
  for (int round = 0; round < 240; ++round) {
    Tensors tensors{{"a.weight", float8_codes(matrix).view(at::kFloat8_e4m3fn)},
                    {"a.weight_scale_inv", at::rand({3, 3})},
                    {"b_blocks", at::randint(0, 256, {3, 4, 2, 16}, at::kByte)},
                    {"b_scales", at::randint(0, 255, {3, 4, 2}, at::kByte)}};
    const bool first = draw(0, 1) == 0;
    const std::string weight = first ? "a.weight" : "b_blocks", scale = first ? "a.weight_scale_inv" : "b_scales";
    std::string config = fp8_config(32, 32), named = scale;
    switch (round % 8) {
      case 0:
        tensors.erase(scale);
        break;
      case 1:
        tensors.erase(weight);
        break;
      case 2: {  // One row or column of scales too many or too few.
        const int64_t dim = draw(0, tensors[scale].dim() - 1);
        at::Tensor& scales = tensors[scale];
        scales = draw(0, 1) == 0 ? scales.narrow(dim, 1, scales.size(dim) - 1) : at::cat({scales, scales}, dim);
        break;
      }
      case 3: {
        const float bad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -1.F};
        at::Tensor flat = tensors[scale].view(-1);
        flat[draw(0, flat.numel() - 1)] = first ? bad[draw(0, 2)] : 255.F;
        break;
      }
      case 4:
        named = weight;
        if (draw(0, 1) == 0 && first) {
          tensors[weight].view(at::kByte).view(-1)[draw(0, 70 * 90 - 1)] = draw(0, 1) == 0 ? 0x7f : 0xff;
        } else {
          const at::ScalarType types[] = {at::kChar, at::kInt, at::kLong, at::kFloat8_e5m2, at::kBFloat16};
          tensors[weight] = at::zeros(tensors[weight].sizes(), types[draw(0, 4)]);
        }
        break;
      case 5:
        tensors[scale] = tensors[scale].to(draw(0, 1) == 0 ? at::kShort : at::kChar);
        break;
      case 6:
        tensors[weight] = tensors[weight].view(at::kByte).narrow(0, 0, tensors[weight].size(0) - 1).contiguous();
        if (first) tensors[weight] = tensors[weight].view(at::kFloat8_e4m3fn);
        named = first ? "a.weight" : "b_";
        break;
      case 7: {
        nlohmann::json about = nlohmann::json::parse(config);
        about["quantization_config"]["weight_block_size"] = {draw(1, 17), draw(1, 17)};
        config = about.dump();
        named = "a.weight_scale_inv";
        break;
      }
    }
    write(tensors, config);
    if (round % 16 == 15) {  // A file that ends too early.
      const std::string file = folder_ + "/model.safetensors";
      ASSERT_TRUE(posix_files().truncate(file, draw(1, 6000)).ok());
      named = "model.safetensors";
    }
    absl::Status status = read("a.weight", matrix, whole(matrix)).status();
    if (status.ok()) status = read("b_blocks", experts, whole(experts)).status();
    EXPECT_FALSE(status.ok()) << "damage " << round % 8 << " of " << weight;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(folder_), HasSubstr(named))) << round % 8;
  }
}

// Every mesh loads the small model's matrices, quantized in blocks of 8x8. A damaged scale of one rank makes the load
// fail on all ranks.
TEST_F(HfQuantizedTest, RanksLoadTheirPartsOrNothing) {
  Tensors tensors;
  std::map<std::string, at::Tensor> want;
  for (const Parameter& parameter : small_model()) {
    const std::string key = parameter.fqn;
    if (parameter.shape.size() < 2) {
      tensors[key] = want["model." + key] = full_tensor(key, parameter.shape, 1);
      continue;
    }
    const at::Tensor codes = float8_codes(parameter.shape);
    const at::Tensor scales = at::rand({count_of(parameter.shape[0], 8), count_of(parameter.shape[1], 8)});
    tensors[key] = codes.view(at::kFloat8_e4m3fn);
    tensors[key + "_scale_inv"] = scales;
    want["model." + key] = by_blocks(codes, scales, 8, 8);
  }
  const PlainNames names;
  const auto load = [&](int attempt, int world, Split split, auto check) {
    Attempt::Options options{.dump = folder_ + ".job", .world = world, .split = split, .attempt = attempt};
    options.hf = &names;
    options.config.initial_load_in_hf = true;
    options.config.initial_load_in_hf_quantized = true;
    options.config.initial_load_path = folder_;
    Attempt job(std::move(options));
    const absl::Status status = job.run([&](int rank, Checkpointer& checkpointer) -> absl::Status {
      std::vector<Slice> slices = make_slices(split, rank, world, -1);
      const auto loaded = checkpointer.load(slices);
      for (const Slice& slice : slices) {
        if (want.contains(slice.key)) check(slice);
      }
      return loaded.status();
    });
    EXPECT_TRUE(job.events(rank_protocol::event::kWarning).empty());
    return status;
  };
  write(tensors, fp8_config(8, 8));
  int attempt = 0;
  for (const auto& [world, split] :
       {std::pair{1, Split::kReplicated}, {2, Split::kRows}, {4, Split::kHybrid}, {3, Split::kColumns}}) {
    const absl::Status status = load(++attempt, world, split, [&](const Slice& slice) {
      EXPECT_TRUE(at::equal(slice.local, part_of(want.at(slice.key), {slice.offset, slice.size()}))) << slice.key;
    });
    ASSERT_TRUE(status.ok()) << status;
  }
  tensors["output.weight_scale_inv"][-1][-1] = std::numeric_limits<float>::quiet_NaN();
  write(tensors, fp8_config(8, 8));
  const absl::Status status = load(++attempt, 3, Split::kRows, [](const Slice& slice) {
    EXPECT_TRUE(at::equal(slice.local, at::full_like(slice.local, -77.0F))) << slice.key << " was written";
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 2"),
                    HasSubstr("model.safetensors: output.weight_scale_inv: the scale of block [81, 127] is nan")));
  posix_files().remove_folder(folder_ + ".job").IgnoreError();
}

TEST_F(HfQuantizedTest, ReportsAssumedAndContradictingValues) {
  write({{"w.weight", float8_codes({3, 4}).view(at::kFloat8_e4m3fn)}, {"w.weight_scale_inv", at::ones({1, 1})}}, "");
  const auto notes = quantization_notes(**HfFolder::open(posix_files(), folder_), /*expected=*/true);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], HasSubstr("blocks of 128x128 numbers are assumed"));
  write({{"w", at::rand({2})}}, "");
  const auto plain = HfFolder::open(posix_files(), folder_);
  EXPECT_TRUE(quantization_notes(**plain, /*expected=*/false).empty());
  EXPECT_THAT(quantization_notes(**plain, /*expected=*/true).at(0), HasSubstr("are not quantized"));
}

}  // namespace
}  // namespace titan::checkpoint::testing
