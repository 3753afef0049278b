// Files that a plug-in's dataset reads. Nothing that the library returns is trusted: calls may throw, and places are
// checked.
#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/chat/label_tokens.h"
#include "worker/rank/data/documents/document_file.h"
#include "worker/rank/data/plugin/registry.h"
#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::data {
namespace {

std::string words(const data_files::FilePlace& place) { return absl::StrCat("(", place.offset, ", ", place.line, ")"); }

struct Where {
  const FileKind& kind;
  const std::string& path;
  data_files::FilePlace place;
};

// Returns the error `dataset "NAME" of LIBRARY: FILE at (12, 3): WHY`.
absl::Status wrong(const Where& where, const std::string& why) {
  const LoadedDataset& dataset = *where.kind.plugin;
  return absl::InvalidArgumentError(absl::StrCat("dataset \"", dataset.name, "\" of ", dataset.library, ": ",
                                                 where.path, " at ", words(where.place), ": ", why));
}

// Calls the library. Turns exceptions into errors, and adds the file and the place to errors.
template <typename Result, typename Call>
absl::StatusOr<Result> guarded(const Where& where, const char* what, Call&& call) {
  try {
    absl::StatusOr<Result> result = call();
    if (result.ok()) return result;
    return absl::Status(result.status().code(), wrong(where, std::string(result.status().message())).message());
  } catch (const std::exception& error) {
    return wrong(where, absl::StrCat(what, " threw: ", error.what()));
  } catch (...) {
    return wrong(where, absl::StrCat(what, " threw something that is not a std::exception"));
  }
}

// Checks the tokens, and marks those that are not labels. Returns a document with a problem if a check fails.
DocumentText marked(PluginDocument document, int32_t max_token_id) {
  std::vector<int32_t>& tokens = document.tokens;
  if (!document.labels.empty() && document.labels.size() != tokens.size()) {
    return {"", absl::StrCat("has ", tokens.size(), " tokens and ", document.labels.size(), " labels")};
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] > max_token_id) {
      return {"", absl::StrCat("holds token ", tokens[i], ", and the tokenizer's last is ", max_token_id)};
    }
    if (!document.labels.empty() && !document.labels[i]) tokens[i] = without_label(tokens[i]);
  }
  return {.text = "", .problem = "", .tokens = std::move(tokens)};
}

class PluginFile final : public DocumentFile {
 public:
  PluginFile(std::string path, const FileKind& kind, std::unique_ptr<PluginReader> reader,
             const data_files::FilePlace& place)
      : path_(std::move(path)), kind_(kind), reader_(std::move(reader)), start_(place), place_(place) {}

  // Returns the place that the library reports.
  absl::StatusOr<data_files::FilePlace> reported_place() const {
    return guarded<data_files::FilePlace>({kind_, path_, place_}, "place()", [&] { return reader_->place(); });
  }

  absl::StatusOr<bool> next() override {
    document_ = {};
    start_ = place_;
    const Where where{kind_, path_, start_};
    TITAN_ASSIGN_OR_RETURN(const bool found, guarded<bool>(where, "next()", [&] { return reader_->next(document_); }));
    if (!found) return false;
    TITAN_ASSIGN_OR_RETURN(const data_files::FilePlace place_after, reported_place());
    if (place_after <= start_ || place_after.line < 0) {
      return wrong(where, absl::StrCat("the place after the document is ", words(place_after), "; it has to be beyond ",
                                       words(start_), ", by its first number and then by its second, neither below 0"));
    }
    if (std::max(place_after.offset, place_after.line) > data_files::kMaxPlace) {
      return wrong(where, absl::StrCat("the place after the document is ", words(place_after),
                                       "; neither number can be beyond 2^60, the largest that a cursor holds"));
    }
    place_ = place_after;
    return true;
  }

  data_files::FilePlace start() const override { return start_; }
  data_files::FilePlace place() const override { return place_; }
  std::string name() const override { return absl::StrCat(path_, " at ", words(start_)); }

  absl::StatusOr<DocumentText> text() override {
    PluginDocument document = std::exchange(document_, {});
    if (!document.problem.empty()) return DocumentText{"", std::move(document.problem)};
    const bool tokens = kind_.plugin->content == Content::kTokens;
    if (tokens ? !document.text.empty() : !document.tokens.empty() || !document.labels.empty()) {
      return wrong({kind_, path_, start_}, absl::StrCat("the document has ", tokens ? "text" : "tokens",
                                                        ", and the dataset gives ", tokens ? "tokens" : "texts"));
    }
    if (tokens) return marked(std::move(document), kind_.max_token_id);
    if (!is_utf8(document.text)) return DocumentText{"", "not UTF-8"};
    if (kind_.chat != nullptr) return conversation_text(*kind_.chat, document.text);
    return DocumentText{std::move(document.text), ""};
  }

 private:
  const std::string path_;
  const FileKind kind_;
  const std::unique_ptr<PluginReader> reader_;
  data_files::FilePlace start_, place_;
  PluginDocument document_;
};

struct Seen {
  data_files::FilePlace start, place;
  DocumentText text;
};

// Returns the next document; nothing after the last.
absl::StatusOr<std::optional<Seen>> see(DocumentFile& file) {
  TITAN_ASSIGN_OR_RETURN(const bool found, file.next());
  if (!found) return std::nullopt;
  TITAN_ASSIGN_OR_RETURN(DocumentText text, file.text());
  return Seen{file.start(), file.place(), std::move(text)};
}

bool same(const Seen& a, const Seen& b) {
  return a.place == b.place && a.text.text == b.text.text && a.text.problem == b.text.problem &&
         a.text.tokens == b.text.tokens;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DocumentFile>> open_plugin(const std::string& path, const FileKind& kind,
                                                          const data_files::FilePlace& place) {
  const Where where{kind, path, place};
  TITAN_ASSIGN_OR_RETURN(
      std::unique_ptr<PluginReader> reader,
      guarded<std::unique_ptr<PluginReader>>(where, "open", [&] { return kind.plugin->open(path, place); }));
  if (reader == nullptr) return wrong(where, "open() returned no reader");
  auto file = std::make_unique<PluginFile>(path, kind, std::move(reader), place);
  TITAN_ASSIGN_OR_RETURN(const data_files::FilePlace reported_place, file->reported_place());
  if (reported_place == place) return file;
  return wrong(where, absl::StrCat("a reader that was opened there reports the place ", words(reported_place),
                                   ": place() has to return the place that open() got"));
}

absl::Status check_places(const std::string& path, const FileKind& kind) {
  constexpr int kTried = 4;  // Documents to check.
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<DocumentFile> file, DocumentFile::open(path, kind, {}));
  for (int i = 0; i < kTried; ++i) {
    TITAN_ASSIGN_OR_RETURN(const std::optional<Seen> first, see(*file));
    if (!first.has_value()) return absl::OkStatus();
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<DocumentFile> again, DocumentFile::open(path, kind, first->start));
    TITAN_ASSIGN_OR_RETURN(const std::optional<Seen> second, see(*again));
    if (second.has_value() && same(*first, *second)) continue;
    return wrong({kind, path, first->start},
                 absl::StrCat("a reader that was opened there returns ", second.has_value() ? "another" : "no",
                              " document; reading from the beginning returned one there"));
  }
  return absl::OkStatus();
}

}  // namespace titan::data
