// Tests import and export of Hugging Face folders, over several ranks and with names and layouts that differ from ours.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

#include "common/rank_protocol/launch.h"
#include "tests/worker/rank/checkpoint/fake_job.h"
#include "tests/worker/rank/data/testing.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_export.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/shards/shard.h"
#include "worker/rank/checkpoint/steps/step_folders.h"

namespace titan::checkpoint::testing {
namespace {

using storage::posix_files;
using ::testing::HasSubstr;

// "hf.<fqn>"; wq is stored transposed, wk with its heads' rows in halves, and the norms' weights row by row, as experts
// are. The head may have two names.
class FakeMapper : public HfMapper {
 public:
  absl::StatusOr<std::vector<HfLayout>> layouts(const std::string& fqn) const override {
    HfLayout layout{.keys = {"hf." + fqn}};
    if (fqn.find("layers.0.attention.wq") != std::string::npos) layout.transposed = true;
    if (fqn == "tok_embeddings.weight") {
      layout = {.stacked = true};
      for (int row = 0; row < 37; ++row) layout.keys.push_back("hf.embed." + std::to_string(row));
    }
    if (fqn != "output.weight") return std::vector{layout};
    return std::vector{layout, HfLayout{.keys = {"hf.head"}}};
  }
  bool knows(const std::string& key) const override { return key.rfind("hf.", 0) == 0; }
  nlohmann::json config() const override { return {{"model_type", "fake"}}; }
};

class HfTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dump_ =
        storage::join_path(::testing::TempDir(), "hf." + std::to_string(::getpid()) + "." +
                                                     ::testing::UnitTest::GetInstance()->current_test_info()->name());
    ASSERT_TRUE(posix_files().remove_folder(dump_).ok());
  }
  void TearDown() override { posix_files().remove_folder(dump_).IgnoreError(); }

  Attempt::Options options(const std::string& name, int world, Split split = Split::kRows) {
    return {.dump = dump_ + "/" + name, .world = world, .split = split, .hf = &mapper_};
  }
  std::string export_step(int world, const std::string& dtype = "float32") {
    Attempt::Options last = options("export", world);
    last.config.last_save_in_hf = true;
    last.config.export_dtype = dtype;
    Attempt job(std::move(last));
    EXPECT_TRUE(job.save_last(7).ok());
    EXPECT_EQ(job.events(rank_protocol::event::kCommitted).size(), 1u);
    return dump_ + "/export/checkpoint/step-7";
  }

  FakeMapper mapper_;
  std::string dump_;
};

TEST_F(HfTest, LastSaveLoadsOnAnyMesh) {
  const std::string folder = export_step(3);
  EXPECT_THAT(*posix_files().list(folder),
              ::testing::ElementsAre("config.json", "model-00001-of-00001.safetensors", kHfIndexName));
  EXPECT_THAT(*posix_files().list(dump_ + "/export/checkpoint"), ::testing::ElementsAre("step-7"))
      << "no staging folder left";
  for (const auto& [world, split] :
       {std::pair{1, Split::kReplicated}, {2, Split::kRows}, {4, Split::kHybrid}, {3, Split::kColumns}}) {
    Attempt::Options load = options("import" + std::to_string(world), world, split);
    load.config.initial_load_in_hf = true;
    load.config.initial_load_path = folder;
    const auto loaded = Attempt(std::move(load)).load(7);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->source, Source::kInitial);
    EXPECT_EQ(loaded->step, 0);
  }
}

// If config.json lacked the tokenizer's ids, transformers would use its classes' defaults, which are ordinary tokens
// here.
TEST_F(HfTest, ConfigNamesTheTokenizersIds) {
  const auto config_of = [&](const std::string& name, const std::string& tokenizer) {
    Attempt::Options last = options(name, 2);
    last.config.last_save_in_hf = true;
    last.hf_assets_path = tokenizer;
    EXPECT_TRUE(Attempt(std::move(last)).save_last(7).ok());
    const std::string path = dump_ + "/" + name + "/checkpoint/step-7/config.json";
    return nlohmann::json::parse(*storage::read_file(posix_files(), path));
  };
  const data::testing::Folder folder;
  folder.write_tokenizer(data::testing::byte_tokenizer());
  nlohmann::json want = {{"model_type", "fake"},
                         {"bos_token_id", 256},
                         {"eos_token_id", 257},
                         {"torch_dtype", "float32"},
                         {"transformers_version", "4.57.1"}};
  EXPECT_EQ(config_of("with_tokenizer", folder.path()), want);
  want["bos_token_id"] = want["eos_token_id"] = nullptr;
  EXPECT_EQ(config_of("without_tokenizer", ""), want);
}

