#include "worker/rank/tools/images/encode_images.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/plan/config/assets.h"
#include "common/plan/config/load.h"
#include "common/plan/config/model_kind.h"
#include "common/plan/config/validate.h"
#include "common/service/failpoint/failpoint.h"
#include "worker/rank/tools/images/encoding.h"

namespace titan::tools {
namespace {

constexpr char kProgram[] = "titan-data encode-images";

struct Words {
  EncodingOptions options;
  std::string job, data = "training", crop = "center", shard = "0/1";
  std::vector<std::string> keys;  // Words that override keys of the job.
  int64_t shard_mib = 256;
  bool quiet = false;
};

// Moves "--section.key", and the value after it, from the words to a list.
std::vector<std::string> take_keys(std::vector<std::string>& words) {
  std::vector<std::string> keys, rest;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string name = words[i].substr(0, words[i].find('='));
    if (!name.starts_with("--") || name.find('.') == std::string::npos) {
      rest.push_back(words[i]);
      continue;
    }
    keys.push_back(words[i]);
    const bool has_value = name.size() == words[i].size() && i + 1 < words.size() && !words[i + 1].starts_with("--");
    if (has_value) keys.push_back(words[++i]);
  }
  words = std::move(rest);
  return keys;
}

absl::Status take_part(const std::string& text, EncodingOptions& options) {
  const std::vector<std::string> numbers = absl::StrSplit(text, '/');
  const bool valid = numbers.size() == 2 && absl::SimpleAtoi(numbers[0], &options.part) &&
                     absl::SimpleAtoi(numbers[1], &options.parts) && options.parts >= 1 && options.parts <= 1 << 20 &&
                     options.part >= 0 && options.part < options.parts;
  if (valid) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--shard ", text, ": write PART/PARTS, such as 0/4, 1/4, 2/4 and 3/4 for four processes"));
}

absl::StatusOr<config::JobConfig> read_job(const Words& words) {
  absl::StatusOr<config::LoadedConfig> loaded =
      words.job.empty() ? config::load_overrides(words.keys) : config::load_file(words.job, words.keys);
  TITAN_RETURN_IF_ERROR(loaded.status());
  config::JobConfig& job = loaded->config;
  if (config::kind_of(job.model) != config::ModelKind::kTextToImage) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.name = ", job.model.name, ": only flux reads encodings of images"));
  }
  if (words.data == "validation") job.validation.enable = true;
  TITAN_RETURN_IF_ERROR(config::validate(*loaded));
  config::find_downloads(job.encoder);
  config::resolve_assets(job);
  return job;
}

// Prints the progress every two seconds.
class Progress {
 public:
  void show(const EncodingProgress& progress) {
    if (progress.seconds - shown_ < 2) return;
    shown_ = progress.seconds;
    const double rate = static_cast<double>(progress.samples) / progress.seconds;
    const auto left = static_cast<double>(progress.total - progress.kept - progress.samples);
    std::cerr << absl::StrFormat("titan-data: %d of %s, %.1f images/s, %.0f s left, %d skipped\n",
                                 progress.samples + progress.kept, counted(progress.total, "image"), rate, left / rate,
                                 progress.skipped);
  }

 private:
  double shown_ = 0;
};

void print(const Words& words, const EncodingResult& result) {
  const EncodingProgress& progress = result.progress;
  std::cout << absl::StrFormat("%s: %s of %s (%d already existed)", words.options.out, counted(result.shards, "shard"),
                               counted(progress.total, "image"), result.kept_shards);
  if (progress.skipped > 0) std::cout << ", " << counted(progress.skipped, "unusable image") << " skipped";
  if (progress.samples > 0) {
    std::cout << absl::StrFormat("; %.1f s, %.1f images/s", progress.seconds,
                                 static_cast<double>(progress.samples) / progress.seconds);
  }
  if (result.complete) {
    std::cout << "\n" << words.options.out << ": complete with " << counted(result.samples, "sample");
  } else {
    std::cout << "\n" << words.options.out << ": not complete until the other parts of --shard are made";
  }
  std::cout << "\n";
}

absl::Status run(Words& words) {
  TITAN_RETURN_IF_ERROR(take_part(words.shard, words.options));
  if (words.options.out.find("://") != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("--out ", words.options.out, ": must be a folder of this machine; copy it when it is complete"));
  }
  TITAN_ASSIGN_OR_RETURN(const config::JobConfig job, read_job(words));
  words.options.training = words.data == "training";
  words.options.center_crop = words.crop == "center";
  words.options.shard_bytes = words.shard_mib << 20;
  Progress progress;
  TITAN_ASSIGN_OR_RETURN(
      const EncodingResult result,
      encode_images(
          job, words.options, [](const std::string& text) { std::cerr << "titan-data: " << text << "\n"; },
          [&](const EncodingProgress& now) {
            if (!words.quiet) progress.show(now);
          }));
  print(words, result);
  return std::cout ? absl::OkStatus() : absl::UnavailableError("standard output cannot be written");
}

void add_options(CLI::App& app, Words& words) {
  app.add_option("job", words.job, "The job's file (.toml, .yaml, .json), which names images and encoders");
  app.add_option("--out", words.options.out, "Folder of the encodings: new, or left by an interrupted call")
      ->required();
  app.add_option("--data", words.data, "Which of the job's data is encoded")
      ->check(CLI::IsMember({"training", "validation"}))
      ->capture_default_str();
  app.add_option("--crop", words.crop,
                 "Where the longer side of an image is cut: center, or random: once, where the first pass of an "
                 "unshuffled job would cut it")
      ->check(CLI::IsMember({"center", "random"}))
      ->capture_default_str();
  app.add_option("--dtype", words.options.dtype, "Type of the encodings; auto: the one in which the encoders compute")
      ->check(CLI::IsMember({"auto", "bfloat16", "float32"}))
      ->capture_default_str();
  app.add_option("--shard", words.shard,
                 "PART/PARTS: this process makes every PARTS-th file; start one process for each PART from 0")
      ->capture_default_str();
  app.add_option("--shard-mib", words.shard_mib, "Approximate size of a file")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--shard-samples", words.options.shard_samples, "Samples of a file, instead of its size")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--batch", words.options.batch, "Images that the encoders process at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--device", words.options.device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_flag("-q,--quiet", words.quiet, "Print no progress on standard error");
  app.footer("[--section.key VALUE ...] overrides keys of the job, as with titanctl run.");
}

}  // namespace

int encode_images_main(int argc, char** argv) {
  CLI::App app{
      "Encodes images and captions once with the frozen encoders of a flux job, so that training needs neither images "
      "nor encoders (training.dataloader.format = \"encodings\"). If killed and run again, it resumes.\n\n"
      "  titan-data encode-images job.toml --out encodings --device cuda\n"
      "  titan-data encode-images job.toml --out encodings --shard 0/2 --training.dataset_path images\n",
      kProgram};
  Words words;
  add_options(app, words);
  std::vector<std::string> given(argv + 1, argv + argc);
  words.keys = take_keys(given);
  std::reverse(given.begin(), given.end());  // CLI11 takes words from the end.
  try {
    app.parse(std::move(given));
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  absl::Status status = failpoint::arm_from_environment();
  if (status.ok()) {
    try {
      status = run(words);
    } catch (const std::exception& failure) {
      status = absl::InternalError(failure.what());
    }
  }
  if (status.ok()) return 0;
  std::cerr << kProgram << ": " << std::string(status.message()) << "\n";
  return absl::IsInvalidArgument(status) ? 2 : absl::IsNotFound(status) ? 3 : 1;
}

}  // namespace titan::tools
