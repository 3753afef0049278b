#include "worker/rank/data/tokenizer/tokenizer.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/tokenizer_files/chat_template_text.h"
#include "common/io/tokenizer_files/find_tokenizer.h"
#include "common/io/tokenizer_files/sentencepiece.h"
#include "worker/rank/data/tokenizer/clip_files.h"
#include "worker/rank/data/tokenizer/pipeline_tokenizer.h"
#include "worker/rank/data/tokenizer/sentencepiece_tokenizer.h"
#include "worker/rank/data/tokenizer/t5_files.h"
#include "worker/rank/data/tokenizer/tiktoken_file.h"
#include "worker/rank/data/tokenizer/tokenizer_file.h"

namespace titan::data {
namespace {

using tokenizer_files::Found;
using tokenizer_files::TokenizerFileKind;
using Loaded = absl::StatusOr<std::unique_ptr<Tokenizer>>;

Loaded named(const std::string& path, Loaded loaded) {
  if (!loaded.ok()) return annotate(loaded.status(), path);
  return loaded;
}

Loaded load_json(const std::string& folder, const Found& found) {
  TITAN_ASSIGN_OR_RETURN(const TokenizerFile file, read_tokenizer_file(folder, found.bytes));
  return named(found.path, make_pipeline_tokenizer(file));
}

Loaded load_sentencepiece(const Found& found) {
  auto model = tokenizer_files::parse_sentencepiece(found.bytes);
  if (!model.ok()) return annotate(model.status(), found.path);
  return named(found.path, make_sentencepiece_tokenizer(*std::move(model)));
}

// A tokenizer.model is Llama 3's unless its folder says otherwise; *.tiktoken files are named after their encoding.
Loaded load_tiktoken(const std::string& folder, const Found& found) {
  TITAN_ASSIGN_OR_RETURN(const nlohmann::json config, tokenizer_files::read_tokenizer_config(folder));
  const std::filesystem::path path = found.path;
  const std::string encoding = path.extension() == ".tiktoken" ? path.stem().string() : "llama3";
  const auto file = read_tiktoken(found.bytes, encoding, config);
  if (!file.ok()) return annotate(file.status(), found.path);
  return named(found.path, make_pipeline_tokenizer(*file));
}

}  // namespace

Loaded Tokenizer::load(const std::string& folder) {
  TITAN_ASSIGN_OR_RETURN(const Found found, tokenizer_files::find_tokenizer(folder));
  switch (found.kind) {
    case TokenizerFileKind::kJson:
      return load_json(folder, found);
    case TokenizerFileKind::kSentencePiece:
      return load_sentencepiece(found);
    case TokenizerFileKind::kT5:
      return load_t5_tokenizer(folder, found.bytes);
    case TokenizerFileKind::kClip:
      return load_clip_tokenizer(folder, found.bytes);
    case TokenizerFileKind::kTiktoken:
      break;
  }
  return load_tiktoken(folder, found);
}

}  // namespace titan::data