// Files that a server needs in addition to the weights are copied, but not other weights nor files that describe their
// storage.
TEST_F(HfTest, ExportCopiesTokenizerFiles) {
  const data::testing::Folder folder;
  folder.write_tokenizer(data::testing::byte_tokenizer());
  const std::string assets = folder.path();
  ASSERT_TRUE(posix_files().make_folders(assets + "/additional_chat_templates").ok());
  const std::vector<std::string> taken = {
      "special_tokens_map.json", "vocab.json", "merges.txt",          "tokenizer.model",
      "chat_template.jinja",     "LICENSE",    "tokenization_own.py", "additional_chat_templates/tools.jinja"};
  const std::vector<std::string> left = {
      "config.json",         "model.safetensors.index.json", "model.safetensors", "pytorch_model.bin",
      "adapter_config.json", "hf_quant_config.json",         ".gitattributes",    "notes.txt",
      "trainer_state.json",  "consolidated.00.pth"};
  for (const auto& names : {taken, left}) {
    for (const std::string& name : names)
      ASSERT_TRUE(storage::atomic_write(posix_files(), assets + "/" + name, "of " + name).ok());
  }
  Attempt::Options last = options("served", 2);
  last.config.last_save_in_hf = true;
  last.hf_assets_path = assets;
  ASSERT_TRUE(Attempt(std::move(last)).save_last(7).ok());
  const std::string out = dump_ + "/served/checkpoint/step-7/";
  for (const std::string& name : taken) EXPECT_EQ(*storage::read_file(posix_files(), out + name), "of " + name);
  for (const std::string name : {"tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_EQ(*storage::read_file(posix_files(), out + name), *storage::read_file(posix_files(), assets + "/" + name));
  }
  const std::vector<std::string> there = *posix_files().list(out);
  for (const std::string& name : left) {
    if (name == "config.json" || name == kHfIndexName) continue;  // Part of the export itself.
    EXPECT_THAT(there, ::testing::Not(::testing::Contains(name)));
  }
  EXPECT_THAT(*storage::read_file(posix_files(), out + "config.json"), HasSubstr("fake"));
  EXPECT_EQ(nlohmann::json::parse(*storage::read_file(posix_files(), out + "generation_config.json")),
            nlohmann::json({{"bos_token_id", 256}, {"eos_token_id", 257}, {"transformers_version", "4.57.1"}}));
}

// The model's own generation defaults are copied unchanged.
TEST_F(HfTest, AGenerationConfigIsCopied) {
  const data::testing::Folder folder;
  folder.write_tokenizer(data::testing::byte_tokenizer());
  const std::string own = R"({"eos_token_id": [257, 3], "temperature": 0.6})";
  ASSERT_TRUE(storage::atomic_write(posix_files(), folder.path() + "/generation_config.json", own).ok());
  ASSERT_TRUE(Attempt(options("job", 1)).save(1).ok());
  const auto step = StepReader::open(posix_files(), dump_ + "/job/checkpoint/step-1");
  HfExport plan;
  plan.assets = {.folder = folder.path()};
  ASSERT_TRUE(export_folder(posix_files(), **step, mapper_, plan, dump_ + "/out").ok());
  EXPECT_EQ(*storage::read_file(posix_files(), dump_ + "/out/generation_config.json"), own);
}

// A finished training must not lose its weights, so a missing tokenizer is a warning; a folder that the user names must
// exist.
TEST_F(HfTest, AMissingTokenizerIsAWarningOrAnError) {
  Attempt::Options last = options("gone", 2);
  last.config.last_save_in_hf = true;
  last.hf_assets_path = dump_ + "/nowhere";
  Attempt job(std::move(last));
  ASSERT_TRUE(job.save_last(7).ok());
  const std::vector<Event> warnings = job.events(rank_protocol::event::kWarning);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0].members.at("message").get<std::string>(),
              ::testing::AllOf(HasSubstr("the tokenizer was not copied next to the weights"), HasSubstr("nowhere")));
  EXPECT_TRUE(HfFolder::open(posix_files(), dump_ + "/gone/checkpoint/step-7").ok());

  ASSERT_TRUE(Attempt(options("job", 1)).save(1).ok());
  const auto step = StepReader::open(posix_files(), dump_ + "/job/checkpoint/step-1");
  HfExport plan;
  plan.assets = {.folder = dump_ + "/nowhere", .required = true};
  EXPECT_EQ(export_folder(posix_files(), **step, mapper_, plan, dump_ + "/out").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(posix_files().exists(dump_ + "/out/" + std::string(kHfIndexName)));

  // A folder with a broken tokenizer: its files are copied, and the result reports what cannot be read.
  const data::testing::Folder folder;
  folder.write_tokenizer(data::testing::byte_tokenizer());
  folder.write("tokenizer_config.json", "{");
  plan.assets = {.folder = folder.path()};
  const auto broken = export_folder(posix_files(), **step, mapper_, plan, dump_ + "/broken");
  ASSERT_TRUE(broken.ok()) << broken.status();
  EXPECT_THAT(*broken, ::testing::ElementsAre(::testing::AllOf(HasSubstr("config.json names no token that begins"),
                                                               HasSubstr("tokenizer_config.json"))));
  EXPECT_EQ(*storage::read_file(posix_files(), dump_ + "/broken/tokenizer_config.json"), "{");
  plan.assets.required = true;
  EXPECT_FALSE(export_folder(posix_files(), **step, mapper_, plan, dump_ + "/none").ok());
}

