#include "worker/rank/data/tokenizer/metaspace.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/tokenizer/tokenizer_json.h"
#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::data {

absl::Status Metaspace::cut(std::string_view piece, bool at_start,
                            const std::function<absl::Status(std::string_view)>& word) const {
  std::string marked;
  marked.reserve(piece.size() + piece.size() / 2 + mark.size());
  const bool wanted = prepend == Prepend::kAlways || (prepend == Prepend::kFirst && at_start);
  const bool has_one = piece.substr(0, 1) == " " || piece.substr(0, mark.size()) == mark;
  if (wanted && !has_one) marked = mark;
  for (const char c : piece) {
    if (c == ' ') {
      marked += mark;
    } else {
      marked += c;
    }
  }
  const std::string_view all = marked;
  if (!split) return word(all);
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = std::min(all.find(mark, begin + 1), all.size());
    TITAN_RETURN_IF_ERROR(word(all.substr(begin, end - begin)));
    begin = end;
  }
  return absl::OkStatus();
}

absl::StatusOr<Metaspace> read_metaspace(const nlohmann::json& object, const std::string& where) {
  Metaspace space;
  space.mark = text_of(object, "replacement");
  if (space.mark.empty() || decode_utf8(space.mark, 0).length != space.mark.size()) {
    return bad(absl::StrCat(where, " \"Metaspace\": replacement is not one character"));
  }
  const std::string scheme = text_of(object, "prepend_scheme");
  if (scheme == "first") {
    space.prepend = Metaspace::Prepend::kFirst;
  } else if (scheme == "never") {
    space.prepend = Metaspace::Prepend::kNever;
  } else if (!scheme.empty() && scheme != "always") {
    return bad(absl::StrCat(where, " \"Metaspace\": prepend_scheme is \"", scheme, "\", not always, first or never"));
  }
  // Old files have this flag instead of a scheme.
  if (!flag(object, "add_prefix_space", true) && space.prepend != Metaspace::Prepend::kNever) {
    return bad(absl::StrCat(where, " \"Metaspace\": add_prefix_space is false, but prepend_scheme is not never"));
  }
  space.split = flag(object, "split", true);
  return space;
}

}  // namespace titan::data
