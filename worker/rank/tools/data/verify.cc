#include "worker/rank/tools/data/verify.h"

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/io/data_files/datasets.h"
#include "common/io/data_files/token_manifest.h"
#include "common/io/storage/crc32c.h"
#include "common/io/storage/file.h"
#include "worker/rank/data/samples/encodings_manifest.h"
#include "worker/rank/data/samples/sample_files.h"
#include "worker/rank/data/tokens/titan_shard.h"
#include "worker/rank/data/tokens/token_set.h"
#include "worker/rank/tools/data/finish.h"
#include "worker/rank/tools/images/encoding.h"

namespace titan::tools {
namespace {

namespace fs = std::filesystem;

// Checks that the indexes of shards have the manifest's checksums.
absl::Status check_index_sums(const std::string& manifest_path, int64_t& damaged) {
  storage::Files& files = storage::posix_files();
  TITAN_ASSIGN_OR_RETURN(const data_files::TokenManifest manifest, data_files::read_manifest(files, manifest_path));
  for (const data_files::TokenManifest::Shard& shard : manifest.shards) {
    const std::string path =
        (fs::path(manifest_path).parent_path() / absl::StrCat(shard.name, data::kIndexSuffix)).string();
    const absl::StatusOr<std::string> index = storage::read_file(files, path);
    if (index.ok() && storage::crc32c(index->data(), index->size()) == shard.index_sum) continue;
    ++damaged;
    std::cout << (index.ok() ? absl::StrCat(path, ": does not match the manifest's checksum")
                             : std::string(index.status().message()))
              << "\n";
  }
  return absl::OkStatus();
}

// Reads all samples of stored encodings.
absl::Status verify_encodings(const std::string& path) {
  storage::Files& files = storage::posix_files();
  TITAN_ASSIGN_OR_RETURN(const data::SampleFiles found, data::find_encodings(path, files));
  int64_t damaged = 0, samples = 0;
  const auto note = [&damaged](const std::string& problem) {
    ++damaged;
    std::cout << problem << "\n";
  };
  const auto empty = data::read_empty_encodings(files, path, *found.kind.encodings);
  if (!empty.ok()) note(std::string(empty.status().message()));
  for (const std::string& file : found.files) {
    const absl::StatusOr<std::unique_ptr<data::SampleFile>> opened = data::open_encodings(file, found.kind);
    if (!opened.ok()) {
      note(std::string(opened.status().message()));
      continue;
    }
    samples += (*opened)->samples();
    for (int64_t number = 0; number < (*opened)->samples(); ++number) {
      const absl::StatusOr<data::Sample> sample = (*opened)->read(number);
      if (!sample.ok()) {
        note(std::string(sample.status().message()));
      } else if (!sample->problem.empty()) {
        note(absl::StrCat(sample->name, ": ", sample->problem));
      }
    }
  }
  if (damaged > 0) return absl::DataLossError(absl::StrCat(path, ": ", counted(damaged, "damage"), " found"));
  std::cout << path << ": encodings of " << counted(samples, "sample") << " in " << counted(found.files.size(), "shard")
            << ", intact\n";
  return absl::OkStatus();
}

absl::Status run(const std::string& path) {
  const fs::path folder = path;
  if (fs::exists(folder / data::kEncodingsManifest) || fs::exists(folder / tools::kEncodingsPlan))
    return verify_encodings(path);
  TITAN_ASSIGN_OR_RETURN(const data_files::DatasetFiles found, data_files::find_dataset_files(path));
  if (!data_files::holds_tokens(found.format)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": holds ", data_files::name(found.format), ", not tokens; text cannot be verified"));
  }
  TITAN_ASSIGN_OR_RETURN(data::TokenSet set, data::TokenSet::open(found.format, found.files));
  int64_t damaged = 0;
  if (found.format == data_files::DatasetFormat::kTitan) {
    for (const std::string& manifest : found.files) TITAN_RETURN_IF_ERROR(check_index_sums(manifest, damaged));
  }
  for (int64_t number = 0; number < set.shards(); ++number) {
    const absl::StatusOr<data::TokenShard*> shard = set.shard(number);
    const absl::Status whole = shard.ok() ? (*shard)->verify() : shard.status();
    if (whole.ok()) continue;
    ++damaged;
    std::cout << std::string(whole.message()) << "\n";
  }
  if (damaged > 0) return absl::DataLossError(absl::StrCat(path, ": ", counted(damaged, "damage"), " found"));
  std::cout << path << ": " << set.tokens() << " tokens in " << counted(set.documents(), "document") << ", "
            << counted(set.shards(), "shard") << ", intact\n";
  return absl::OkStatus();
}

}  // namespace

void add_verify(CLI::App& program) {
  CLI::App* command = program.add_subcommand("verify",
                                             "Reads a token index, Megatron-LM's .bin and .idx, or stored encodings, "
                                             "and checks them; exits with 1 if something is damaged");
  const auto path = std::make_shared<std::string>();
  command->add_option("path", *path, "Folder of the index or encodings, or the common prefix of .bin and .idx")
      ->required();
  command->callback([path] { finish(run(*path)); });
}

}  // namespace titan::tools