// The fake model with three special tensors: one that its class keeps in float32, one that it keeps in float32 only in
// float16 exports, and one that it lacks and other programs write.
class KeepingMapper : public FakeMapper {
 public:
  absl::StatusOr<std::vector<HfLayout>> layouts(const std::string& fqn) const override {
    auto layouts = FakeMapper::layouts(fqn);
    if (fqn == "layers.0.attention.wq.weight") (*layouts)[0].float32 = KeepFloat32::kAlways;
    if (fqn == "layers.0.attention_norm.weight") (*layouts)[0].float32 = KeepFloat32::kNotFloat16;
    if (fqn == "layers.1.attention.wq.weight") (*layouts)[0].read_only = true;
    return layouts;
  }
};

TEST_F(HfTest, ExportKeepsFloat32TensorsOfTheClass) {
  const KeepingMapper mapper;
  for (const auto& [name, type] : {std::pair("bfloat16", at::kBFloat16), {"float16", at::kHalf}}) {
    Attempt::Options last = options(name, 2);
    last.config.last_save_in_hf = true;
    last.config.export_dtype = name;
    last.hf = &mapper;
    Attempt job(std::move(last));
    ASSERT_TRUE(job.save_last(7).ok());
    const auto weights = HfFolder::open(posix_files(), dump_ + "/" + name + "/checkpoint/step-7");
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_TRUE(at::equal(*(*weights)->read("hf.layers.0.attention.wq.weight"),
                          full_tensor("model.layers.0.attention.wq.weight", {16, 16}, 7).t()));
    EXPECT_EQ(*(*weights)->dtype("hf.layers.0.attention_norm.weight"), type == at::kHalf ? at::kFloat : type);
    EXPECT_EQ(*(*weights)->dtype("hf.output.weight"), type);
    EXPECT_FALSE((*weights)->has("hf.layers.1.attention.wq.weight"));
    const std::vector<Event> warnings = job.events(rank_protocol::event::kWarning);
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_THAT(warnings[0].members.at("message").get<std::string>(),
                HasSubstr("model.layers.1.attention.wq.weight is not zero and is left out"));
  }
}

