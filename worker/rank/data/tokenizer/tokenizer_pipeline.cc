#include "worker/rank/data/tokenizer/tokenizer_pipeline.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/tokenizer/tokenizer_json.h"

namespace titan::data {
namespace {

using nlohmann::json;

class PipelineReader {
 public:
  explicit PipelineReader(TokenizerFile& file) : file_(file) {}

  absl::Status normalizer(const json& root) {
    const json* normalizer = member(root, "normalizer");
    if (normalizer == nullptr) return absl::OkStatus();
    TITAN_ASSIGN_OR_RETURN(file_.normalizer, read_normalizer(*normalizer));
    return absl::OkStatus();
  }

  absl::Status pre_tokenizer(const json& root) {
    const json* pre = member(root, "pre_tokenizer");
    return pre == nullptr ? absl::OkStatus() : one_pre_tokenizer(*pre);
  }

  absl::Status decoder(const json& root) {
    if (file_.byte_level) return absl::OkStatus();
    TITAN_ASSIGN_OR_RETURN(file_.decoder, read_decoder(member(root, "decoder")));
    return absl::OkStatus();
  }

  absl::Status post_processor(const json& root) {
    const json* post = member(root, "post_processor");
    return post == nullptr ? absl::OkStatus() : one_post_processor(*post);
  }

 private:
  absl::Status one_pre_tokenizer(const json& pre) {
    const std::string type = text_of(pre, "type");
    if (type == "Sequence") {
      const json* parts = member(pre, "pretokenizers");
      if (parts == nullptr || !parts->is_array()) return bad("pre_tokenizer: a \"Sequence\" without \"pretokenizers\"");
      for (const json& part : *parts) TITAN_RETURN_IF_ERROR(one_pre_tokenizer(part));
      return absl::OkStatus();
    }
    if (file_.byte_level || file_.metaspace) {
      return bad(absl::StrCat("pre_tokenizer \"", type, "\" after \"", file_.byte_level ? "ByteLevel" : "Metaspace",
                              "\" is not supported"));
    }
    if (type == "Metaspace") {
      TITAN_ASSIGN_OR_RETURN(file_.metaspace, read_metaspace(pre, "pre_tokenizer"));
      // After normalization and a split, it is unknown where in the text a piece begins.
      if (file_.metaspace->prepend != Metaspace::Prepend::kFirst || file_.splits.empty() || file_.normalizer.empty()) {
        return absl::OkStatus();
      }
      return bad(
          "pre_tokenizer \"Metaspace\": prepend_scheme \"first\" after a normalizer and another pre_tokenizer is not "
          "supported");
    }
    if (type == "WhitespaceSplit") {
      file_.splits.push_back({"\\s", {.behavior = SplitPattern::Behavior::kRemoved}});
      return absl::OkStatus();
    }
    if (type == "ByteLevel") {
      file_.byte_level = true;
      file_.add_prefix_space = flag(pre, "add_prefix_space", true);
      file_.gpt2_split = flag(pre, "use_regex", true);
      return absl::OkStatus();
    }
    if (type == "Split") return split(pre);
    if (type == "Digits") {
      // Rust's numeric characters: N of Unicode 17. A run stays together unless individual_digits is set.
      const std::string numeric = "[\\p{N}\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]";
      file_.splits.push_back({flag(pre, "individual_digits") ? numeric : numeric + "+", {}});
      return absl::OkStatus();
    }
    return bad(absl::StrCat("pre_tokenizer \"", type,
                            "\" is not supported; use Split, Digits, WhitespaceSplit, Metaspace, ByteLevel or none"));
  }

  absl::Status split(const json& pre) {
    SplitStep step;
    const std::string behavior = text_of(pre, "behavior");
    if (behavior == "Isolated") {
      step.options.behavior = SplitPattern::Behavior::kIsolated;
    } else if (behavior == "Removed") {
      step.options.behavior = SplitPattern::Behavior::kRemoved;
    } else {
      return bad(
          absl::StrCat("pre_tokenizer Split: behavior \"", behavior, "\" is not supported; use Isolated or Removed"));
    }
    step.options.invert = flag(pre, "invert");
    const json* pattern = member(pre, "pattern");
    if (pattern != nullptr && pattern->is_object()) {
      step.pattern = text_of(*pattern, "Regex");
      if (step.pattern.empty()) {
        step.pattern = text_of(*pattern, "String");
        step.options.literal = true;
      }
    }
    if (step.pattern.empty()) return bad("pre_tokenizer Split: pattern holds neither \"Regex\" nor \"String\"");
    file_.splits.push_back(std::move(step));
    return absl::OkStatus();
  }

