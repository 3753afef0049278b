# Unity builds: up to this many files of a target are compiled as one, so that LibTorch's, gRPC's and the standard library's templates
# are instantiated once for all of them (docs/decisions/build.md). 0: every file alone, as clang-tidy and editors see it.
#
# Not by CMake's UNITY_BUILD, which names the files by absolute paths: what was compiled in one checkout would be no use to the next.
set(TITAN_UNITY 12 CACHE STRING "Files compiled together, by target; 0 compiles each alone")

# Joins the sources of `target` when its folder is read to the end, since a CMakeLists.txt gives files their properties after the target.
# What they are stays in its property TITAN_SOURCES.
function(titan_unity target)
  get_target_property(sources ${target} SOURCES)
  set_target_properties(${target} PROPERTIES TITAN_SOURCES "${sources}")
  if(TITAN_UNITY GREATER 1)
    cmake_language(EVAL CODE "cmake_language(DEFER CALL _titan_join [[${target}]])")
  endif()
endfunction()

# A file with flags of its own, or with SKIP_UNITY_BUILD_INCLUSION, stays alone.
function(_titan_stays_alone source result)
  foreach(property SKIP_UNITY_BUILD_INCLUSION COMPILE_OPTIONS COMPILE_DEFINITIONS COMPILE_FLAGS INCLUDE_DIRECTORIES)
    get_source_file_property(value ${source} ${property})
    if(value)
      set(${result} TRUE PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${result} FALSE PARENT_SCOPE)
endfunction()

# Sources are named from the project's root or the build's, where whoever joins them looks (titan_flags; proto/ for what it generates).
# Written when it changes only.
function(_titan_write_unit path)
  set(text "")
  foreach(source IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE)
    set(root ${PROJECT_SOURCE_DIR})
    cmake_path(IS_PREFIX PROJECT_BINARY_DIR ${source} built)
    if(built)
      set(root ${PROJECT_BINARY_DIR})
    endif()
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${root})
    string(APPEND text "#include \"${source}\"\n")
  endforeach()
  file(CONFIGURE OUTPUT ${path} CONTENT "${text}" @ONLY)
endfunction()

function(_titan_join target)
  get_target_property(sources ${target} SOURCES)
  set(joined)
  foreach(source IN LISTS sources)
    _titan_stays_alone(${source} alone)
    if(source MATCHES "\\.cc$" AND NOT alone)
      list(APPEND joined ${source})
    endif()
  endforeach()
  list(LENGTH joined count)
  if(count LESS 2)
    return()
  endif()
  list(REMOVE_ITEM sources ${joined})
  math(EXPR last "${count} - 1")
  foreach(first RANGE 0 ${last} ${TITAN_UNITY})
    list(SUBLIST joined ${first} ${TITAN_UNITY} files)
    set(unit ${CMAKE_CURRENT_BINARY_DIR}/${target}.dir/unit_${first}.cc)
    _titan_write_unit(${unit} ${files})
    list(APPEND sources ${unit})
  endforeach()
  set_target_properties(${target} PROPERTIES SOURCES "${sources}")
endfunction()