// If numbers are beyond the type's range, an export on demand is refused, and the last save of a training writes the
// tensor in float32.
TEST_F(HfTest, OverflowsAreRefusedOrWrittenInFloat32) {
  Attempt::Options last = options("float16", 2);
  last.config.last_save_in_hf = true;
  last.config.export_dtype = "float16";
  Attempt job(last);
  const auto with_large = [](int rank, int world) {
    std::vector<Slice> slices = make_slices(Split::kRows, rank, world, 7);
    for (Slice& slice : slices) {
      if (slice.key == "model.layers.0.attention.wq.weight" && slice.offset[0] == 0) {
        slice.local[0][0] = -1e5;
        slice.local[0][1] = 7e4;
        slice.local[0][2] = std::nan("");
      }
    }
    return slices;
  };
  ASSERT_TRUE(job.run([&](int rank, Checkpointer& one) { return one.save_last(7, with_large(rank, 2), {}); }).ok());
  std::vector<std::string> messages;
  for (const Event& event : job.events(rank_protocol::event::kWarning))
    messages.push_back(event.members.at("message").get<std::string>());
  const std::string key = "model.layers.0.attention.wq.weight: ";
  const std::string what = key + "2 numbers, the largest 100000, are beyond float16, whose maximum is 65504";
  EXPECT_THAT(messages,
              ::testing::ElementsAre(key + "1 number is NaN or infinite", what + ": the tensor is written in float32"));
  const auto weights = HfFolder::open(posix_files(), dump_ + "/float16/checkpoint/step-7");
  EXPECT_EQ((*(*weights)->read("hf.layers.0.attention.wq.weight"))[0][0].item<float>(), -1e5F);
  EXPECT_EQ(*(*weights)->dtype("hf.output.weight"), at::kHalf);

  Attempt full(options("full", 1));
  ASSERT_TRUE(full.run([&](int rank, Checkpointer& one) { return one.save(1, with_large(rank, 1), {}); }).ok());
  const auto step = StepReader::open(posix_files(), dump_ + "/full/checkpoint/step-1");
  HfExport plan{.dtype = at::kHalf};
  const absl::Status refused = export_folder(posix_files(), **step, mapper_, plan, dump_ + "/refused").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(refused.message(), what);
  plan.overflow = Overflow::kWarn;
  const auto allowed = export_folder(posix_files(), **step, mapper_, plan, dump_ + "/allowed");
  ASSERT_TRUE(allowed.ok()) << allowed.status();
  EXPECT_THAT(*allowed,
              ::testing::ElementsAre(key + "1 number is NaN or infinite", what + " and infinite in the export"));
  plan = {.dtype = at::kBFloat16};
  EXPECT_THAT(*export_folder(posix_files(), **step, mapper_, plan, dump_ + "/wide"),
              ::testing::ElementsAre(key + "1 number is NaN or infinite"));

  // In a step of Titan's own format the pieces of a tensor are on several ranks, which must agree on the type.
  last = options("own", 2);
  last.config.export_dtype = "float16";
  Attempt own(last);
  ASSERT_TRUE(own.run([&](int rank, Checkpointer& one) { return one.save_last(7, with_large(rank, 2), {}); }).ok());
  EXPECT_EQ(own.events(rank_protocol::event::kWarning).size(), 2u);
}

TEST(NarrowingTest, RouterBiasesKeepTheirType) {
  EXPECT_EQ(narrowed_type("model.layers.3.moe.expert_bias", at::kFloat, at::kBFloat16), at::kFloat);
  EXPECT_EQ(narrowed_type("model.layers.3.moe.router.gate.weight", at::kFloat, at::kBFloat16), at::kBFloat16);
  EXPECT_EQ(narrowed_type("optim.step", at::kLong, at::kBFloat16), at::kLong);
  Narrowing narrowing;  // 3.4e38 rounds to infinity in bfloat16, though float32 can hold it.
  narrowing.cast(at::full({3}, 3.4e38F), at::kBFloat16);
  EXPECT_TRUE(narrowing.overflows());
  EXPECT_EQ(narrowing.overflow("t"),
            "t: 3 numbers, the largest 3.4e+38, are beyond bfloat16, whose maximum is 3.38953e+38");
  Narrowing fits;
  EXPECT_TRUE(at::equal(fits.cast(at::full({}, 65504.0F), at::kHalf), at::full({}, 65504.0F).to(at::kHalf)));
  EXPECT_FALSE(fits.overflows() || fits.has_nonfinite());
}