  absl::Status one_post_processor(const json& post) {
    const std::string type = text_of(post, "type");
    if (type == "ByteLevel") return absl::OkStatus();  // Changes only offsets, which Titan does not use.
    if (type == "Sequence") {
      const json* parts = member(post, "processors");
      if (parts == nullptr || !parts->is_array()) return bad("post_processor: a \"Sequence\" without \"processors\"");
      for (const json& part : *parts) TITAN_RETURN_IF_ERROR(one_post_processor(part));
      return absl::OkStatus();
    }
    if (type == "TemplateProcessing") return post_template(post);
    if (type == "RobertaProcessing" || type == "BertProcessing") return post_ends(post);
    return bad(absl::StrCat("post_processor \"", type, "\" is not supported; use TemplateProcessing, ",
                            "RobertaProcessing, BertProcessing, ByteLevel or none"));
  }

  // Reads "cls" and "sep", ["<s>", 0] each: the tokens before and after a text.
  absl::Status post_ends(const json& post) {
    const auto token = [&](const char* key) -> absl::StatusOr<int32_t> {
      const json* end = member(post, key);
      if (end == nullptr || !end->is_array() || end->size() != 2 || !(*end)[0].is_string()) {
        return bad(absl::StrCat("post_processor: \"", key, "\" is not a token and its id"));
      }
      return checked_id((*end)[0].get<std::string>(), (*end)[1]);
    };
    TITAN_ASSIGN_OR_RETURN(const int32_t first, token("cls"));
    TITAN_ASSIGN_OR_RETURN(const int32_t last, token("sep"));
    surround({first}, {last});
    return absl::OkStatus();
  }

  absl::Status post_template(const json& post) {
    const json* single = member(post, "single");
    if (single == nullptr || !single->is_array()) return bad("post_processor: a template without \"single\"");
    std::vector<int32_t> prefix, suffix;
    int sequences = 0;
    for (const json& item : *single) {
      if (item.contains("Sequence")) {
        ++sequences;
        continue;
      }
      const std::string name = item.contains("SpecialToken") ? text_of(item["SpecialToken"], "id") : "";
      const auto tokens = post.contains("special_tokens") ? post["special_tokens"].find(name) : post.end();
      if (name.empty() || !post.contains("special_tokens") || tokens == post["special_tokens"].end() ||
          !tokens->contains("ids")) {
        return bad(absl::StrCat("post_processor: ", item.dump(), " names no entry of its special_tokens"));
      }
      auto& side = sequences == 0 ? prefix : suffix;
      for (const json& id : (*tokens)["ids"]) {
        TITAN_ASSIGN_OR_RETURN(const int32_t number, checked_id(name, id));
        side.push_back(number);
      }
    }
    if (sequences != 1) return bad("post_processor: the template has to hold the text ($A) exactly once");
    surround(prefix, suffix);
    return absl::OkStatus();
  }

  // A later processor of a sequence wraps the result of the earlier ones.
  void surround(const std::vector<int32_t>& prefix, const std::vector<int32_t>& suffix) {
    file_.prefix.insert(file_.prefix.begin(), prefix.begin(), prefix.end());
    file_.suffix.insert(file_.suffix.end(), suffix.begin(), suffix.end());
  }

  TokenizerFile& file_;
};

}  // namespace

absl::Status read_pipeline(const json& root, TokenizerFile& file) {
  PipelineReader reader(file);
  TITAN_RETURN_IF_ERROR(reader.normalizer(root));
  TITAN_RETURN_IF_ERROR(reader.pre_tokenizer(root));
  TITAN_RETURN_IF_ERROR(reader.decoder(root));
  return reader.post_processor(root);
}

}  // namespace titan::data
