// The only file that includes yaml-cpp.
#include <yaml-cpp/yaml.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "common/plan/config/raw.h"

namespace titan::config {
namespace {

// With anchors a small file can describe a huge tree or repeat a long text, so conversion stops at these limits.
constexpr int kMaxNodes = 100000;
constexpr std::size_t kMaxText = kMaxFileBytes;

class Converter {
 public:
  Converter(const std::string& file, std::vector<Problem>& problems) : file_(file), problems_(problems) {}

  RawValue convert(const YAML::Node& node, const std::string& path, int depth) {
    RawValue raw;
    raw.line = node.Mark().line + 1;
    if (node.IsScalar()) text_ += node.Scalar().size();
    if (++nodes_ > kMaxNodes || text_ > kMaxText || depth > kMaxDepth) {
      if (!too_large_) complain(raw.line, path, depth > kMaxDepth ? "nested too deeply" : "expands to too many values");
      too_large_ = true;
      return raw;
    }
    if (node.IsScalar()) {
      convert_scalar(node, raw);
    } else if (node.IsSequence()) {
      raw.kind = RawValue::Kind::kList;
      for (const YAML::Node& item : node) {
        raw.items.push_back(convert(item, path, depth + 1));
        if (too_large_) break;
      }
    } else if (node.IsMap()) {
      convert_map(node, path, depth, raw);
    }
    return raw;
  }

 private:
  void convert_scalar(const YAML::Node& node, RawValue& raw) {
    // Quoted scalars have the tag "!". The type of plain ones depends on the key.
    const bool quoted = node.Tag() == "!" || node.Tag() == "tag:yaml.org,2002:str";
    const std::string& text = node.Scalar();
    raw.text = text;
    raw.kind = quoted ? RawValue::Kind::kString : RawValue::Kind::kWord;
    if (!quoted && (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL")) {
      raw.kind = RawValue::Kind::kNull;
    }
  }

  void convert_map(const YAML::Node& node, const std::string& path, int depth, RawValue& raw) {
    raw.kind = RawValue::Kind::kTable;
    std::map<std::string, int> lines;
    for (const auto& pair : node) {
      const int line = pair.first.Mark().line + 1;
      if (!pair.first.IsScalar()) {
        complain(line, path, "a key must be a plain name");
        continue;
      }
      const std::string& key = pair.first.Scalar();
      const std::string full = path.empty() ? key : absl::StrCat(path, ".", key);
      const auto [first, is_new] = lines.emplace(key, line);
      if (!is_new) complain(line, full, absl::StrCat("set twice (first in line ", first->second, ")"));
      raw.members.push_back({key, convert(pair.second, full, depth + 1)});
      RawValue& value = raw.members.back().value;
      value.line = line;
      if (value.kind == RawValue::Kind::kNull && depth == 0)
        value.kind = RawValue::Kind::kTable;  // "training:" without keys.
      if (too_large_) return;
    }
  }

  void complain(int line, const std::string& key, std::string message) {
    problems_.push_back({{file_, line}, printable(key), "", std::move(message), ""});
  }

  const std::string& file_;
  std::vector<Problem>& problems_;
  int nodes_ = 0;
  std::size_t text_ = 0;
  bool too_large_ = false;
};

}  // namespace

RawValue read_yaml(std::string_view text, const std::string& file, std::vector<Problem>& problems) {
  try {
    const YAML::Node root = YAML::Load(std::string(text));
    if (root.IsNull() || !root.IsDefined()) {
      RawValue empty;
      empty.kind = RawValue::Kind::kTable;
      return empty;
    }
    RawValue raw = Converter(file, problems).convert(root, "", 0);
    if (raw.kind != RawValue::Kind::kTable) {
      problems.push_back({{file, 1}, "", "", "not a configuration: sections with keys are expected", ""});
      problems.back().suggestion = "write sections, such as \"training:\" with \"  steps: 10\" below";
    }
    return raw;
  } catch (const YAML::Exception& error) {
    problems.push_back({{file, error.mark.line + 1}, "", "", absl::StrCat("not valid YAML: ", error.msg), ""});
    return {};
  }
}

}  // namespace titan::config