TEST_F(HfTest, ExportsAndImportsOtherTypes) {
  const std::string folder = export_step(2, "bfloat16");
  const auto weights = HfFolder::open(posix_files(), folder);
  ASSERT_TRUE(weights.ok());
  const auto tensor = (*weights)->read("hf.layers.0.attention.wq.weight");
  EXPECT_TRUE(at::equal(*tensor, full_tensor("model.layers.0.attention.wq.weight", {16, 16}, 7).t().to(at::kBFloat16)));
  Attempt::Options load = options("import", 2);
  load.config.initial_load_in_hf = true;
  load.hf_assets_path = folder;  // A load without initial_load_path uses model.hf_assets_path.
  Attempt job(std::move(load));
  ASSERT_TRUE(job.run([&](int rank, Checkpointer& checkpointer) -> absl::Status {
                   std::vector<Slice> slices = make_slices(Split::kRows, rank, 2, -1),
                                      want = make_slices(Split::kRows, rank, 2, 7);
                   auto result = checkpointer.load(slices);
                   for (size_t i = 0; i < slices.size() / 2; ++i) {
                     EXPECT_TRUE(at::equal(slices[i].local, want[i].local.to(at::kBFloat16).to(at::kFloat)))
                         << slices[i].key;
                   }
                   return result.status();
                 })
                  .ok());
}

TEST_F(HfTest, LargeModelsAreSplitIntoFiles) {
  ASSERT_TRUE(Attempt(options("job", 2)).save(1).ok());
  const auto step = StepReader::open(posix_files(), dump_ + "/job/checkpoint/step-1");
  ASSERT_TRUE(step.ok());
  const HfExport small{.max_file_bytes = 2000};
  std::vector<std::string> names;
  ASSERT_TRUE(export_folder(posix_files(), **step, mapper_, small, dump_ + "/out", [&](const std::string& n) {
                names.push_back(n);
              }).ok());
  EXPECT_EQ(names.size(), 3u);
  EXPECT_EQ(names[0], "model-00001-of-00003.safetensors");
  const auto weights = HfFolder::open(posix_files(), dump_ + "/out");
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ((*weights)->keys().size(), 37u + 4u);

  // Without an index all files of a set make up the weights, and fewer do not.
  ASSERT_TRUE(posix_files().remove(dump_ + "/out/" + kHfIndexName).ok());
  EXPECT_TRUE(HfFolder::open(posix_files(), dump_ + "/out").ok());
  ASSERT_TRUE(posix_files().remove(dump_ + "/out/" + names[1]).ok());
  const absl::Status missing = HfFolder::open(posix_files(), dump_ + "/out").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("2 of 3 files *-of-00003.safetensors"));
}

