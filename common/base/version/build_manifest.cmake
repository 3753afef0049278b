# Writes HEADER, only when it changes: the git revision of SOURCE, and a manifest of that and of the lines "NAME: VALUE"
# in FACTS. Only files that programs are built from count as modified, so that an edited test or page does not relink
# anything.

# An empty first line shows that SOURCE is the checkout itself, not a copy inside another one.
execute_process(COMMAND git -C ${SOURCE} rev-parse --show-prefix --short=12 HEAD OUTPUT_VARIABLE found RESULT_VARIABLE failed ERROR_QUIET)
set(revision "")
set(commit unknown)
if(NOT failed AND found MATCHES "^\n([0-9a-f]+)\n$")
  set(revision ${CMAKE_MATCH_1})
  set(commit ${revision})
  execute_process(COMMAND git --no-optional-locks -C ${SOURCE} status --porcelain --untracked-files=no -- . :!docs :!tests :!*.md
                  OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    string(APPEND commit ", modified")
  endif()
endif()

set(entries "    {\"commit\", \"${commit}\"},\n")
file(STRINGS ${FACTS} facts)
foreach(fact IN LISTS facts)
  string(REGEX MATCH "^([^:]+): (.*)$" matched "${fact}")
  string(APPEND entries "    {\"${CMAKE_MATCH_1}\", \"${CMAKE_MATCH_2}\"},\n")
endforeach()
set(text "#pragma once

#include <utility>

namespace titan {

constexpr char kRevision[] = \"${revision}\";
constexpr std::pair<const char*, const char*> kManifest[] = {
${entries}};

}  // namespace titan
")

set(before "")
if(EXISTS ${HEADER})
  file(READ ${HEADER} before)
endif()
if(NOT before STREQUAL text)
  file(WRITE ${HEADER} "${text}")
endif()