TEST_F(HfTest, PartlyWrittenExportIsNotRead) {
  const std::string folder = export_step(1);
  ASSERT_TRUE(storage::atomic_write(posix_files(), folder + "/" + kWriterName, "somebody").ok());
  EXPECT_TRUE(HfFolder::open(posix_files(), folder).ok()) << "its index came last";
  ASSERT_TRUE(posix_files().remove(folder + "/" + kHfIndexName).ok());
  EXPECT_EQ(HfFolder::open(posix_files(), folder).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(HfTest, MismatchesAndDamageAreNamed) {
  const std::string folder = export_step(1);
  const auto load_with = [&](int attempt, auto change) {
    Attempt::Options load = options("import", 2);
    load.attempt = attempt;
    load.config.initial_load_in_hf = true;
    load.config.initial_load_path = folder;
    Attempt job(std::move(load));
    return job.run([&](int rank, Checkpointer& checkpointer) {
      std::vector<Slice> slices = make_slices(Split::kRows, rank, 2, -1);
      change(slices);
      return checkpointer.load(slices).status();
    });
  };
  EXPECT_TRUE(load_with(1, [](auto&) {}).ok());
  const absl::Status renamed = load_with(2, [](auto& slices) { slices[2].key = "model.layers.5.weight"; });
  EXPECT_EQ(renamed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(renamed.message()), HasSubstr("hf.layers.5.weight"));
  const absl::Status reshaped = load_with(3, [](auto& slices) { slices[4].shape = {651, 1024}; });
  EXPECT_THAT(std::string(reshaped.message()), HasSubstr("needs [651, 1024], tensor hf.output.weight is [650, 1024]"));

  // A cut file is found when its header is read, before anything is loaded.
  const std::string file = folder + "/model-00001-of-00001.safetensors";
  ASSERT_TRUE(posix_files().truncate(file, 100'000).ok());
  const absl::Status cut = load_with(4, [](auto&) {});
  EXPECT_EQ(cut.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(cut.message()), HasSubstr("cut short"));
  ASSERT_TRUE(posix_files().remove(file).ok());
  EXPECT_EQ(load_with(5, [](auto&) {}).code(), absl::StatusCode::kNotFound);
}

// The index may not name missing files or files outside its folder, and transformers would ignore it if a whole file
// exists.
TEST_F(HfTest, IndexMustNameExistingFilesOfItsFolder) {
  const std::string folder = export_step(1), index = storage::join_path(folder, kHfIndexName);
  const std::string weights = "model-00001-of-00001.safetensors";
  const nlohmann::json good = nlohmann::json::parse(*storage::read_file(posix_files(), index));
  const auto refusal = [&](const std::string& key, const std::string& file) {
    nlohmann::json bad = good;
    bad["weight_map"][key] = file;
    EXPECT_TRUE(storage::atomic_write(posix_files(), index, bad.dump()).ok());
    return std::string(HfFolder::open(posix_files(), folder).status().message());
  };
  for (const std::string& name : std::vector<std::string>{"../export/" + weights, "/etc/" + weights, "a/../../b", ""})
    EXPECT_THAT(refusal("hf.norm.weight.0", name), HasSubstr("names no file of this folder for hf.norm")) << name;
  EXPECT_THAT(refusal("hf.ghost", weights), HasSubstr("says that hf.ghost is in " + weights + ", and it is not"));
  EXPECT_THAT(refusal("hf.ghost", "gone.safetensors"), HasSubstr("index.json names gone.safetensors"));
  ASSERT_TRUE(storage::atomic_write(posix_files(), index, good.dump()).ok());
  ASSERT_TRUE(HfFolder::open(posix_files(), folder).ok());
  ASSERT_TRUE(storage::atomic_write(posix_files(), folder + "/model.safetensors", "another").ok());
  EXPECT_THAT(std::string(HfFolder::open(posix_files(), folder).status().message()),
              HasSubstr("remove the one that is left over"));
}

TEST_F(HfTest, AConfigOfAnotherModelIsRefused) {
  const std::string folder = export_step(1), config = folder + "/config.json";
  const auto load_with = [&](int attempt, const std::string& text) {
    EXPECT_TRUE(storage::atomic_write(posix_files(), config, text).ok());
    Attempt::Options load = options("import", 2);
    load.attempt = attempt;
    load.config.initial_load_in_hf = true;
    load.config.initial_load_path = folder;
    return Attempt(std::move(load)).load(7).status();
  };
  EXPECT_TRUE(load_with(1, R"({"model_type": "fake", "unknown_key": 1})").ok());
  const absl::Status other = load_with(2, R"({"model_type": "other"})");
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.message()),
              ::testing::AllOf(HasSubstr("MODEL_MISMATCH: "),
                               HasSubstr("config.json says model_type \"other\", this model has \"fake\"")));
  EXPECT_THAT(std::string(load_with(3, "{").message()), HasSubstr("config.json: not a JSON object"));
  ASSERT_TRUE(posix_files().remove(config).ok());  // Without config.json the shapes decide.
  Attempt::Options load = options("import", 2);
  load.attempt = 4;
  load.config.initial_load_in_hf = true;
  load.config.initial_load_path = folder;
  EXPECT_TRUE(Attempt(std::move(load)).load(7).ok());
}

TEST_F(HfTest, ExportNextToAFullStepKeepsItResumable) {
  Attempt::Options both = options("both", 2);
  both.config.last_save_in_hf = true;
  Attempt job(both);
  ASSERT_TRUE(job.save(7).ok());
  ASSERT_TRUE(job.save_last(7).ok());
  EXPECT_TRUE(posix_files().exists(dump_ + "/both/checkpoint/step-7/model.safetensors.index.json"));
  both.attempt = 2;
  EXPECT_EQ(Attempt(both).load()->step, 7);
}

// The fake model with its embedding as head, and with a norm that its family's weights do not contain.
class TiedMapper : public FakeMapper {
 public:
  absl::StatusOr<std::vector<HfLayout>> layouts(const std::string& fqn) const override {
    if (fqn == "tok_embeddings.weight") return std::vector{HfLayout{.keys = {"hf.embed"}}};
    if (fqn == "output.weight" || fqn == "layers.0.attention_norm.weight") return std::vector<HfLayout>();
    return FakeMapper::layouts(fqn);
  }
  bool knows(const std::string& key) const override { return key == "lm_head.weight" || FakeMapper::knows(key); }
};

TEST_F(HfTest, SaveWarnsOfTensorsWithoutHfNames) {
  const TiedMapper mapper;
  Attempt::Options last = options("export", 2);
  last.config.last_save_in_hf = true;
  last.hf = &mapper;
  Attempt job(std::move(last));
  ASSERT_TRUE(job.save_last(7).ok());
  std::vector<std::string> messages;
  for (const Event& event : job.events(rank_protocol::event::kWarning))
    messages.push_back(event.members.at("message").get<std::string>());
  EXPECT_THAT(messages, ::testing::UnorderedElementsAre(HasSubstr("model.layers.0.attention_norm.weight is not zero"),
                                                        HasSubstr("model.output.weight is not zero")));
}

// A model that uses its embedding as head cannot load a different head.
TEST_F(HfTest, AHeadThatIsNotTheEmbeddingIsRefused) {
  const TiedMapper mapper;
  const at::Tensor embedding = full_tensor("model.tok_embeddings.weight", {37, 16}, 7);
  at::Tensor other = embedding.clone();
  other[36][15] += 1;
  const auto load_with = [&](const at::Tensor& head, bool tied) {
    const std::string folder = dump_ + "/weights";
    EXPECT_TRUE(posix_files().remove_folder(folder).ok());
    EXPECT_TRUE(posix_files().make_folders(folder).ok());
    std::vector<Staged> parts;
    const auto add = [&](const std::string& key, const at::Tensor& value) {
      parts.push_back({key, value.sizes().vec(), std::vector<int64_t>(static_cast<size_t>(value.dim())), value});
    };
    add("hf.embed", embedding);
    add("lm_head.weight", head);
    add("hf.layers.0.attention.wq.weight", full_tensor("wq", {16, 16}, 7));
    add("hf.layers.1.attention.wq.weight", full_tensor("wq", {3, 8}, 7));
    EXPECT_TRUE(write_tensors(posix_files(), folder, "model.safetensors", parts).ok());
    Attempt::Options load = options("import", 3);
    load.hf = &mapper;
    load.model.emplace().tied_embeddings = tied;
    load.config.initial_load_in_hf = true;
    load.config.initial_load_path = folder;
    return Attempt(std::move(load)).run([](int rank, Checkpointer& checkpointer) {
      std::vector<Slice> slices = make_slices(Split::kRows, rank, 3, -1);
      return checkpointer.load(slices).status();
    });
  };
  EXPECT_TRUE(load_with(embedding, true).ok());
  EXPECT_TRUE(load_with(embedding.to(at::kDouble), true).ok()) << "the same numbers";
  EXPECT_TRUE(load_with(other, false).ok()) << "irrelevant for a model with a separate head";
  for (const at::Tensor& head : {other, embedding.slice(0, 0, 36).contiguous()}) {
    const absl::Status refused = load_with(head, true);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("lm_head.weight differs from hf.embed"));
  }
}

TEST_F(HfTest, RefusesModelWithoutHfNames) {
  Attempt::Options load = options("import", 1);
  load.hf = nullptr;
  load.config.initial_load_in_hf = true;
  load.config.initial_load_path = export_step(1);
  EXPECT_THAT(std::string(Attempt(std::move(load)).load().status().message()), HasSubstr("no Hugging Face names"));
}

}  // namespace
}  // namespace titan::checkpoint::testing
